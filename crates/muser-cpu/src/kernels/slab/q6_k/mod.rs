//! Q6_K rows with Q8_K activations, a lane a row.
//!
//! Bounds: a sub-block of 16 products is below 2^17, its product with a
//! scale below 2^24; a superblock's sum below 2^28.

#[cfg(target_arch = "x86_64")]
pub(crate) mod avx2;
#[cfg(target_arch = "x86_64")]
pub(crate) mod avx512;
pub(crate) mod scalar;

pub(crate) use muser_quant::q6_k::BYTES;

/// The format.
pub(crate) struct This;

impl super::Format for This {
    const SUB_BLOCKS: usize = 16;
    const SIGNED: bool = true;
    const TOGETHER: usize = 2;
    const PAIRED: usize = 32;
}
