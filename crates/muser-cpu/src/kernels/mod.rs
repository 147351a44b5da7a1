//! The kernels, by family and instruction-set level.
//!
//! A family that is the same at all levels is a file, written once over the
//! vocabulary of [`crate::simd`] (`#[levels]`). One whose levels differ is a folder:
//! `mod.rs` holds its contract, its pseudo-code and its memory traffic, and a file a
//! level opens with what the instructions cost; what the levels share stands in
//! `driver.rs`. Kernels are generic over the weight format: `matvec/q4_k/avx512`, a
//! name of the inventory ([`table`], [`products`]), is the Q4_K of
//! `matvec/superblocks/avx512.rs`.

pub(crate) mod attention;
pub(crate) mod codes;
pub(crate) mod elementwise;
pub(crate) mod int8_peak;
pub(crate) mod kv_store;
pub(crate) mod matvec;
pub(crate) mod norm;
pub(crate) mod pinned;
pub(crate) mod products;
pub(crate) mod quantize;
pub(crate) mod read;
pub(crate) mod rope;
pub(crate) mod slab;
#[expect(
    unsafe_code,
    reason = "a kernel may be called only where its level is present"
)]
pub(crate) mod table;
