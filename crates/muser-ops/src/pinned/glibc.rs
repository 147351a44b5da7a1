//! The functions `expf` and `tanhf` as glibc 2.36 computes them on x86-64 with FMA, to
//! the bit.
//!
//! llama.cpp calls the platform's math library for the sigmoid, the rescaling in
//! attention and the logit cap. Both functions are implemented here, so that kernels can
//! compute them in vectors and the bits of the pinned lane (llama.cpp's arithmetic) do
//! not depend on the machine's library. `cargo xtask math expf tanhf` compares them with
//! the platform's own over all 2^32 inputs.
//!
//! ```text
//! expf, in f64:
//!   z = fma(32 / ln 2, x, 1.5 · 2^52);  k = the integer in z's low bits
//!   r = fma(32 / ln 2, x, -(z - 1.5 · 2^52))
//!   y = fma(fma(C0, r, C1), r · r, fma(C2, r, 1)) · 2^(k / 32)    the power from a table
//! tanhf, in f32, nothing fused, of a = |x|:
//!   a >= 1:  1 - 2 / (expm1(2 a) + 2)
//!   else     t = expm1(-2 a);  -t / (t + 2)
//! ```

/// The table of glibc's `expf`: the f64 bits of 2^(i / 32) minus i · 2^47, for i in
/// 0..32. Adding k · 2^47 to entry k mod 32 gives the bits of 2^(k / 32).
pub const EXP_TABLE: [u64; 32] = [
    0x3ff0_0000_0000_0000,
    0x3fef_d9b0_d315_8574,
    0x3fef_b558_6cf9_890f,
    0x3fef_9301_d012_5b51,
    0x3fef_72b8_3c7d_517b,
    0x3fef_5487_3168_b9aa,
    0x3fef_387a_6e75_6238,
    0x3fef_1e9d_f51f_dee1,
    0x3fef_06fe_0a31_b715,
    0x3fee_f1a7_373a_a9cb,
    0x3fee_dea6_4c12_3422,
    0x3fee_ce08_6061_892d,
    0x3fee_bfda_d536_2a27,
    0x3fee_b42b_569d_4f82,
    0x3fee_ab07_dd48_5429,
    0x3fee_a47e_b03a_5585,
    0x3fee_a09e_667f_3bcd,
    0x3fee_9f75_e8ec_5f74,
    0x3fee_a114_73eb_0187,
    0x3fee_a589_994c_ce13,
    0x3fee_ace5_422a_a0db,
    0x3fee_b737_b0cd_c5e5,
    0x3fee_c491_82a3_f090,
    0x3fee_d503_b23e_255d,
    0x3fee_e89f_995a_d3ad,
    0x3fee_ff76_f2fb_5e47,
    0x3fef_199b_dd85_529c,
    0x3fef_3720_dcef_9069,
    0x3fef_5818_dcfb_a487,
    0x3fef_7c97_337b_9b5f,
    0x3fef_a4af_a2a4_90da,
    0x3fef_d076_5b6e_4540,
];
/// The constant 32 / ln 2, by which glibc's `expf` multiplies its argument.
pub const EXP_SCALE: f64 = f64::from_bits(0x4047_1547_652b_82fe);
/// The constant 1.5 · 2^52 of glibc's `expf`: adding it to a value leaves the nearest
/// integer in the low bits.
pub const EXP_SHIFT: f64 = f64::from_bits(0x4338_0000_0000_0000);
/// The coefficients of the polynomial for 2^(r / 32) in glibc's `expf`, the highest
/// first.
pub const EXP_POLY: [f64; 3] = [
    f64::from_bits(0x3ebc_6af8_4b91_2394),
    f64::from_bits(0x3f2e_bfce_50fa_c4f3),
    f64::from_bits(0x3f96_2e42_ff0c_52d6),
];
/// The range that glibc's [`expf`] clamps its argument to. Beyond it the result,
/// converted to f32, is 0 or infinity.
pub const EXP_RANGE: [f64; 2] = [-150.0, 100.0];

/// Computes e^x to the bit as glibc's `expf` does.
pub fn expf(x: f32) -> f32 {
    let [low, high] = EXP_RANGE;
    // `clamp` keeps a NaN.
    let x = f64::from(x).clamp(low, high);
    let z = EXP_SCALE.mul_add(x, EXP_SHIFT);
    let k = z.to_bits();
    let r = EXP_SCALE.mul_add(x, -(z - EXP_SHIFT));
    let power = EXP_TABLE[(k % 32) as usize].wrapping_add(k << 47);
    let [c0, c1, c2] = EXP_POLY;
    let y = c0.mul_add(r, c1).mul_add(r * r, c2.mul_add(r, 1.0));
    (y * f64::from_bits(power)) as f32
}

/// The coefficients of the polynomial of glibc's `expm1` (e^x - 1), the lowest first.
pub const EXPM1_POLY: [f32; 5] = [
    f32::from_bits(0xbd08_8889),
    f32::from_bits(0x3ad0_0d01),
    f32::from_bits(0xb8a6_70cd),
    f32::from_bits(0x3686_7e54),
    f32::from_bits(0xb457_edbb),
];
/// The upper part of ln 2, for the argument reduction of glibc's `expm1`.
pub const LN2_HI: f32 = f32::from_bits(0x3f31_7180);
/// The lower part of ln 2, for the argument reduction of glibc's `expm1`.
pub const LN2_LO: f32 = f32::from_bits(0x3717_f7d1);
/// The constant 1 / ln 2, for the argument reduction of glibc's `expm1`.
pub const INV_LN2: f32 = f32::from_bits(0x3fb8_aa3b);
/// The limits of the argument reduction of glibc's `expm1`, 0.5 ln 2 and 1.5 ln 2. Up to
/// the first, nothing is subtracted from the argument; up to the second, one ln 2.
pub const EXPM1_NEAR: [f32; 2] = [f32::from_bits(0x3eb1_7218), f32::from_bits(0x3f85_1592)];
/// The magnitude of x below which glibc's expm1(x) is x: 2^-25.
pub const EXPM1_TINY: f32 = f32::from_bits(0x3300_0000);
/// The magnitude from which on tanh is 1. Larger arguments are clamped to it before
/// `expm1`, from which glibc computes tanh.
pub const TANH_MAX: f32 = 22.0;

/// Computes e^x - 1 as glibc does, for the two ranges of arguments that [`tanhf`] needs:
/// 2 <= x <= 44, or -2 < x <= 0.
fn expm1(arg: f32) -> f32 {
    let size = arg.abs();
    if size < EXPM1_TINY {
        return arg;
    }
    let near = size <= EXPM1_NEAR[0];
    let half = if arg < 0.0 { -0.5 } else { 0.5 };
    let k = match size < EXPM1_NEAR[1] {
        _ if near => 0.0,
        true => 1f32.copysign(arg),
        false => (INV_LN2 * arg + half).trunc(),
    };
    let (high, low) = (arg - k * LN2_HI, k * LN2_LO);
    let x = high - low;
    let c = (high - x) - low;
    let half = 0.5 * x;
    let square = x * half;
    let [q1, q2, q3, q4, q5] = EXPM1_POLY;
    let r1 = 1.0 + square * (q1 + square * (q2 + square * (q3 + square * (q4 + square * q5))));
    let t = 3.0 - r1 * half;
    let e = square * ((r1 - t) / (6.0 - x * t));
    if near {
        return x - (x * e - square);
    }
    let e = (x * (e - c) - c) - square;
    let power = |k: f32| f32::from_bits(((k as i32 + 127) as u32) << 23);
    match k {
        -1.0 => 0.5 * (x - e) - 0.5,
        k if !(-1.0..=56.0).contains(&k) => (1.0 - (e - x)) * power(k) - 1.0,
        k if k < 23.0 => ((1.0 - power(-k)) - (e - x)) * power(k),
        k => ((x - (e + power(-k))) + 1.0) * power(k),
    }
}

/// Computes tanh x to the bit as glibc's `tanhf` does.
pub fn tanhf(x: f32) -> f32 {
    // `min` would drop a NaN.
    let a = if x.abs() > TANH_MAX {
        TANH_MAX
    } else {
        x.abs()
    };
    let z = if a >= 1.0 {
        1.0 - 2.0 / (expm1(2.0 * a) + 2.0)
    } else {
        let t = expm1(-2.0 * a);
        -t / (t + 2.0)
    };
    z.copysign(x)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_of_powers_of_two() {
        for (i, &bits) in EXP_TABLE.iter().enumerate() {
            let value = f64::from_bits(bits + ((i as u64) << 47));
            let want = libm::exp2(i as f64 / 32.0);
            assert!((value - want).abs() <= f64::EPSILON, "{i}");
        }
    }

    #[test]
    fn limits_and_nan() {
        assert_eq!(expf(0.0), 1.0);
        assert_eq!(expf(f32::NEG_INFINITY), 0.0);
        assert_eq!(expf(f32::INFINITY), f32::INFINITY);
        assert_eq!(expf(-103.97), f32::from_bits(1));
        assert_eq!(expf(-103.98), 0.0);
        assert_eq!(expf(88.73), f32::INFINITY);
        assert!(expf(f32::NAN).is_nan() && tanhf(f32::NAN).is_nan());
        assert_eq!(tanhf(-0.0).to_bits(), (-0.0f32).to_bits());
        assert_eq!([tanhf(30.0), tanhf(f32::NEG_INFINITY)], [1.0, -1.0]);
    }

    /// Checks that `expf` and `tanhf` equal the platform's own functions on a sample of
    /// arguments; `cargo xtask math expf tanhf` compares all 2^32 inputs.
    #[cfg(all(target_os = "linux", target_env = "gnu", target_arch = "x86_64"))]
    #[test]
    fn both_equal_the_platforms_functions() {
        for x in (0..u32::MAX).step_by(65_519).map(f32::from_bits) {
            let same = |a: f32, b: f32| a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan());
            assert!(same(expf(x), x.exp()), "expf({x:e})");
            assert!(same(tanhf(x), x.tanh()), "tanhf({x:e})");
        }
    }
}
