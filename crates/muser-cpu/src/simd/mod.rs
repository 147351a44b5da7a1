//! The vector vocabulary: one module a level, the same names in each.
//!
//! A kernel body that is written once over these names (`v::load`, `v::fma`,
//! …) is compiled for a level by picking the module: `#[levels]`, as in
//! `kernels/norm.rs`. Functions are safe functions of their level (`#[level]`)
//! over slices: every length is checked here, so a kernel above them needs no
//! `unsafe`. This folder is one of the crate's few places that has any: the
//! memory intrinsics take pointers.
//!
//! Cost of the checks: they are hoisted or folded for the constant offsets of
//! a block, and measured below the noise elsewhere.

#[cfg(target_arch = "x86_64")]
pub(crate) mod avx2;
#[cfg(target_arch = "x86_64")]
pub(crate) mod avx512;
pub(crate) mod math;
pub(crate) mod scalar;
pub(crate) mod strided;
