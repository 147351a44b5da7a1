//! What the machine allows: the read bandwidth, which bounds decode, and the
//! int8 multiply-add rate, which bounds prefill. Both are measured with the
//! kernels and the thread team of the backend.

pub(crate) mod bandwidth;
mod caches;
pub(crate) mod int8_peak;

pub use caches::beyond_caches;
