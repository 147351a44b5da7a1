//! Q5_K rows with panels of Q8_K activations.
//!
//! Bounds: a sub-block of 32 products is below 2^17, its product with a
//! scale below 2^24; a superblock's sum below 2^28.

#[cfg(target_arch = "x86_64")]
pub(crate) mod avx2;
#[cfg(target_arch = "x86_64")]
pub(crate) mod avx512;
pub(crate) mod scalar;

pub(crate) use muser_quant::q5_k::BYTES;
/// Sub-blocks with a scale of their own.
pub(crate) const SUB_BLOCKS: usize = 8;
/// Whether the codes are 32 too large and the scales signed, without minima.
pub(crate) const SIGNED: bool = false;
