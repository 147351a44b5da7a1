//! [`OpError`]: why a backend refused an operation of the forward pass, or a weight.

use crate::Lane;
use muser_quant::DType;

/// The error of an operation that a backend refused: which one, what it expected and
/// what it found.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OpError {
    /// A size of an operand (a buffer, a projection set, …) does not fit the operation.
    #[error("{op}: {what}: expected {expected}, found {found}")]
    Shape {
        /// The name of the operation whose operand has a wrong size: `embed`, …
        op: &'static str,
        /// The name of the size that is wrong: `width`, `heads`, …
        what: &'static str,
        /// The size that the operation needs its operand to have.
        expected: usize,
        /// The size that the operand of the refused operation has.
        found: usize,
    },
    /// The bytes of a weight tensor are not `rows × cols` values of its format.
    #[error("tensor {name}: [{cols}, {rows}] of {dtype} is {expected}, found {found} bytes")]
    WeightBytes {
        /// The name of the tensor whose bytes do not fit its shape.
        name: String,
        /// The weight format of the tensor whose bytes do not fit its shape.
        dtype: DType,
        /// The number of rows of the weight tensor: outputs of its projection.
        rows: usize,
        /// The number of columns of the weight tensor: inputs of its projection.
        cols: usize,
        /// The number of bytes that the tensor's shape needs, in words.
        expected: String,
        /// The number of bytes that were given for the tensor.
        found: usize,
    },
    /// The backend has no kernel for a weight tensor, or for its bias.
    #[error("tensor {name}: expected {expected}, found {found}")]
    Tensor {
        /// The name of the tensor that the backend has no kernel for.
        name: String,
        /// What the backend accepts for this tensor, in words.
        expected: String,
        /// What the tensor has instead of what the backend accepts, in words.
        found: String,
    },
    /// The lane (one of muser's two arithmetics) does not cover a weight format.
    #[error("tensor {name}: {dtype} has no arithmetic in the lane {lane}")]
    Format {
        /// The name of the tensor whose weight format the lane (strict or pinned
        /// arithmetic) does not cover.
        name: String,
        /// The weight format that the lane has no arithmetic for.
        dtype: DType,
        /// The lane (strict or pinned arithmetic) that does not cover the format.
        lane: Lane,
    },
    /// There is no memory left, or none within the bound that the caller has set.
    #[error("{what}: expected room for {bytes} bytes, found {left}")]
    Memory {
        /// The name of what the memory was asked for.
        what: &'static str,
        /// The number of bytes of memory that were asked for.
        bytes: u64,
        /// The amount of memory that is left, in words.
        left: String,
    },
    /// The embedding table has no row for a token.
    #[error("embed: token {token} is not in the vocabulary of {vocab}")]
    Token {
        /// The id of the token that has no row in the embedding table.
        token: u32,
        /// The number of rows in the embedding table: the size of the vocabulary.
        vocab: usize,
    },
    /// The position of a token in a batch is past the end of the KV cache, or leaves a gap
    /// after the positions that are stored in it.
    #[error("attention: position {position} is outside the cache's {context}")]
    Position {
        /// The position, in its sequence, of the token that the KV cache has no place for.
        position: usize,
        /// The number of positions that the KV cache can hold; where the batch leaves a
        /// gap, the number that are stored in it.
        context: usize,
    },
    /// The backend has no kernel for an operand of this shape, such as a head size.
    #[error("{op}: {what} {found} is not supported: {expected}")]
    Unsupported {
        /// The name of the operation that has no kernel for its operand: `rope`, …
        op: &'static str,
        /// The name of the operand's property that is not supported: `head size`, …
        what: &'static str,
        /// The value of the operand's property that is not supported.
        found: usize,
        /// The values of the property that the backend supports, in words.
        expected: &'static str,
    },
}

impl OpError {
    /// Checks that an operand's size is the expected one: `Ok` if the two are equal,
    /// else [`OpError::Shape`].
    pub fn check(
        op: &'static str,
        what: &'static str,
        expected: usize,
        found: usize,
    ) -> Result<(), Self> {
        if expected == found {
            Ok(())
        } else {
            Err(Self::Shape {
                op,
                what,
                expected,
                found,
            })
        }
    }

    /// Checks that an operand has room: `Ok` if `found` is at least `expected`, else
    /// [`OpError::Shape`].
    pub fn check_room(
        op: &'static str,
        what: &'static str,
        expected: usize,
        found: usize,
    ) -> Result<(), Self> {
        if found >= expected {
            Ok(())
        } else {
            Err(Self::Shape {
                op,
                what,
                expected,
                found,
            })
        }
    }
}
