//! The one way in which weights are taken: name, shape and format are checked
//! against the spec's list before a backend sees a byte.

use crate::tensors::{Role, TensorSpec};
use crate::transformer::NormWeights;
use crate::{ModelError, Spec};
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
    /// Rows (outputs), those of all experts together; 1 for a vector.
    pub rows: usize,
    /// Columns (inputs), the row length.
    pub cols: usize,
    /// Bytes in the file, padding not counted.
    pub bytes: u64,
}

/// The format in which the backends know a file's type; `None` if they do not.
pub(crate) fn dtype(ty: GgmlType) -> Option<DType> {
    DType::from_ggml_type(ty.id())
}

/// Binds the tensors of a file, which agree with its spec.
pub(crate) struct Binder<'a, B> {
    pub(crate) gguf: &'a Gguf,
    pub(crate) spec: &'a Spec,
    pub(crate) tensors: &'a Index,
    pub(crate) backend: &'a B,
}

impl<B: Backend> Binder<'_, B> {
    /// The matrices of these roles, which read one input, bound as a set.
    /// `layer` is `None` for the model's own.
    pub(crate) fn set(&self, roles: &[Role], layer: Option<usize>) -> Result<B::Set, ModelError> {
        let matrix = |&role: &Role| Ok(self.weight(role, layer)?.0.into());
        let matrices = roles.iter().map(matrix);
        let matrices = matrices.collect::<Result<Vec<_>, ModelError>>()?;
        Ok(self.backend.bind_set(matrices)?)
    }

    /// The embedding table, bound.
    pub(crate) fn table(&self) -> Result<B::Table, ModelError> {
        let weight = self.weight(Role::Embedding, None)?.0;
        Ok(self.backend.bind_table(weight)?)
    }

    /// The norm weights of this role, decoded and bound.
    pub(crate) fn norm(
        &self,
        role: Role,
        layer: Option<usize>,
        eps: f32,
    ) -> Result<NormWeights<B>, ModelError> {
        let (weight, tensor) = self.weight(role, layer)?;
        let name = || tensor.name.clone();
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
        if self.is_constant(role, layer)
            && let Some(index) = values.iter().position(|v| *v != values[0])
        {
            return Err(ModelError::NotConstant {
                name: name(),
                index,
                first: values[0],
                found: values[index],
            });
        }
        Ok(NormWeights {
            weights: self.backend.bind_vector(values)?,
            eps,
        })
    }

    fn weight(&self, role: Role, layer: Option<usize>) -> Result<(Weight, &Tensor), ModelError> {
        let Some(tensor) = self.tensors.get(role, layer) else {
            // The pass asks for what the spec has not.
            let name = role.tensor_name(layer.unwrap_or(0));
            return Err(self.spec.not_computed("a pass without this tensor", name));
        };
        let data = self.gguf.tensor_data_of(&tensor.name)?;
        let (name, dtype) = (&tensor.name, tensor.dtype);
        let weight = Weight::new(name, data, dtype, tensor.rows, tensor.cols)?;
        Ok((weight, tensor))
    }

    /// Whether the weights of this role must be one constant.
    fn is_constant(&self, role: Role, layer: Option<usize>) -> bool {
        let layer = layer.and_then(|i| self.spec.layers.get(i));
        let norm = layer.and_then(|l| l.attn.qk_norm);
        matches!(role, Role::QNorm | Role::KNorm) && norm.is_some_and(|n| n.constant)
    }
}

/// A model's tensors, the model's own first, then layer by layer.
#[derive(Clone, Debug)]
pub(crate) struct Index {
    tensors: Vec<Tensor>,
    /// Where each layer begins, and the end.
    starts: Vec<usize>,
}

impl Index {
    /// Every tensor of the spec, from the file's directory alone.
    ///
    /// # Errors
    /// One that is missing, of another shape, or of a format that does not
    /// serve; one in the file that is not among them.
    pub(crate) fn new(gguf: &Gguf, spec: &Spec) -> Result<Self, ModelError> {
        let (mut tensors, mut starts) = (Vec::new(), Vec::new());
        for tensor in spec.tensors() {
            if tensor.layer.is_some_and(|layer| layer == starts.len()) {
                starts.push(tensors.len());
            }
            tensors.push(describe(gguf, tensor)?);
        }
        starts.push(tensors.len());
        check_strangers(gguf, spec, &tensors)?;
        Ok(Self { tensors, starts })
    }

    /// All of them.
    pub(crate) fn all(&self) -> &[Tensor] {
        &self.tensors
    }

    /// Those of a layer, or the model's own; none if there is no such layer.
    pub(crate) fn part(&self, layer: Option<usize>) -> &[Tensor] {
        let start = |i: usize| self.starts.get(i).copied();
        let range = match layer {
            None => Some(0..self.starts[0]),
            Some(i) => start(i).zip(start(i + 1)).map(|(from, to)| from..to),
        };
        range.map_or(&[], |range| &self.tensors[range])
    }

    /// The tensor of this role; `layer` is `None` for the model's own.
    pub(crate) fn get(&self, role: Role, layer: Option<usize>) -> Option<&Tensor> {
        self.part(layer).iter().find(|t| t.role == role)
    }
}

/// What the directory says of a tensor, once it agrees with the spec.
fn describe(gguf: &Gguf, tensor: TensorSpec) -> Result<Tensor, ModelError> {
    let TensorSpec {
        name,
        role,
        layer,
        dims,
    } = tensor;
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
    let whole = !role.usage().may_be_quantised();
    let usable = dtype(info.ty).filter(|t| !(whole && t.is_quantized()));
    let Some(dtype) = usable else {
        let expected = match whole {
            true => "F16, BF16 or F32",
            false => DType::NAMES,
        };
        let found = info.ty;
        return Err(ModelError::TensorType {
            name,
            expected,
            found,
        });
    };
    Ok(Tensor {
        name,
        role,
        layer,
        dtype,
        rows: dims.iter().skip(1).product(),
        cols: dims[0],
        bytes: info.byte_len,
    })
}

/// Refuses a tensor of the file that is not among these.
fn check_strangers(gguf: &Gguf, spec: &Spec, taken: &[Tensor]) -> Result<(), ModelError> {
    let taken: HashSet<&str> = taken.iter().map(|t| t.name.as_str()).collect();
    let stranger = |t: &&TensorInfo| !taken.contains(t.name.as_str());
    match gguf.tensors().iter().find(stranger) {
        None => Ok(()),
        Some(info) => Err(ModelError::UnknownTensor {
            name: info.name.clone(),
            arch: spec.arch,
            layers: spec.layers.len(),
        }),
    }
}
