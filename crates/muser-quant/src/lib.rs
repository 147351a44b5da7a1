//! The packed formats of GGUF weights, and of the activations they meet.
//!
//! One file a format. Each holds the bit diagram, the struct with its size
//! assertion, the decoder, the exact integer dot product of one block with one
//! [`q8_k::BlockQ8K`], and a doctest that decodes the bytes drawn above it.
//! Nothing here is fast: this crate is what fast kernels are compared with, so
//! it is written to be obviously right.
//!
//! | format | values a block | bytes a block | bytes a value |
//! |---|---|---|---|
//! | [`q4_k`] | 256 | 144 | 0.5625 |
//! | [`q5_k`] | 256 | 176 | 0.6875 |
//! | [`q6_k`] | 256 | 210 | 0.8203 |
//! | [`q8_k`] (activations) | 256 | 292 | 1.1406 |
//! | [`f16`](mod@f16), [`bf16`] | 1 | 2 | 2 |
//! | [`f32`](mod@f32) | 1 | 4 | 4 |
#![forbid(unsafe_code)]

pub mod bf16;
mod dtype;
pub mod f16;
pub mod f32;
mod formats;
mod packed_scales;
pub mod q4_0;
pub mod q4_k;
pub mod q5_k;
pub mod q6_k;
pub mod q8;
pub mod q8_0;
pub mod q8_k;

pub use dtype::{DType, RowError};
pub use formats::{
    Arithmetic, Float, FloatCodes, Format, Group, GroupCodes, Layout, Sums, SuperCodes, Superblock,
};

/// Values in one K-quant superblock, of weights and of activations alike.
pub const QK: usize = 256;

/// Values in one group, of weights and of activations alike.
pub const GROUP: usize = 32;

/// The bytes `at .. at + N` of a block, as an array.
///
/// Only for offsets that the format's own layout guarantees.
pub(crate) fn field<const N: usize>(block: &[u8], at: usize) -> [u8; N] {
    let mut out = [0; N];
    out.copy_from_slice(&block[at..at + N]);
    out
}

/// All bytes of a block, as an array.
///
/// # Panics
/// If there are not `N`.
pub(crate) fn whole<const N: usize>(block: &[u8]) -> &[u8; N] {
    match block.try_into() {
        Ok(block) => block,
        Err(_) => panic!("a block of {N} bytes, found {}", block.len()),
    }
}
