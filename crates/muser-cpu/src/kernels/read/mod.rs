//! Reads bytes of memory and folds them, to measure the read bandwidth, which bounds
//! decode. It is no operation of a model.
//!
//! ```text
//! for the lines of the bytes, eight at a time:
//!   prefetch the eight lines that lie AHEAD after them
//!   sums ^= lines                                    a load and an xor each
//! ```
//!
//! It prefetches as the product kernels do, so that it measures a bandwidth that they
//! could reach.
//!
//! Traffic: every byte once.

#[cfg(target_arch = "x86_64")]
pub(crate) mod avx2;
#[cfg(target_arch = "x86_64")]
pub(crate) mod avx512;
pub(crate) mod scalar;

/// How many bytes ahead of their use bytes are prefetched while the read bandwidth is
/// measured.
#[cfg(target_arch = "x86_64")]
pub(crate) const AHEAD: usize = 8192;

/// The number of bytes in one step of the loop that measures the read bandwidth.
pub(crate) const STEP: usize = 512;
