//! The functions exp, sigmoid, SiLU and tanh of the strict lane (muser's own
//! arithmetic), from IEEE operations alone.
//!
//! A platform's own functions differ between libraries and versions. These are
//! sequences of multiply, add, fma, divide and exponent insertion, so any device that
//! rounds those correctly computes the same bits. A vector kernel performs the same
//! sequence in each element.
//!
//! `cargo xtask math` measures the errors over all 2^32 inputs; `docs/numerics.md` has
//! the results.

/// The constant log2(e), rounded to f32.
pub const LOG2_E: f32 = f32::from_bits(0x3fb8_aa3b);
/// The upper 15 bits of ln 2, for exp's argument reduction: `n · LN2_HI` is exact for
/// |n| < 2^9.
pub const LN2_HI: f32 = f32::from_bits(0x3f31_7200);
/// The rest of ln 2 for exp's argument reduction, `ln 2 - LN2_HI`, rounded to f32.
pub const LN2_LO: f32 = f32::from_bits(0x35bf_be8e);
/// The coefficients of exp's minimax polynomial, (e^r - 1 - r) / r² on |r| <= ln 2 / 2,
/// degree 4, the constant first: relative error of e^r below 3.1e-9 before rounding.
pub const EXP_POLY: [f32; 5] = [
    f32::from_bits(0x3eff_fffe),
    f32::from_bits(0x3e2a_aa49),
    f32::from_bits(0x3d2a_ac79),
    f32::from_bits(0x3c09_1cf1),
    f32::from_bits(0x3ab5_121a),
];
/// The upper bound that arguments of [`exp`] are clamped to; e^x is infinite from 88.72…
/// on.
pub const EXP_MAX: f32 = 90.0;
/// The lower bound that arguments of [`exp`] are clamped to; e^x rounds to zero below
/// -103.97….
pub const EXP_MIN: f32 = -105.0;
/// The coefficients of tanh's minimax polynomial, (tanh(x) / x - 1) / x² in x² on |x| <
/// 0.625, degree 4, the constant first: relative error below 4.4e-9 before rounding.
pub const TANH_POLY: [f32; 5] = [
    f32::from_bits(0xbeaa_aa99),
    f32::from_bits(0x3e08_8393),
    f32::from_bits(0xbd5c_1e2d),
    f32::from_bits(0x3ca9_134e),
    f32::from_bits(0xbbba_f0e6),
];
/// The magnitude from which on [`tanh`] is computed by [`exp`].
pub const TANH_SPLIT: f32 = 0.625;

/// Computes e^x in the strict lane (muser's own arithmetic), from IEEE operations alone.
///
/// ```text
/// x = clamp(x, -105, 90)            a NaN passes through
/// n = rne(x · log2 e)
/// r = fma(n, -LN2_LO, fma(n, -LN2_HI, x))
/// p = Horner with fma over EXP_POLY, then · r + 1, · r + 1
/// e^x = (p · 2^(n >> 1)) · 2^(n - (n >> 1))
/// ```
///
/// The two powers of two in the last line keep every intermediate normal; only the last
/// product can round into the subnormals, and it rounds once.
///
/// ```
/// assert_eq!(muser_ops::math::exp(0.0), 1.0);
/// assert_eq!(muser_ops::math::exp(-200.0), 0.0);
/// assert_eq!(muser_ops::math::exp(100.0), f32::INFINITY);
/// ```
pub fn exp(x: f32) -> f32 {
    // Comparisons are false for a NaN, so that it passes through; `min` and `max` would
    // drop it.
    let x = if x > EXP_MAX { EXP_MAX } else { x };
    let x = if x < EXP_MIN { EXP_MIN } else { x };
    let n = (x * LOG2_E).round_ties_even();
    let r = n.mul_add(-LN2_LO, n.mul_add(-LN2_HI, x));
    let mut p = EXP_POLY[4];
    for c in [EXP_POLY[3], EXP_POLY[2], EXP_POLY[1], EXP_POLY[0], 1.0, 1.0] {
        p = p.mul_add(r, c);
    }
    let n = n as i32; // |n| <= 152; a NaN becomes 0 and p carries it
    let half = n >> 1;
    p * power_of_two(half) * power_of_two(n - half)
}

/// Returns 2^k, for k in -126..=127.
fn power_of_two(k: i32) -> f32 {
    f32::from_bits(((k + 127) as u32) << 23)
}

/// Computes the sigmoid 1 / (1 + e^-x).
pub fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + exp(-x))
}

/// Computes SiLU, x / (1 + e^-x).
pub fn silu(x: f32) -> f32 {
    x / (1.0 + exp(-x))
}

/// Computes tanh x in the strict lane (muser's own arithmetic), from IEEE operations
/// alone.
///
/// ```text
/// a = |x|
/// a < 0.625:  z = a · a;  t = fma(a · z, P(z), a), P by Horner with fma
/// else:       t = 1 - 2 / (exp(2 a) + 1)
/// tanh x = copysign(t, x)
/// ```
///
/// ```
/// assert_eq!(muser_ops::math::tanh(-0.0).to_bits(), (-0.0f32).to_bits());
/// assert_eq!(muser_ops::math::tanh(40.0), 1.0);
/// ```
pub fn tanh(x: f32) -> f32 {
    let a = x.abs();
    let t = if a < TANH_SPLIT {
        let z = a * a;
        let mut p = TANH_POLY[4];
        for c in [TANH_POLY[3], TANH_POLY[2], TANH_POLY[1], TANH_POLY[0]] {
            p = p.mul_add(z, c);
        }
        (a * z).mul_add(p, a)
    } else {
        1.0 - 2.0 / (exp(a + a) + 1.0)
    };
    t.copysign(x)
}

/// Returns the distance between `got` and the true value `want`, in units of the last
/// place of an f32 of `want`'s magnitude (near zero, of the smallest subnormal). The
/// distance is infinite if only one of the two is NaN, or if `got` is infinite and the
/// rounded true value is not.
pub fn ulp_error(got: f32, want: f64) -> f64 {
    let rounded = want as f32;
    if got == rounded || (got.is_nan() && want.is_nan()) {
        if got.is_finite() && want.is_finite() {
            return (f64::from(got) - want).abs() / ulp(want);
        }
        return 0.0;
    }
    if !got.is_finite() || !want.is_finite() {
        return f64::INFINITY;
    }
    (f64::from(got) - want).abs() / ulp(want)
}

/// Returns the unit of the last place of an f32 of the magnitude of `want`.
fn ulp(want: f64) -> f64 {
    let e = if want == 0.0 {
        -126
    } else {
        libm::ilogb(want).clamp(-126, 127)
    };
    libm::exp2(f64::from(e - 23))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns every 4,099th f32 bit pattern, and values at limits. `cargo xtask math`
    /// tests all 2^32, which takes minutes.
    fn samples() -> impl Iterator<Item = f32> {
        let edges = [
            0.0f32, -0.0, 0.625, 0.62499994, 88.72283, 88.72284, -87.33655, -103.97208,
        ];
        (0..=u32::MAX)
            .step_by(4099)
            .map(f32::from_bits)
            .chain(edges)
    }

    /// Returns the largest error of the function `f`, in units of the last place, over
    /// the samples, and the argument where it is.
    fn worst(f: fn(f32) -> f32, truth: fn(f64) -> f64) -> (f64, f32) {
        samples()
            .filter(|x| !x.is_nan())
            .map(|x| (ulp_error(f(x), truth(f64::from(x))), x))
            .fold((0.0, 0.0), |a, b| if b.0 > a.0 { b } else { a })
    }

    #[test]
    fn exp_is_within_two_ulp() {
        let (e, x) = worst(exp, libm::exp);
        assert!(e <= 2.0, "{e} ulp at {x:e}");
    }

    #[test]
    fn tanh_is_within_two_ulp() {
        let (e, x) = worst(tanh, libm::tanh);
        assert!(e <= 2.0, "{e} ulp at {x:e}");
    }

    #[test]
    fn nan_goes_through() {
        for f in [exp, sigmoid, silu, tanh] {
            assert!(f(f32::NAN).is_nan());
        }
    }

    #[test]
    fn limits() {
        assert_eq!(exp(f32::INFINITY), f32::INFINITY);
        assert_eq!(exp(f32::NEG_INFINITY).to_bits(), 0);
        assert_eq!(exp(-103.9), f32::from_bits(1), "subnormals are kept");
        assert_eq!(sigmoid(-1000.0).to_bits(), 0);
        assert!(silu(f32::NEG_INFINITY).is_nan(), "-inf / inf");
        assert_eq!(tanh(f32::NEG_INFINITY), -1.0);
    }

    #[test]
    fn the_error_measure_can_fail() {
        assert_eq!(ulp_error(1.0, 1.0), 0.0);
        assert_eq!(ulp_error(f32::from_bits(0x3f80_0003), 1.0), 3.0);
        assert_eq!(ulp_error(f32::NAN, 1.0), f64::INFINITY);
        assert_eq!(ulp_error(1.0, f64::NAN), f64::INFINITY);
        assert_eq!(ulp_error(f32::from_bits(3), 0.0), 3.0);
    }
}
