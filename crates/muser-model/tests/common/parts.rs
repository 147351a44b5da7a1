//! A file taken apart, changed and put together again.

use super::load;
use muser_gguf::{GgmlType, Gguf, Value, Writer};
use muser_model::Spec;

/// A file taken apart, to be changed and put together again.
pub(crate) struct Parts {
    keys: Vec<(String, Value)>,
    tensors: Vec<(String, Vec<u64>, GgmlType, Vec<u8>)>,
}

impl Parts {
    pub(crate) fn of(file: Vec<u8>) -> Self {
        let gguf = Gguf::from_vec(file).unwrap();
        let entries = gguf.metadata().iter();
        let tensors = gguf.tensors().iter();
        Self {
            keys: entries.map(|e| (e.key.clone(), e.value.clone())).collect(),
            tensors: tensors
                .map(|t| {
                    let data = gguf.tensor_data(t).to_vec();
                    (t.name.clone(), t.dims.clone(), t.ty, data)
                })
                .collect(),
        }
    }

    pub(crate) fn unset(mut self, key: &str) -> Self {
        let full = self.full(key);
        self.keys.retain(|(k, _)| *k != full);
        self
    }

    /// The key with the prefix of the file's architecture, unless it has one.
    pub(crate) fn full(&self, key: &str) -> String {
        if key.starts_with("general.") || key.starts_with("tokenizer.") {
            return key.to_owned();
        }
        let arch = self.keys.iter().find(|(k, _)| k == "general.architecture");
        let arch = arch.and_then(|(_, value)| value.as_str()).unwrap();
        format!("{arch}.{key}")
    }

    /// A key of no architecture.
    pub(crate) fn set_whole(mut self, key: &str, value: impl Into<Value>) -> Self {
        self.keys.push((key.to_owned(), value.into()));
        self
    }

    pub(crate) fn set(self, key: &str, value: impl Into<Value>) -> Self {
        let full = self.full(key);
        let mut parts = self.unset(key);
        parts.keys.push((full, value.into()));
        parts
    }

    pub(crate) fn drop_tensor(mut self, name: &str) -> Self {
        let before = self.tensors.len();
        self.tensors.retain(|t| t.0 != name);
        assert_eq!(self.tensors.len(), before - 1);
        self
    }

    /// Another tensor under this name (which may be new), of zeros.
    pub(crate) fn tensor(mut self, name: &str, dims: &[u64], ty: GgmlType) -> Self {
        self.tensors.retain(|t| t.0 != name);
        let bytes = ty.row_bytes(dims.iter().product()).unwrap();
        let data = vec![0; bytes as usize];
        self.tensors
            .push((name.to_owned(), dims.to_vec(), ty, data));
        self
    }

    /// One F32 value of a tensor.
    pub(crate) fn value(mut self, name: &str, index: usize, value: f32) -> Self {
        let tensor = self.tensors.iter_mut().find(|t| t.0 == name).unwrap();
        tensor.3[4 * index..4 * index + 4].copy_from_slice(&value.to_le_bytes());
        self
    }

    pub(crate) fn gguf(&self) -> Gguf {
        let mut writer = Writer::new();
        for (key, value) in &self.keys {
            writer.metadata(key.as_str(), value.clone()).unwrap();
        }
        for (name, dims, ty, _) in &self.tensors {
            writer.tensor(name.as_str(), dims, *ty).unwrap();
        }
        let mut data = writer.start(Vec::new()).unwrap();
        for (name, _, _, bytes) in &self.tensors {
            data.tensor(name, bytes).unwrap();
        }
        Gguf::from_vec(data.finish().unwrap()).unwrap()
    }

    pub(crate) fn spec(&self) -> Spec {
        Spec::from_gguf(&self.gguf()).unwrap()
    }

    #[track_caller]
    pub(crate) fn refused(&self, message: &str) {
        let error = load(&self.gguf()).map(|_| ()).unwrap_err().to_string();
        // The byte offset of a key moves with the file: not part of the row.
        let offset = error.find(" at byte ").map(|at| {
            let end = error[at..].find(':').unwrap() + at;
            error[at..end].to_owned()
        });
        assert_eq!(error.replace(&offset.unwrap_or("\0".into()), ""), message);
    }
}
