//! The SIMD vector functions of each instruction-set level (scalar, avx2, avx512): one
//! module for each, with the same names.
//!
//! A kernel that is written once with these names (`v::load`, `v::fma`, …) is compiled for
//! every level by `#[levels]`, as in `kernels/norm.rs`. The functions are safe functions of
//! their level (`#[level]`) over slices. They check every length, so that kernels need no
//! `unsafe`. This folder is one of the few that have any, because the intrinsics for loads
//! and stores take pointers.
//!
//! A vector is a value of the type `V` with `ELEMENTS` elements. A parameter `at` is the
//! index of the first value in a slice.
//!
//! The compiler hoists or removes the checks for the constant offsets in a block; elsewhere
//! their cost is below the noise of measurement.

#[cfg(target_arch = "x86_64")]
pub(crate) mod avx2;
#[cfg(target_arch = "x86_64")]
pub(crate) mod avx512;
pub(crate) mod math;
pub(crate) mod scalar;
pub(crate) mod strided;
