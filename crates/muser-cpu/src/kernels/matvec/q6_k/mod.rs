//! Q6_K rows with Q8_K activations.
//!
//! 210 bytes a superblock. The codes are used as they stand, 0..=63, and 32
//! times the scaled sums of the activations is taken off in integers. Bounds:
//! four products of a code (63) and an activation (127) are 32,004, just inside
//! i16; the sum of a superblock, before the correction, is below 2^28.

#[cfg(target_arch = "x86_64")]
pub(crate) mod avx2;
#[cfg(target_arch = "x86_64")]
pub(crate) mod avx512;
pub(crate) mod scalar;
