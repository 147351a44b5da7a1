//! Q4_K rows with one to seven Q8_K vectors, by lanes.
//!
//! A lane of a superblock sums 32 products of a code (15), an activation (127)
//! and a scale (63): below 2^22.

#[cfg(target_arch = "x86_64")]
pub(crate) mod avx2;
#[cfg(target_arch = "x86_64")]
pub(crate) mod avx512;
pub(crate) mod scalar;

/// What stands beside the codes.
pub(crate) const MINIMA: u8 = super::minima::LANES;
