//! Computes exp, sigmoid, SiLU and tanh of vectors: in each element, the function of
//! `muser_ops::math`.
//!
//! The code is the same for all levels. Branches of the scalar functions become
//! selections: both sides are computed, about 25 instructions for tanh.

use muser_levels::levels;

/// The math functions of vectors, compiled for each instruction-set level: `exp`,
/// `sigmoid`, `silu`, `tanh`, and those of the pinned lane (llama.cpp's arithmetic).
#[levels]
pub(crate) mod functions {
    use crate::simd::level::{
        V, abs, add, copysign, div, fma, max, min, mul, round, scale_by_power, select_lt, splat,
        sub, trunc,
    };
    use muser_ops::math as constants;
    use muser_ops::pinned::{glibc, math as pinned};

    /// The constant 2^127: the first of the two factors by which [`exp_pinned`], for the
    /// build of llama.cpp with vectors of 8, computes a power above 2^126.
    const FIRST_UP: f32 = f32::from_bits(0x7f00_0000);
    /// The constant 2^-125: the first of the two factors by which [`exp_pinned`], for the
    /// build of llama.cpp with vectors of 8, computes a power below 2^-126.
    const FIRST_DOWN: f32 = f32::from_bits(0x0100_0000);

    /// Computes e^x in each element of a vector.
    #[inline]
    pub(crate) fn exp(x: V) -> V {
        let x = max(splat(constants::EXP_MIN), min(splat(constants::EXP_MAX), x));
        let n = round(mul(x, splat(constants::LOG2_E)));
        let r = fma(n, splat(-constants::LN2_HI), x);
        let r = fma(n, splat(-constants::LN2_LO), r);
        let [c0, c1, c2, c3, c4] = constants::EXP_POLY;
        let mut p = splat(c4);
        for c in [c3, c2, c1, c0, 1.0, 1.0] {
            p = fma(p, r, splat(c));
        }
        scale_by_power(p, n)
    }

    /// Computes the sigmoid 1 / (1 + e^-x) in each element of a vector.
    #[inline]
    pub(crate) fn sigmoid(x: V) -> V {
        let one = splat(1.0);
        div(one, add(one, exp(negate(x))))
    }

    /// Computes SiLU, x / (1 + e^-x), in each element of a vector.
    #[inline]
    pub(crate) fn silu(x: V) -> V {
        div(x, add(splat(1.0), exp(negate(x))))
    }

    /// Computes -x in each element of a vector. The subtraction from -0 is exact, also
    /// for zeros of either sign.
    #[inline]
    fn negate(x: V) -> V {
        sub(splat(-0.0), x)
    }

    /// Computes tanh x in each element of a vector.
    #[inline]
    pub(crate) fn tanh(x: V) -> V {
        let a = abs(x);
        let z = mul(a, a);
        let [c0, c1, c2, c3, c4] = constants::TANH_POLY;
        let mut p = splat(c4);
        for c in [c3, c2, c1, c0] {
            p = fma(p, z, splat(c));
        }
        let small = fma(mul(a, z), p, a);
        let one = splat(1.0);
        let large = sub(one, div(splat(2.0), add(exp(add(a, a)), one)));
        copysign(select_lt(a, splat(constants::TANH_SPLIT), small, large), x)
    }

    /// Computes glibc's tanhf of each element of a vector, as
    /// `muser_ops::pinned::glibc::tanhf` defines it.
    #[inline]
    pub(crate) fn tanh_glibc(x: V) -> V {
        let (one, two) = (splat(1.0), splat(2.0));
        let a = min(splat(glibc::TANH_MAX), abs(x));
        let double = add(a, a);
        let t = expm1_glibc(select_lt(a, one, negate(double), double));
        let sum = add(t, two);
        let large = sub(one, div(two, sum));
        let small = div(negate(t), sum);
        copysign(select_lt(a, one, small, large), x)
    }

    /// Computes glibc's expm1 of each element of a vector, for [`tanh_glibc`], whose
    /// arguments are 2 |x| or -2 |x| of a limited |x|. All branches are computed and one
    /// is selected.
    #[inline]
    fn expm1_glibc(arg: V) -> V {
        let (zero, one, half) = (splat(0.0), splat(1.0), splat(0.5));
        let size = abs(arg);
        let [near, middle] = glibc::EXPM1_NEAR;
        let far = trunc(add(
            mul(splat(glibc::INV_LN2), arg),
            select_lt(arg, zero, splat(-0.5), half),
        ));
        let k = select_lt(size, splat(middle), copysign(one, arg), far);
        let k = select_lt(splat(near), size, k, zero);
        let high = sub(arg, mul(k, splat(glibc::LN2_HI)));
        let low = mul(k, splat(glibc::LN2_LO));
        let x = sub(high, low);
        let c = sub(sub(high, x), low);
        let half_x = mul(half, x);
        let square = mul(x, half_x);
        let [q1, q2, q3, q4, q5] = glibc::EXPM1_POLY;
        let mut r1 = splat(q5);
        for q in [q4, q3, q2, q1] {
            r1 = add(splat(q), mul(square, r1));
        }
        let r1 = add(one, mul(square, r1));
        let t = sub(splat(3.0), mul(r1, half_x));
        let e = mul(square, div(sub(r1, t), sub(splat(6.0), mul(x, t))));
        let none = sub(x, sub(mul(x, e), square));
        let e = sub(sub(mul(x, sub(e, c)), c), square);
        // The clamp replaces a NaN, of which no power can be made; its element is not
        // selected below.
        let k = max(splat(-3.0), min(splat(64.0), k));
        let (power, inverse) = (scale_by_power(one, k), scale_by_power(one, negate(k)));
        let minus_one = sub(mul(half, sub(x, e)), half);
        let outer = sub(mul(sub(one, sub(e, x)), power), one);
        let low = mul(sub(sub(one, inverse), sub(e, x)), power);
        let high = mul(add(sub(x, add(e, inverse)), one), power);
        let value = select_lt(k, splat(23.0), low, high);
        let value = select_lt(splat(56.0), k, outer, value);
        let value = select_lt(k, splat(-0.5), minus_one, value);
        let value = select_lt(k, splat(-1.5), outer, value);
        // For a NaN the comparison is false, which selects `none`.
        let value = select_lt(splat(near), size, value, none);
        select_lt(size, splat(glibc::EXPM1_TINY), arg, value)
    }

    /// Computes llama.cpp's exp of each element of a vector, as
    /// `muser_ops::pinned::math::exp` defines it. `WIDE` selects the build of llama.cpp
    /// with vectors of 16, whatever the width of this level's vectors.
    #[inline]
    pub(crate) fn exp_pinned<const WIDE: bool>(x: V) -> V {
        let [shift, log2_e, ln2_hi, ln2_lo, c1, c2, c3, c4, c5] = pinned::EXP;
        let z = fma(x, splat(log2_e), splat(shift));
        let n = sub(z, splat(shift));
        let b = fma(negate(n), splat(ln2_lo), fma(negate(n), splat(ln2_hi), x));
        let u = mul(b, b);
        let q = fma(
            fma(splat(c5), b, splat(c4)),
            u,
            fma(splat(c3), b, splat(c2)),
        );
        // Outside the range of powers, j or n may be infinite or NaN; the selections
        // below choose the result there.
        let near = max(splat(-200.0), min(splat(200.0), n));
        let (zero, one) = (splat(0.0), splat(1.0));
        if WIDE {
            let j = fma(q, u, fma(splat(c1), b, one));
            let far = select_lt(zero, n, splat(f32::INFINITY), zero);
            return select_lt(splat(192.0), abs(n), far, scale_by_power(j, near));
        }
        let j = fma(q, u, mul(splat(c1), b));
        let k = scale_by_power(one, max(splat(-126.0), min(splat(126.0), n)));
        let whole = fma(j, k, k);
        let first = select_lt(zero, n, splat(FIRST_UP), splat(FIRST_DOWN));
        let rest = sub(near, select_lt(zero, n, splat(127.0), splat(-125.0)));
        let second = scale_by_power(one, rest);
        let parts = mul(fma(second, j, second), first);
        let far = select_lt(splat(192.0), abs(n), mul(first, first), parts);
        select_lt(splat(126.0), abs(n), far, whole)
    }
}
