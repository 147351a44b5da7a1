//! Q4_K rows with Q8_K activations.
//!
//! 144 bytes a superblock. Bounds: four products of a code (15) and an
//! activation (127) are below 2^13, so pairs of quads fit in i16; the sum of a
//! superblock is below 2^25.

#[cfg(target_arch = "x86_64")]
pub(crate) mod avx2;
#[cfg(target_arch = "x86_64")]
pub(crate) mod avx512;
pub(crate) mod scalar;
