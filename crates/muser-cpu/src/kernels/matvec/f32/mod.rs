//! F32 weights with f32 activations, by the 256-lane reduction.
//!
//! 4 bytes a weight and no unpacking but a conversion: bound by the memory at
//! one column. 256 / LANES accumulators hide the latency of the fma.

#[cfg(target_arch = "x86_64")]
pub(crate) mod avx2;
#[cfg(target_arch = "x86_64")]
pub(crate) mod avx512;
pub(crate) mod scalar;
