//! Why an operation was refused.

use crate::Lane;
use muser_quant::DType;

/// A refusal: the operation, what was expected, what was found.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OpError {
    /// A size that does not fit the operation.
    #[error("{op}: {what}: expected {expected}, found {found}")]
    Shape {
        /// The operation.
        op: &'static str,
        /// The size in question.
        what: &'static str,
        /// The size it needs.
        expected: usize,
        /// The size it was given.
        found: usize,
    },
    /// Bytes that are not `rows × cols` values of the format.
    #[error("tensor {name}: [{cols}, {rows}] of {dtype} is {expected}, found {found} bytes")]
    WeightBytes {
        /// The tensor.
        name: String,
        /// Its format.
        dtype: DType,
        /// Rows (outputs).
        rows: usize,
        /// Columns (inputs).
        cols: usize,
        /// What the shape asks for, in words.
        expected: String,
        /// Bytes given.
        found: usize,
    },
    /// A tensor that the backend has no kernel for.
    #[error("tensor {name}: expected {expected}, found {found}")]
    Tensor {
        /// The tensor.
        name: String,
        /// What the backend takes.
        expected: String,
        /// What it was given.
        found: String,
    },
    /// A weight format that the lane has no arithmetic for.
    #[error("tensor {name}: {dtype} has no arithmetic in the lane {lane}")]
    Format {
        /// The tensor.
        name: String,
        /// Its format.
        dtype: DType,
        /// The lane.
        lane: Lane,
    },
    /// No memory, or none within the bound that was set.
    #[error("{what}: expected room for {bytes} bytes, found {left}")]
    Memory {
        /// What the memory is for.
        what: &'static str,
        /// Bytes that it takes.
        bytes: u64,
        /// What is left, in words.
        left: String,
    },
    /// A token that the embedding table does not have.
    #[error("embed: token {token} is not in the vocabulary of {vocab}")]
    Token {
        /// The token id.
        token: u32,
        /// Rows of the table.
        vocab: usize,
    },
    /// A position that the cache cannot hold or no longer holds.
    #[error("attention: position {position} is outside the cache's {context}")]
    Position {
        /// The position.
        position: usize,
        /// Positions that the cache is laid out for.
        context: usize,
    },
    /// A geometry that the backend has no kernel for.
    #[error("{op}: {what} {found} is not supported: {expected}")]
    Unsupported {
        /// The operation.
        op: &'static str,
        /// The property.
        what: &'static str,
        /// Its value.
        found: usize,
        /// What is supported.
        expected: &'static str,
    },
}

impl OpError {
    /// `Ok` if the two sizes agree, else [`OpError::Shape`].
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

    /// `Ok` if `found` is at least `expected`, else [`OpError::Shape`].
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
