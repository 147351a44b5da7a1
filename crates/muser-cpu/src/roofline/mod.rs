//! Measures the machine's limits (its roofline): the read bandwidth, which bounds decode,
//! and the int8 multiply-add rate, which bounds prefill. Both use the kernels and the
//! thread team of the backend.

pub(crate) mod bandwidth;
mod caches;
pub(crate) mod int8_peak;

pub use caches::beyond_caches;
