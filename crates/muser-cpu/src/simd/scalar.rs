//! The vector functions of the scalar instruction-set level: a vector is one value, and
//! the code is portable.
//!
//! Without the FMA feature, `mul_add` is a call of the platform's `fmaf`, which is exact but
//! slow (2 to 3 ns). That is the price of the same bits on a machine without the
//! instruction.

pub(crate) mod slab;

pub(crate) use super::math::scalar::{exp, exp_pinned, sigmoid, silu, tanh, tanh_glibc};

use muser_quant::{bf16, f16};

/// A vector of the scalar level: one f32 value.
pub(crate) type V = f32;
/// The number of f32 elements in a vector of the scalar level: one.
pub(crate) const ELEMENTS: usize = 1;
/// The number of query heads that attention computes at once at the scalar level.
pub(crate) const HEAD_BLOCK: usize = 2;

pub(crate) fn load(x: &[f32], at: usize) -> V {
    x[at]
}
pub(crate) fn store(x: &mut [f32], at: usize, v: V) {
    x[at] = v;
}
pub(crate) fn load_f32_bytes(x: &[u8], at: usize) -> V {
    f32::from_le_bytes([x[4 * at], x[4 * at + 1], x[4 * at + 2], x[4 * at + 3]])
}
pub(crate) fn load_f16_bytes(x: &[u8], at: usize) -> V {
    f16::to_f32(u16::from_le_bytes([x[2 * at], x[2 * at + 1]]))
}
pub(crate) fn load_bf16_bytes(x: &[u8], at: usize) -> V {
    bf16::to_f32(u16::from_le_bytes([x[2 * at], x[2 * at + 1]]))
}
pub(crate) fn load_f16(x: &[u16], at: usize) -> V {
    f16::to_f32(x[at])
}
pub(crate) fn store_f16(x: &mut [u16], at: usize, v: V) {
    x[at] = f16::from_f32(v);
}
/// Rounds each element of a vector to f16 and converts it back to f32.
pub(crate) fn half(x: V) -> V {
    f16::to_f32(f16::from_f32(x))
}
pub(crate) fn splat(x: f32) -> V {
    x
}
pub(crate) fn add(a: V, b: V) -> V {
    a + b
}
pub(crate) fn sub(a: V, b: V) -> V {
    a - b
}
pub(crate) fn mul(a: V, b: V) -> V {
    a * b
}
pub(crate) fn div(a: V, b: V) -> V {
    a / b
}
/// Computes a · b + c in each element of three vectors, rounded once.
pub(crate) fn fma(a: V, b: V, c: V) -> V {
    a.mul_add(b, c)
}
/// Computes a > b ? a : b in each element of two vectors: b if either is NaN.
pub(crate) fn max(a: V, b: V) -> V {
    if a > b { a } else { b }
}
/// Computes a < b ? a : b in each element of two vectors: b if either is NaN.
pub(crate) fn min(a: V, b: V) -> V {
    if a < b { a } else { b }
}
pub(crate) fn round(a: V) -> V {
    a.round_ties_even()
}
pub(crate) fn trunc(a: V) -> V {
    a.trunc()
}
/// Computes glibc's expf of each element of a vector, as
/// `muser_ops::pinned::glibc::expf` defines it.
pub(crate) fn exp_glibc(x: V) -> V {
    muser_ops::pinned::glibc::expf(x)
}
pub(crate) fn abs(a: V) -> V {
    a.abs()
}
/// Combines the magnitude of `a` with the sign of `s` in each element of two vectors.
pub(crate) fn copysign(a: V, s: V) -> V {
    a.copysign(s)
}
/// Computes a < b ? x : y in each element of four vectors.
pub(crate) fn select_lt(a: V, b: V, x: V, y: V) -> V {
    if a < b { x } else { y }
}
/// Multiplies each element of p by a power of two in two steps, p · 2^(n >> 1) · 2^(n -
/// (n >> 1)), for integral n, |n| <= 152.
pub(crate) fn scale_by_power(p: V, n: V) -> V {
    let n = n as i32;
    let half = n >> 1;
    let power = |k: i32| f32::from_bits(((k + 127) as u32) << 23);
    p * power(half) * power(n - half)
}
/// Rotates no pairs of a rotary position encoding and returns 0: the scalar level has
/// no whole vectors of pairs, and the caller's loop rotates all of them.
pub(crate) fn rotate_pairs(x: &mut [f32], cos: &[f32], sin: &[f32]) -> usize {
    let _ = (x, cos, sin);
    0
}
/// Returns the sum of a vector's elements at the scalar level: its only element.
pub(crate) fn halve(v: V) -> f32 {
    v
}

/// Adds the `L` values of a slice from `at` on, by halves: the upper half to the lower
/// one until one value is left.
pub(crate) fn fold_group<const L: usize>(x: &[f32], at: usize) -> f32 {
    muser_ops::pinned::dot::fold(&x[at..at + L], L)
}
