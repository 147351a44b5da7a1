//! The kernels: a folder a family, a file an instruction-set level.
//!
//! A family's `mod.rs` holds its contract, its pseudo-code and its memory
//! traffic; the level files open with what the instructions cost. The names in
//! [`table`] (`matvec/q4_k/avx512`) are the paths here.

pub(crate) mod attention;
pub(crate) mod elementwise;
pub(crate) mod flash;
pub(crate) mod ggml_dot;
pub(crate) mod int8_peak;
pub(crate) mod kv_store;
pub(crate) mod lanes;
pub(crate) mod matvec;
pub(crate) mod norm;
pub(crate) mod quantize;
pub(crate) mod read;
pub(crate) mod rope;
pub(crate) mod slab;
#[expect(
    unsafe_code,
    reason = "a kernel may be called only where its level is present"
)]
pub(crate) mod table;
