//! Binds the tensors of a GGUF file to a backend. Their names, shapes and formats are
//! checked against the model's description before the backend gets a byte.

use crate::tensors::{Role, TensorSpec};
use crate::transformer::NormWeights;
use crate::{ModelError, Spec};
use muser_gguf::{GgmlType, Gguf, TensorInfo};
use muser_ops::{Backend, Weight};
use muser_quant::DType;
use std::collections::HashSet;

/// A weight tensor of a model, as its GGUF file has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tensor {
    /// The tensor's name in the GGUF file.
    pub name: String,
    /// The tensor's purpose in the model, such as the Q projection or the embedding.
    pub role: Role,
    /// The layer that the tensor belongs to, from 0; `None` for the tensors of the
    /// whole model.
    pub layer: Option<usize>,
    /// The weight format of the tensor, such as Q4_K or F32.
    pub dtype: DType,
    /// Number of rows (outputs) of the tensor, those of all experts together; 1 for a
    /// vector.
    pub rows: usize,
    /// Number of columns (inputs) of the tensor: the length of a row in values.
    pub cols: usize,
    /// Size of the tensor in the file in bytes, without padding.
    pub bytes: u64,
}

/// Converts a tensor type of GGUF to muser's weight format; `None` if muser cannot
/// decode that type.
pub(crate) fn dtype(ty: GgmlType) -> Option<DType> {
    DType::from_ggml_type(ty.id())
}

/// Binds the tensors of a GGUF file to a backend, after the file's tensor directory was
/// checked against the model's spec.
pub(crate) struct Binder<'a, B> {
    pub(crate) gguf: &'a Gguf,
    pub(crate) spec: &'a Spec,
    pub(crate) tensors: &'a Index,
    pub(crate) backend: &'a B,
}

impl<B: Backend> Binder<'_, B> {
    /// Binds matrices that multiply the same input, such as Q, K and V, to the backend
    /// as one projection set. `layer` is `None` for tensors of the whole model.
    pub(crate) fn set(&self, roles: &[Role], layer: Option<usize>) -> Result<B::Set, ModelError> {
        let matrix = |&role: &Role| Ok(self.weight(role, layer)?.0.into());
        let matrices = roles.iter().map(matrix);
        let matrices = matrices.collect::<Result<Vec<_>, ModelError>>()?;
        Ok(self.backend.bind_set(matrices)?)
    }

    /// Binds the embedding table to the backend.
    pub(crate) fn table(&self) -> Result<B::Table, ModelError> {
        let weight = self.weight(Role::Embedding, None)?.0;
        Ok(self.backend.bind_table(weight)?)
    }

    /// Decodes the weights of the RMS norm `role`, checks that they are finite (and
    /// equal where they must be), and binds them to the backend.
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
            // The forward pass needs a tensor that the spec does not list.
            let name = role.tensor_name(layer.unwrap_or(0));
            return Err(self.spec.not_computed("a pass without this tensor", name));
        };
        let data = self.gguf.tensor_data_of(&tensor.name)?;
        let (name, dtype) = (&tensor.name, tensor.dtype);
        let weight = Weight::new(name, data, dtype, tensor.rows, tensor.cols)?;
        Ok((weight, tensor))
    }

    /// Returns whether all weights of the tensor `role` must be equal, as those of some
    /// QK norms must.
    fn is_constant(&self, role: Role, layer: Option<usize>) -> bool {
        let layer = layer.and_then(|i| self.spec.layers.get(i));
        let norm = layer.and_then(|l| l.attn.qk_norm);
        matches!(role, Role::QNorm | Role::KNorm) && norm.is_some_and(|n| n.constant)
    }
}

/// The list of a model's tensors: those of the whole model, then those of each layer.
#[derive(Clone, Debug)]
pub(crate) struct Index {
    tensors: Vec<Tensor>,
    /// One index for each layer, of its first tensor in the list `tensors`; then, as
    /// the last entry, the length of that list.
    starts: Vec<usize>,
}

impl Index {
    /// Finds every tensor of the model's spec in the tensor directory of the file.
    /// Reads no tensor data.
    ///
    /// # Errors
    /// A tensor that is missing, or has another shape or an unsuitable format; a
    /// tensor of the file that the spec does not list.
    pub(crate) fn new(gguf: &Gguf, spec: &Spec) -> Result<Self, ModelError> {
        let (mut tensors, mut starts) = (Vec::new(), Vec::new());
        for tensor in spec.tensors() {
            if tensor.layer.is_some_and(|layer| layer == starts.len()) {
                starts.push(tensors.len());
            }
            tensors.push(describe(gguf, tensor)?);
        }
        starts.push(tensors.len());
        check_unknown(gguf, spec, &tensors)?;
        Ok(Self { tensors, starts })
    }

    /// Returns all tensors of the model.
    pub(crate) fn all(&self) -> &[Tensor] {
        &self.tensors
    }

    /// Returns the tensors of a layer or, for `None`, those of the whole model; none if
    /// there is no such layer.
    pub(crate) fn part(&self, layer: Option<usize>) -> &[Tensor] {
        let start = |i: usize| self.starts.get(i).copied();
        let range = match layer {
            None => Some(0..self.starts[0]),
            Some(i) => start(i).zip(start(i + 1)).map(|(from, to)| from..to),
        };
        range.map_or(&[], |range| &self.tensors[range])
    }

    /// Returns the model's tensor with this role (its purpose, such as the Q
    /// projection). `layer` is `None` for tensors of the whole model.
    pub(crate) fn get(&self, role: Role, layer: Option<usize>) -> Option<&Tensor> {
        self.part(layer).iter().find(|t| t.role == role)
    }
}

/// Looks up a tensor of the model's spec in the tensor directory of the file and checks
/// its shape and format.
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

/// Refuses a GGUF file with a tensor that is not in `taken`, the tensors that the model
/// uses.
fn check_unknown(gguf: &Gguf, spec: &Spec, taken: &[Tensor]) -> Result<(), ModelError> {
    let taken: HashSet<&str> = taken.iter().map(|t| t.name.as_str()).collect();
    let unknown = |t: &&TensorInfo| !taken.contains(t.name.as_str());
    match gguf.tensors().iter().find(unknown) {
        None => Ok(()),
        Some(info) => Err(ModelError::UnknownTensor {
            name: info.name.clone(),
            arch: spec.arch,
            layers: spec.layers.len(),
        }),
    }
}
