//! The pinned lane: llama.cpp's own bits, by named reference profile.
//!
//! Its oracle is llama.cpp itself (`crates/muser-reference`, run by `cargo
//! xtask parity`). The scalar functions here say the same in our words,
//! [`Oracle`] runs whole models on them, and fast kernels are compared with
//! them where llama.cpp is not at hand.
//!
//! Everything is written for two profiles that differ in the lanes of a float
//! vector and in the end of the exponential. What is common to both lanes is
//! not repeated: the embedding's rows, the quantised activations
//! ([`crate::project::quantize`]) and the f16 of the cache are the strict
//! lane's. What is not finite is not covered.
//!
//! In three modules GCC's contraction is part of the arithmetic, a multiply
//! and an add that are apart in llama.cpp's source and one instruction in its
//! object code: the tiled products and the Q5_K minimum ([`project`](mod@project)),
//! the last few F32 values of a row and BF16 ([`dot`]), the rotation
//! ([`rope`](mod@rope)), the sums of attention ([`attention`]).

pub mod attention;
pub mod dot;
pub mod elementwise;
pub mod glibc;
pub mod math;
pub mod norm;
mod oracle;
pub mod project;
pub mod rope;

pub use oracle::Oracle;

use crate::OpError;

/// Refuses a head size that the lane does not cover.
pub fn check_head(op: &'static str, head_dim: usize) -> Result<(), OpError> {
    if head_dim.is_multiple_of(8) {
        return Ok(());
    }
    Err(OpError::Unsupported {
        op,
        what: "head size",
        found: head_dim,
        expected: "in the pinned lane, a multiple of 8 (GCC fuses whole vectors only)",
    })
}
