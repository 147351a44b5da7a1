//! Q4_K rows with Q8_K activations, a lane a row.
//!
//! Bounds: a sub-block of 32 products is below 2^16, its product with a
//! scale below 2^22; a superblock's sum below 2^25.

#[cfg(target_arch = "x86_64")]
pub(crate) mod avx2;
#[cfg(target_arch = "x86_64")]
pub(crate) mod avx512;
pub(crate) mod scalar;

pub(crate) use muser_quant::q4_k::BYTES;

/// The format.
pub(crate) struct This;

impl super::Format for This {
    const SUB_BLOCKS: usize = 8;
    const SIGNED: bool = false;
    const TOGETHER: usize = 8;
    const PAIRED: usize = 2;
}
