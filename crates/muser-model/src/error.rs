//! Why a model was refused or a forward pass stopped.

use muser_quant::{DType, RowError};

/// A refusal: the key, tensor or position, what was expected, what was found.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ModelError {
    /// The file, a key's type, or the output.
    #[error(transparent)]
    Gguf(#[from] muser_gguf::Error),
    /// The backend refused a weight or an operation.
    #[error(transparent)]
    Op(#[from] muser_ops::OpError),
    /// A metadata value that the architecture has no meaning for.
    #[error("metadata key {key:?}: expected {expected}, found {found}")]
    Config {
        /// The key.
        key: String,
        /// What the architecture asks for.
        expected: String,
        /// What the file says.
        found: String,
    },
    /// A knob that the architecture has and the forward pass does not compute.
    #[error("{arch}: {what} ({because}): expected none, which this version does not compute")]
    NotComputed {
        /// The architecture.
        arch: &'static str,
        /// The knob.
        what: &'static str,
        /// The key or tensor that asks for it.
        because: String,
    },
    /// A tensor that the configuration asks for is not there.
    #[error("tensor {name:?}: expected dimensions {expected:?}, found no such tensor")]
    MissingTensor {
        /// The tensor.
        name: String,
        /// Its dimensions, the row length first.
        expected: Vec<u64>,
    },
    /// A tensor's shape disagrees with the configuration.
    #[error("tensor {name:?}: expected dimensions {expected:?}, found {found:?}")]
    TensorShape {
        /// The tensor.
        name: String,
        /// Its dimensions by the configuration, the row length first.
        expected: Vec<u64>,
        /// Its dimensions in the file.
        found: Vec<u64>,
    },
    /// A tensor's format is one that nothing here decodes.
    #[error("tensor {name:?}: expected {expected}, found {found}")]
    TensorType {
        /// The tensor.
        name: String,
        /// The formats that serve.
        expected: &'static str,
        /// Its format in the file.
        found: muser_gguf::GgmlType,
    },
    /// Bytes that are not whole rows of the tensor's format.
    #[error("tensor {name:?}: {source}")]
    Rows {
        /// The tensor.
        name: String,
        /// What was wrong.
        source: RowError,
    },
    /// A tensor that the forward pass has no use for. The model it belongs to
    /// computes something else, so its numbers would be silently wrong.
    #[error("tensor {name:?}: expected no such tensor in a {arch} file of {layers} layers")]
    UnknownTensor {
        /// The tensor.
        name: String,
        /// The architecture.
        arch: &'static str,
        /// Layers by the configuration.
        layers: usize,
    },
    /// A QK norm that is a learned vector.
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
    /// A norm weight that is infinite or not a number.
    #[error("tensor {name:?}: expected finite values, found {found} at index {index}")]
    NonFiniteNorm {
        /// The tensor.
        name: String,
        /// Where.
        index: usize,
        /// The value.
        found: f32,
    },
    /// More tokens than the cache has room for.
    #[error("the context is full: {len} of {context} positions taken, {adding} more asked for")]
    ContextFull {
        /// Positions stored.
        len: usize,
        /// Tokens given.
        adding: usize,
        /// Positions that the cache was made for.
        context: usize,
    },
    /// A token id beyond the vocabulary.
    #[error("token {token} at index {index}: expected an id below {vocab}")]
    Token {
        /// Where in the call's tokens.
        index: usize,
        /// The id.
        token: u32,
        /// The vocabulary.
        vocab: usize,
    },
    /// A logit that is infinite or not a number: an error, never a result.
    #[error("position {position}: expected finite logits, found {found} for token {token}")]
    NonFinite {
        /// The position in the sequence.
        position: usize,
        /// The first token id with such a logit.
        token: usize,
        /// The logit.
        found: f32,
    },
    /// A forward pass that failed overwrote what the ring of a sliding layer
    /// held before position `len`.
    #[error(
        "the cache no longer holds the window before position {len}: expected it cut back further or cleared"
    )]
    CacheLost {
        /// Positions that the cache counts.
        len: usize,
    },
    /// A cache made by a model of another geometry.
    #[error("cache: expected one made by this model, found another layout")]
    ForeignCache,
    /// Buffers made by a model of another geometry.
    #[error("workspace: expected one made by this model, found another model's")]
    ForeignWorkspace,
    /// A geometry that no file can have.
    #[error("geometry: {what}: expected {expected}, found {found}")]
    Geometry {
        /// The size.
        what: &'static str,
        /// What it must be.
        expected: String,
        /// What it is.
        found: String,
    },
    /// A weight that the target format cannot hold.
    #[error("tensor {name:?}, row {row}: expected values that are finite as {to}, found {found}")]
    NotRepresentable {
        /// The tensor.
        name: String,
        /// The row, counted over all further dimensions.
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
