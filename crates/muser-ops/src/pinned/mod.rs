//! The pinned lane: the bits that llama.cpp computes, for named reference profiles
//! (builds of llama.cpp with their settings).
//!
//! The lane's reference is llama.cpp itself (`crates/muser-reference`, run by
//! `cargo xtask parity`). The scalar functions of these modules compute the same bits.
//! [`Oracle`] runs whole models on them, and fast kernels are compared with them where
//! llama.cpp is not at hand.
//!
//! There are two profiles. They differ in the vector width, which decides the order of
//! float sums, and in the last steps of the exponential. The two lanes (muser's own
//! arithmetic, and llama.cpp's) share the embedding, the quantised activations
//! ([`crate::project::quantize`]) and the f16 KV cache, which are not repeated here.
//! Values that are not finite are not covered.
//!
//! GCC's contraction is part of the arithmetic: a multiply and an add that are separate
//! in llama.cpp's source are one fma in its object code. This concerns the tiled
//! products and the Q5_K minimum ([`project`](mod@project)), the last few F32 values of
//! a row and BF16 ([`dot`]), the rotation ([`rope`](mod@rope)), and the sums of
//! attention ([`attention`]).

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

/// Checks that the pinned lane (llama.cpp's arithmetic) covers an attention head of this
/// size.
///
/// # Errors
/// `head_dim` is not a multiple of 8.
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
