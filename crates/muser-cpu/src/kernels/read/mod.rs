//! The read bandwidth: bytes loaded and folded, nothing else. No operation of a
//! model; what decode is measured against.
//!
//! ```text
//! for the lines of the bytes, eight at a time:
//!   prefetch the eight lines that lie AHEAD after them
//!   sums ^= lines                                   a load and an xor each
//! ```
//!
//! Prefetched as the kernels of weights do it, so that the measure is of what
//! they could reach.
//!
//! Traffic: every byte once.

#[cfg(target_arch = "x86_64")]
pub(crate) mod avx2;
#[cfg(target_arch = "x86_64")]
pub(crate) mod avx512;
pub(crate) mod scalar;

/// How far ahead bytes are prefetched.
#[cfg(target_arch = "x86_64")]
pub(crate) const AHEAD: usize = 8192;

/// Bytes of one step.
pub(crate) const STEP: usize = 512;
