//! The one call through which weights are taken: name, shape and format are
//! checked against the configuration before a backend sees a byte.

use crate::{ARCH, Config, ModelError, Role};
use muser_gguf::{GgmlType, Gguf, TensorInfo};
use muser_ops::{Backend, Weight};
use muser_quant::DType;
use std::collections::HashSet;

/// A tensor of the model as it was taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tensor {
    /// Its name in the file.
    pub name: String,
    /// What it is for.
    pub role: Role,
    /// Its layer, if it is of one.
    pub layer: Option<usize>,
    /// The format of its values.
    pub dtype: DType,
    /// Rows (outputs); 1 for a norm.
    pub rows: usize,
    /// Columns (inputs), the row length.
    pub cols: usize,
    /// Bytes in the file, padding not counted.
    pub bytes: u64,
}

impl Tensor {
    /// Bytes of it that one token reads: one row of the embedding, all of
    /// anything else.
    pub fn bytes_per_token(&self) -> u64 {
        match self.role {
            Role::Embedding => self.bytes / self.rows as u64,
            _ => self.bytes,
        }
    }
}

/// The format in which the backends know a file's type; `None` if they do not.
pub(crate) fn dtype(ty: GgmlType) -> Option<DType> {
    Some(match ty {
        GgmlType::F32 => DType::F32,
        GgmlType::F16 => DType::F16,
        GgmlType::BF16 => DType::BF16,
        GgmlType::Q4_K => DType::Q4K,
        GgmlType::Q5_K => DType::Q5K,
        GgmlType::Q6_K => DType::Q6K,
        _ => return None,
    })
}

/// Takes tensors and remembers which.
pub(crate) struct Binder<'a, B> {
    gguf: &'a Gguf,
    config: &'a Config,
    backend: &'a B,
    taken: Vec<Tensor>,
}

impl<'a, B: Backend> Binder<'a, B> {
    pub(crate) fn new(gguf: &'a Gguf, config: &'a Config, backend: &'a B) -> Self {
        Self {
            gguf,
            config,
            backend,
            taken: Vec::new(),
        }
    }

    /// The matrices of these roles, which read one input, bound as a set.
    /// `layer` is `None` for the model's own.
    pub(crate) fn set(
        &mut self,
        roles: &[Role],
        layer: Option<usize>,
    ) -> Result<B::Set, ModelError> {
        let matrices = roles.iter().map(|&role| Ok(self.take(role, layer)?.into()));
        let matrices = matrices.collect::<Result<Vec<_>, ModelError>>()?;
        Ok(self.backend.bind_set(matrices)?)
    }

    /// The embedding table, bound.
    pub(crate) fn table(&mut self) -> Result<B::Table, ModelError> {
        let weight = self.take(Role::Embedding, None)?;
        Ok(self.backend.bind_table(weight)?)
    }

    /// The norm weights of this role, decoded and bound.
    ///
    /// The QK norms must be one constant. The release folds its query scale
    /// into them and learns nothing there, so a vector that varies belongs to
    /// another variant of the architecture, whose further differences nobody
    /// has checked: it is refused rather than multiplied in.
    pub(crate) fn norm(
        &mut self,
        role: Role,
        layer: Option<usize>,
    ) -> Result<B::Vector, ModelError> {
        let weight = self.take(role, layer)?;
        let name = || weight.name().to_owned();
        let mut values = vec![0.0; weight.cols()];
        let decoded = weight.dtype().decode_row(weight.bytes(), &mut values);
        decoded.map_err(|source| ModelError::Rows {
            name: name(),
            source,
        })?;
        if let Some(index) = values.iter().position(|v| !v.is_finite()) {
            return Err(ModelError::NonFiniteNorm {
                name: name(),
                index,
                found: values[index],
            });
        }
        if matches!(role, Role::QNorm | Role::KNorm)
            && let Some(index) = values.iter().position(|v| *v != values[0])
        {
            return Err(ModelError::NotConstant {
                name: name(),
                index,
                first: values[0],
                found: values[index],
            });
        }
        Ok(self.backend.bind_vector(values)?)
    }

    fn take(&mut self, role: Role, layer: Option<usize>) -> Result<Weight, ModelError> {
        let (tensor, info) = describe(self.gguf, self.config, role, layer)?;
        let (data, name) = (self.gguf.tensor_data(info), &tensor.name);
        let weight = Weight::new(name, data, tensor.dtype, tensor.rows, tensor.cols)?;
        self.taken.push(tensor);
        Ok(weight)
    }

    /// The tensors taken, once nothing else is left in the file.
    pub(crate) fn finish(self) -> Result<Vec<Tensor>, ModelError> {
        check_strangers(self.gguf, self.config, &self.taken)?;
        Ok(self.taken)
    }
}

/// Every tensor of the model from the file's directory alone, checked as for
/// binding; the model's own first, then layer by layer.
pub(crate) fn tensors(gguf: &Gguf, config: &Config) -> Result<Vec<Tensor>, ModelError> {
    let own = Role::MODEL.map(|role| (role, None));
    let layers = (0..config.layers).flat_map(|i| Role::LAYER.map(|role| (role, Some(i))));
    let tensor = |(role, layer)| Ok(describe(gguf, config, role, layer)?.0);
    let all = own.into_iter().chain(layers).map(tensor);
    let all = all.collect::<Result<Vec<_>, ModelError>>()?;
    check_strangers(gguf, config, &all)?;
    Ok(all)
}

/// What the directory says of a tensor, once it agrees with the configuration.
fn describe<'a>(
    gguf: &'a Gguf,
    config: &Config,
    role: Role,
    layer: Option<usize>,
) -> Result<(Tensor, &'a TensorInfo), ModelError> {
    let name = role.tensor_name(layer.unwrap_or(0));
    let dims = role.dims(config);
    let expected: Vec<u64> = dims.iter().map(|&d| d as u64).collect();
    let Some(info) = gguf.tensor(&name) else {
        return Err(ModelError::MissingTensor { name, expected });
    };
    if info.dims != expected {
        let found = info.dims.clone();
        return Err(ModelError::TensorShape {
            name,
            expected,
            found,
        });
    }
    let usable = dtype(info.ty).filter(|t| !(role.is_norm() && t.is_k_quant()));
    let Some(dtype) = usable else {
        let expected = match role.is_norm() {
            true => "F32, F16 or BF16",
            false => "Q4_K, Q5_K, Q6_K, F16, BF16 or F32",
        };
        let found = info.ty;
        return Err(ModelError::TensorType {
            name,
            expected,
            found,
        });
    };
    let tensor = Tensor {
        name,
        role,
        layer,
        dtype,
        rows: dims.get(1).copied().unwrap_or(1),
        cols: dims[0],
        bytes: info.byte_len,
    };
    Ok((tensor, info))
}

/// Refuses a tensor of the file that is not among these.
fn check_strangers(gguf: &Gguf, config: &Config, taken: &[Tensor]) -> Result<(), ModelError> {
    let taken: HashSet<&str> = taken.iter().map(|t| t.name.as_str()).collect();
    let stranger = |t: &&TensorInfo| !taken.contains(t.name.as_str());
    match gguf.tensors().iter().find(stranger) {
        None => Ok(()),
        Some(info) => Err(ModelError::UnknownTensor {
            name: info.name.clone(),
            arch: ARCH,
            layers: config.layers,
        }),
    }
}
