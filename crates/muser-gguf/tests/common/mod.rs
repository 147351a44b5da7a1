//! Files as bytes, built without the crate's writer, which would refuse most.
#![allow(dead_code, reason = "each test file uses a part")]

use muser_gguf::{GgmlType, Gguf};

pub(crate) const U8: u32 = 0;
pub(crate) const U32: u32 = 4;
pub(crate) const I32: u32 = 5;
pub(crate) const F32: u32 = 6;
pub(crate) const BOOL: u32 = 7;
pub(crate) const STRING: u32 = 8;
pub(crate) const ARRAY: u32 = 9;

/// A file in the making, field by field.
#[derive(Clone, Default)]
pub(crate) struct Raw(pub(crate) Vec<u8>);

impl Raw {
    /// Magic, version 3 and the counts.
    pub(crate) fn new(tensors: u64, keys: u64) -> Self {
        Self(b"GGUF".to_vec()).u32(3).u64(tensors).u64(keys)
    }

    pub(crate) fn bytes(mut self, bytes: &[u8]) -> Self {
        self.0.extend_from_slice(bytes);
        self
    }

    pub(crate) fn u32(self, v: u32) -> Self {
        self.bytes(&v.to_le_bytes())
    }

    pub(crate) fn u64(self, v: u64) -> Self {
        self.bytes(&v.to_le_bytes())
    }

    pub(crate) fn zeros(self, n: usize) -> Self {
        self.bytes(&vec![0; n])
    }

    pub(crate) fn str(self, text: impl AsRef<[u8]>) -> Self {
        let text = text.as_ref();
        self.u64(text.len() as u64).bytes(text)
    }

    /// A key and its value's type; the value follows.
    pub(crate) fn key(self, key: impl AsRef<[u8]>, ty: u32) -> Self {
        self.str(key).u32(ty)
    }

    /// Element type and length of an array; the elements follow.
    pub(crate) fn array(self, elem: u32, len: u64) -> Self {
        self.u32(elem).u64(len)
    }

    /// A directory entry.
    pub(crate) fn tensor(self, name: &str, dims: &[u64], ty: GgmlType, offset: u64) -> Self {
        self.shape(name, dims).u32(ty.id()).u64(offset)
    }

    /// A directory entry up to its dimensions.
    pub(crate) fn shape(self, name: &str, dims: &[u64]) -> Self {
        let entry = self.str(name).u32(dims.len() as u32);
        dims.iter().fold(entry, |entry, &dim| entry.u64(dim))
    }

    /// Zeros up to a multiple of `alignment`.
    pub(crate) fn pad(self, alignment: usize) -> Self {
        let n = self.0.len().next_multiple_of(alignment) - self.0.len();
        self.zeros(n)
    }
}

/// A small valid file with every value type, nested arrays, and two tensors of
/// which the last fills its padding: no byte of it can be spared.
pub(crate) fn sample() -> Vec<u8> {
    Raw::new(2, 17)
        .key("u8", 0)
        .bytes(&[200])
        .key("i8", 1)
        .bytes(&[0x80])
        .key("u16", 2)
        .bytes(&[1, 2])
        .key("i16", 3)
        .bytes(&[0, 0x80])
        .key("u32", U32)
        .u32(7)
        .key("i32", I32)
        .u32(u32::MAX)
        .key("f32", F32)
        .bytes(&0.5f32.to_le_bytes())
        .key("bool", BOOL)
        .bytes(&[1])
        .key("string", STRING)
        .str("grüße")
        .key("empty", STRING)
        .str("")
        .key("u64", 10)
        .u64(u64::MAX)
        .key("i64", 11)
        .u64(u64::MAX)
        .key("f64", 12)
        .bytes(&0.1f64.to_le_bytes())
        .key("none", ARRAY)
        .array(U32, 0)
        .key("words", ARRAY)
        .array(STRING, 3)
        .str("a")
        .str("")
        .str("ß")
        .key("flags", ARRAY)
        .array(BOOL, 2)
        .bytes(&[0, 1])
        .key("nested", ARRAY)
        .array(ARRAY, 2)
        .array(U8, 1)
        .bytes(&[9])
        .array(ARRAY, 1)
        .array(STRING, 1)
        .str("deep")
        .tensor("a", &[3], GgmlType::F16, 0)
        .tensor("b", &[4, 2], GgmlType::F32, 32)
        .pad(32)
        .bytes(&[1; 6])
        .pad(32)
        .bytes(&[2; 32])
        .0
}

/// Reads everything a file offers, as its users would.
pub(crate) fn walk(gguf: &Gguf) -> usize {
    let keys = gguf.metadata().iter().map(|entry| {
        let key = entry.key.as_str();
        let m = gguf.metadata();
        let fits = [
            m.u32(key).is_ok(),
            m.i64(key).is_ok(),
            m.f32(key).is_ok(),
            m.bools(key).is_ok(),
            m.u32s(key).is_ok(),
            m.f32s(key).is_ok(),
            m.strings(key).is_ok_and(|s| s.iter().count() == s.len()),
        ];
        fits.iter().filter(|&&fits| fits).count() + entry.value.to_string().len()
    });
    let tensors = gguf.tensors().iter().map(|info| {
        let data = gguf.tensor_data(info);
        assert_eq!(data.len() as u64, info.byte_len);
        assert_eq!(gguf.tensor(&info.name), Some(info));
        usize::from(data[0]) + usize::from(data[data.len() - 1])
    });
    keys.sum::<usize>() + tensors.sum::<usize>()
}
