//! [`ModelError`]: why a model was refused or a forward pass failed.

use muser_quant::{DType, RowError};

/// A refusal: the key, tensor or position, what was expected, what was found.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    /// The file cannot be read, a key has the wrong type, or the output failed.
    #[error(transparent)]
    Gguf(#[from] muser_gguf::Error),
    /// The backend refused a weight or an operation.
    #[error(transparent)]
    Op(#[from] muser_ops::OpError),
    /// A metadata value that the architecture does not allow.
    #[error("metadata key {key:?}: expected {expected}, found {found}")]
    Config {
        /// The key.
        key: String,
        /// What the architecture allows.
        expected: String,
        /// The value in the file.
        found: String,
    },
    /// A feature that the file asks for and the forward pass does not compute.
    #[error("{arch}: {what} ({because}): expected none, which this version does not compute")]
    NotComputed {
        /// The architecture.
        arch: &'static str,
        /// The feature.
        what: &'static str,
        /// The key or tensor that asks for it.
        because: String,
    },
    /// A tensor of the model is not in the file.
    #[error("tensor {name:?}: expected dimensions {expected:?}, found no such tensor")]
    MissingTensor {
        /// The tensor.
        name: String,
        /// Its dimensions, the row length first.
        expected: Vec<u64>,
    },
    /// A tensor has another shape than the metadata ask for.
    #[error("tensor {name:?}: expected dimensions {expected:?}, found {found:?}")]
    TensorShape {
        /// The tensor.
        name: String,
        /// Its dimensions by the metadata, the row length first.
        expected: Vec<u64>,
        /// Its dimensions in the file.
        found: Vec<u64>,
    },
    /// A tensor has a format that nothing decodes or that is not allowed for it.
    #[error("tensor {name:?}: expected {expected}, found {found}")]
    TensorType {
        /// The tensor.
        name: String,
        /// The formats that are allowed.
        expected: &'static str,
        /// Its format in the file.
        found: muser_gguf::GgmlType,
    },
    /// The bytes of a tensor are not whole rows of its format.
    #[error("tensor {name:?}: {source}")]
    Rows {
        /// The tensor.
        name: String,
        /// The reason.
        source: RowError,
    },
    /// A tensor that the forward pass does not use. Its model computes something
    /// else, so its logits would be wrong without a sign.
    #[error("tensor {name:?}: expected no such tensor in a {arch} file of {layers} layers")]
    UnknownTensor {
        /// The tensor.
        name: String,
        /// The architecture.
        arch: &'static str,
        /// Number of layers by the metadata.
        layers: usize,
    },
    /// The weights of a QK norm differ and must be equal.
    #[error("tensor {name:?}: expected one constant, {first} at index 0, found {found} at {index}")]
    NotConstant {
        /// The tensor.
        name: String,
        /// The first index whose value differs.
        index: usize,
        /// The value at index 0.
        first: f32,
        /// The value at `index`.
        found: f32,
    },
    /// A norm weight is infinite or a NaN.
    #[error("tensor {name:?}: expected finite values, found {found} at index {index}")]
    NonFiniteNorm {
        /// The tensor.
        name: String,
        /// Its index in the tensor.
        index: usize,
        /// The value.
        found: f32,
    },
    /// More tokens than the cache can store.
    #[error("the context is full: {len} of {context} positions taken, {adding} more asked for")]
    ContextFull {
        /// Number of positions stored.
        len: usize,
        /// Number of tokens given.
        adding: usize,
        /// Number of positions of the cache.
        context: usize,
    },
    /// A token id beyond the vocabulary.
    #[error("token {token} at index {index}: expected an id below {vocab}")]
    Token {
        /// Its index in the tokens of the call.
        index: usize,
        /// The id.
        token: u32,
        /// Size of the vocabulary.
        vocab: usize,
    },
    /// A logit is infinite or a NaN.
    #[error("position {position}: expected finite logits, found {found} for token {token}")]
    NonFinite {
        /// The position in the sequence.
        position: usize,
        /// The first token id with such a logit.
        token: usize,
        /// The logit.
        found: f32,
    },
    /// A failed forward pass overwrote the window before position `len` in the ring
    /// of a sliding layer.
    #[error(
        "the cache no longer holds the window before position {len}: expected it cut back further or cleared"
    )]
    CacheLost {
        /// Number of positions in the cache.
        len: usize,
    },
    /// A cache that another model made.
    #[error("cache: expected one made by this model, found another layout")]
    ForeignCache,
    /// A workspace that another model made.
    #[error("workspace: expected one made by this model, found another model's")]
    ForeignWorkspace,
    /// A size of a synthetic model that no file can have.
    #[error("geometry: {what}: expected {expected}, found {found}")]
    Geometry {
        /// The size.
        what: &'static str,
        /// Its range.
        expected: String,
        /// Its value.
        found: String,
    },
    /// A weight is not finite in the target format.
    #[error("tensor {name:?}, row {row}: expected values that are finite as {to}, found {found}")]
    NotRepresentable {
        /// The tensor.
        name: String,
        /// Its row, counted over all further dimensions.
        row: u64,
        /// The value.
        found: f32,
        /// The format asked for.
        to: DType,
    },
    /// A format that [`convert`](crate::convert::convert) does not write.
    #[error("convert: expected F16, BF16 or F32, found {found}")]
    Target {
        /// The format asked for.
        found: DType,
    },
}
