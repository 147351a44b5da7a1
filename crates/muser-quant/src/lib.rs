//! The packed formats of the weights in GGUF files, and of the activations that they are
//! multiplied with.
//!
//! Each format has one file, with a diagram of its bits, its type, the decoder, the
//! exact integer dot product with a block of activations ([`q8_k::BlockQ8K`] or
//! [`q8::BlockQ8`]), and a doctest that decodes a block of the diagram. Nothing in this
//! crate is fast: fast kernels are compared with it, so it is written to be obviously
//! right.
//!
//! | format | values in a block | bytes in a block | bytes of a value |
//! |---|---|---|---|
//! | [`q4_0`] | 32 | 18 | 0.5625 |
//! | [`q8_0`] | 32 | 34 | 1.0625 |
//! | [`q8`] (activations) | 32 | 36 | 1.125 |
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

/// The number of values in a superblock, the block of the K-quant formats (Q4_K, Q5_K,
/// Q6_K) and of the activations multiplied with them.
pub const QK: usize = 256;

/// The number of values in a group, the block of the formats with one float scale for
/// each 32 values (Q4_0, Q8_0) and of the activations multiplied with them.
pub const GROUP: usize = 32;

/// Copies the bytes `at .. at + N` of one packed block of weights into an array.
///
/// # Panics
/// If the block is shorter. Callers pass the offsets of their own layout.
pub(crate) fn field<const N: usize>(block: &[u8], at: usize) -> [u8; N] {
    let mut out = [0; N];
    out.copy_from_slice(&block[at..at + N]);
    out
}

/// Returns all bytes of one packed block of weights as an array of `N`.
///
/// # Panics
/// If the block is not `N` bytes long.
pub(crate) fn whole<const N: usize>(block: &[u8]) -> &[u8; N] {
    match block.try_into() {
        Ok(block) => block,
        Err(_) => panic!("a block of {N} bytes, found {}", block.len()),
    }
}
