//! The CPU backend's kernels, by family (operation) and instruction-set level (scalar,
//! avx2, avx512).
//!
//! A family whose code is the same at all levels is one file, written once over the
//! functions of [`crate::simd`] (`#[levels]`). A family whose levels differ is a folder:
//! `mod.rs` has its contract, pseudo-code and memory traffic, each level has a file that
//! begins with the cost in instructions, and code that the levels share is in
//! `driver.rs`. Kernels are generic over the weight format: the name
//! `matvec/q4_k/avx512` of the inventory ([`table`], [`products`]) means the function of
//! `matvec/superblocks/avx512.rs` for Q4_K.

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
