//! [`OpError`]: why a backend refused an operation.

use crate::Lane;
use muser_quant::DType;

/// A refused operation: which one, what it expected and what it found.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OpError {
    /// A size of an operand does not fit the operation.
    #[error("{op}: {what}: expected {expected}, found {found}")]
    Shape {
        /// The operation.
        op: &'static str,
        /// Which size: `width`, `heads`, …
        what: &'static str,
        /// The size that the operation needs.
        expected: usize,
        /// The size that the operand has.
        found: usize,
    },
    /// The bytes of a tensor are not `rows × cols` values of its format.
    #[error("tensor {name}: [{cols}, {rows}] of {dtype} is {expected}, found {found} bytes")]
    WeightBytes {
        /// The tensor.
        name: String,
        /// Its format.
        dtype: DType,
        /// The number of rows: outputs.
        rows: usize,
        /// The number of columns: inputs.
        cols: usize,
        /// The number of bytes that the shape needs, in words.
        expected: String,
        /// The number of bytes that were given.
        found: usize,
    },
    /// The backend has no kernel for a tensor.
    #[error("tensor {name}: expected {expected}, found {found}")]
    Tensor {
        /// The tensor.
        name: String,
        /// What the backend accepts.
        expected: String,
        /// What the tensor has.
        found: String,
    },
    /// The lane has no arithmetic for a weight format.
    #[error("tensor {name}: {dtype} has no arithmetic in the lane {lane}")]
    Format {
        /// The tensor.
        name: String,
        /// Its format.
        dtype: DType,
        /// The lane.
        lane: Lane,
    },
    /// There is no memory left, or none within the bound that the caller has set.
    #[error("{what}: expected room for {bytes} bytes, found {left}")]
    Memory {
        /// What the memory is for.
        what: &'static str,
        /// The number of bytes asked for.
        bytes: u64,
        /// The memory that is left, in words.
        left: String,
    },
    /// The embedding table has no row for a token.
    #[error("embed: token {token} is not in the vocabulary of {vocab}")]
    Token {
        /// The token id.
        token: u32,
        /// The number of rows in the table.
        vocab: usize,
    },
    /// The cache cannot hold a position, or no longer holds it.
    #[error("attention: position {position} is outside the cache's {context}")]
    Position {
        /// The position.
        position: usize,
        /// The number of positions that the cache can hold, or holds where one is
        /// missing.
        context: usize,
    },
    /// The backend has no kernel for an operand of this shape.
    #[error("{op}: {what} {found} is not supported: {expected}")]
    Unsupported {
        /// The operation.
        op: &'static str,
        /// The property that is not supported: `head size`, …
        what: &'static str,
        /// Its value.
        found: usize,
        /// The values that are supported, in words.
        expected: &'static str,
    },
}

impl OpError {
    /// Returns `Ok` if the two sizes are equal, else [`OpError::Shape`].
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

    /// Returns `Ok` if `found` is at least `expected`, else [`OpError::Shape`].
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
