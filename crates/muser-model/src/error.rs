//! Defines [`ModelError`]: why a model was refused or a forward pass failed.

use muser_quant::{DType, RowError};

/// Why a model was refused or a forward pass failed: the key, tensor or position, what
/// was expected, what was found.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    /// The GGUF file cannot be read, a metadata key has the wrong type, or the output
    /// failed.
    #[error(transparent)]
    Gguf(#[from] muser_gguf::Error),
    /// The backend refused a weight or an operation.
    #[error(transparent)]
    Op(#[from] muser_ops::OpError),
    /// A metadata value is not allowed by the model's architecture.
    #[error("metadata key {key:?}: expected {expected}, found {found}")]
    Config {
        /// The metadata key whose value is refused.
        key: String,
        /// The values that the architecture allows for the metadata key.
        expected: String,
        /// The value of the metadata key in the file.
        found: String,
    },
    /// The file asks for a feature that the forward pass does not compute.
    #[error("{arch}: {what} ({because}): expected none, which this version does not compute")]
    NotComputed {
        /// The architecture of the model, such as `llama`.
        arch: &'static str,
        /// The feature that the forward pass does not compute, such as experts.
        what: &'static str,
        /// The metadata key or tensor that asks for the feature.
        because: String,
    },
    /// A tensor that the model needs is not in the file.
    #[error("tensor {name:?}: expected dimensions {expected:?}, found no such tensor")]
    MissingTensor {
        /// The name of the tensor that is missing.
        name: String,
        /// The dimensions that the missing tensor should have, the row length first.
        expected: Vec<u64>,
    },
    /// A tensor has another shape than the metadata ask for.
    #[error("tensor {name:?}: expected dimensions {expected:?}, found {found:?}")]
    TensorShape {
        /// The name of the tensor whose shape is wrong.
        name: String,
        /// The tensor's dimensions that the metadata ask for, the row length first.
        expected: Vec<u64>,
        /// The tensor's dimensions in the file, the row length first.
        found: Vec<u64>,
    },
    /// A tensor has a weight format that nothing decodes or that is not allowed for it.
    #[error("tensor {name:?}: expected {expected}, found {found}")]
    TensorType {
        /// The name of the tensor whose weight format is refused.
        name: String,
        /// The weight formats that are allowed for the tensor.
        expected: &'static str,
        /// The tensor's weight format in the file.
        found: muser_gguf::GgmlType,
    },
    /// The bytes of a tensor are not whole rows of its weight format.
    #[error("tensor {name:?}: {source}")]
    Rows {
        /// The name of the tensor whose bytes are not whole rows.
        name: String,
        /// The error of decoding the tensor's rows.
        source: RowError,
    },
    /// The file has a tensor that the forward pass does not use. Its model computes
    /// something else, so its logits would be wrong without a sign.
    #[error("tensor {name:?}: expected no such tensor in a {arch} file of {layers} layers")]
    UnknownTensor {
        /// The name of the tensor that the forward pass does not use.
        name: String,
        /// The architecture of the model, such as `llama`.
        arch: &'static str,
        /// Number of layers of the model that the metadata give.
        layers: usize,
    },
    /// The weights of a QK norm (an RMS norm of each head of Q or K) differ where they
    /// must be equal.
    #[error("tensor {name:?}: expected one constant, {first} at index 0, found {found} at {index}")]
    NotConstant {
        /// The name of the QK norm's tensor.
        name: String,
        /// The index of the first weight that differs from the one at index 0.
        index: usize,
        /// The QK norm's weight at index 0.
        first: f32,
        /// The QK norm's weight at `index`.
        found: f32,
    },
    /// A norm weight is infinite or a NaN.
    #[error("tensor {name:?}: expected finite values, found {found} at index {index}")]
    NonFiniteNorm {
        /// The name of the norm's tensor.
        name: String,
        /// The index in the norm's tensor of the weight that is infinite or a NaN.
        index: usize,
        /// The norm weight that is infinite or a NaN.
        found: f32,
    },
    /// A forward pass was given more tokens than the KV cache has positions left.
    #[error("the context is full: {len} of {context} positions taken, {adding} more asked for")]
    ContextFull {
        /// Number of positions that the KV cache stores already.
        len: usize,
        /// Number of tokens that the forward pass was given to append.
        adding: usize,
        /// Number of positions that the KV cache can store.
        context: usize,
    },
    /// A forward pass was given a token id that is not in the vocabulary.
    #[error("token {token} at index {index}: expected an id below {vocab}")]
    Token {
        /// The index of the unknown token among the tokens given to the forward pass.
        index: usize,
        /// The token id that is not in the vocabulary.
        token: u32,
        /// Size of the vocabulary; token ids are below it.
        vocab: usize,
    },
    /// The forward pass computed a logit, or a value of the last state, that is
    /// infinite or a NaN.
    #[error("position {position}: expected finite logits, found {found} for token {token}")]
    NonFinite {
        /// The position in the sequence of the token whose logits were computed.
        position: usize,
        /// The first token id whose logit is not finite.
        token: usize,
        /// The logit that is infinite or a NaN.
        found: f32,
    },
    /// The KV cache lacks positions that the next token attends to: a failed forward
    /// pass overwrote them in the ring (last positions) of a layer with a sliding
    /// window.
    #[error(
        "the cache no longer holds the window before position {len}: expected it cut back further or cleared"
    )]
    CacheLost {
        /// Number of positions in the KV cache.
        len: usize,
    },
    /// The KV cache given to the forward pass was made by another model.
    #[error("cache: expected one made by this model, found another layout")]
    ForeignCache,
    /// The workspace (activation buffers) given to the forward pass was made by another
    /// model.
    #[error("workspace: expected one made by this model, found another model's")]
    ForeignWorkspace,
    /// A size asked for in a synthetic model is out of its range.
    #[error("geometry: {what}: expected {expected}, found {found}")]
    Geometry {
        /// The name of the synthetic model's size, such as `layers`.
        what: &'static str,
        /// The values allowed for the synthetic model's size.
        expected: String,
        /// The value given for the synthetic model's size.
        found: String,
    },
    /// A weight to convert is not finite in the target format.
    #[error("tensor {name:?}, row {row}: expected values that are finite as {to}, found {found}")]
    NotRepresentable {
        /// The name of the tensor that the weight belongs to.
        name: String,
        /// The row that the weight belongs to, counted over all dimensions of the
        /// tensor but the first.
        row: u64,
        /// The weight that is not finite in the target format.
        found: f32,
        /// The weight format that the tensor was to be converted to.
        to: DType,
    },
    /// The conversion's target is a weight format that
    /// [`convert`](crate::convert::convert) does not write.
    #[error("convert: expected F16, BF16 or F32, found {found}")]
    Target {
        /// The weight format that was asked for as the conversion's target.
        found: DType,
    },
}
