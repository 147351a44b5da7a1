//! Q5_K rows with Q8_K activations.
//!
//! 176 bytes a superblock; Q4_K with a fifth bit merged into each code. Bounds:
//! four products of a code (31) and an activation (127) are below 2^14.

#[cfg(target_arch = "x86_64")]
pub(crate) mod avx2;
#[cfg(target_arch = "x86_64")]
pub(crate) mod avx512;
pub(crate) mod scalar;
