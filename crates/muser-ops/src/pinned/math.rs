//! The exponential, sigmoid and SiLU of the pinned lane (llama.cpp's arithmetic).
//!
//! llama.cpp has two functions for e^x. The math library's `expf` ([`glibc::expf`])
//! computes the sigmoid, the rescaling in attention, and those values of a SiLU row that
//! follow its whole vectors. ggml's own vector polynomial ([`exp`]) computes the rest of
//! SiLU and the weights of attention in wide batches. The two reference profiles (builds
//! of llama.cpp) differ in its last steps:
//!
//! ```text
//! z = fma(x, log2 e, 1.5 · 2^23);  n = z - 1.5 · 2^23       the integer in z's low bits
//! b = fma(-n, ln2_lo, fma(-n, ln2_hi, x));  u = b · b
//! q = fma(fma(c5, b, c4), u, fma(c3, b, c2))
//! AVX-512   j = fma(q, u, fma(c1, b, 1));      j · 2^n rounded once
//!           |n| > 192: 0 or infinity
//! AVX2      j = fma(q, u, c1 · b);  k = 2^n;   fma(j, k, k)      |n| <= 126
//!           |n| > 126: 2^n as two factors; |n| > 192: the first factor squared
//! ```

use super::glibc;
use crate::Profile;

const SHIFT: f32 = 12_582_912.0; // 1.5 · 2^23
const LOG2_E: f32 = f32::from_bits(0x3fb8_aa3b);
const LN2_HI: f32 = f32::from_bits(0x3f31_7200);
const LN2_LO: f32 = f32::from_bits(0x35bf_be8e);
const C1: f32 = f32::from_bits(0x3f7f_fff6);
const C2: f32 = f32::from_bits(0x3eff_fedb);
const C3: f32 = f32::from_bits(0x3e2a_af33);
const C4: f32 = f32::from_bits(0x3d2b_9f17);
const C5: f32 = f32::from_bits(0x3c07_2010);

/// The constants of ggml's vector exponential ([`exp`]), for kernels: shift, log2 e, ln
/// 2 in two parts, and the coefficients c1 to c5.
pub const EXP: [f32; 9] = [SHIFT, LOG2_E, LN2_HI, LN2_LO, C1, C2, C3, C4, C5];

/// Computes e^x to the bit as one element of ggml's vector function does, in this
/// profile (build of llama.cpp).
pub fn exp(profile: Profile, x: f32) -> f32 {
    let z = x.mul_add(LOG2_E, SHIFT);
    let n = z - SHIFT;
    let b = (-n).mul_add(LN2_LO, (-n).mul_add(LN2_HI, x));
    let u = b * b;
    let q = C5.mul_add(b, C4).mul_add(u, C3.mul_add(b, C2));
    match profile {
        Profile::LlamaCppAvx512 => {
            let j = q.mul_add(u, C1.mul_add(b, 1.0));
            match n.abs() > 192.0 {
                true if n <= 0.0 => 0.0,
                true => f32::INFINITY,
                false => scale(j, n),
            }
        }
        Profile::LlamaCppAvx2 => {
            let j = q.mul_add(u, C1 * b);
            let e = z.to_bits() << 23;
            let k = f32::from_bits(e.wrapping_add(0x3f80_0000));
            let far = n.abs() > 126.0;
            if !far {
                return j.mul_add(k, k);
            }
            let g = if n <= 0.0 { 0x8200_0000u32 } else { 0 };
            let first = f32::from_bits(g.wrapping_add(0x7f00_0000));
            if n.abs() > 192.0 {
                return first * first;
            }
            let second = f32::from_bits(e.wrapping_sub(g));
            second.mul_add(j, second) * first
        }
    }
}

/// Computes `x · 2^n`, rounded once, for an integral n with |n| <= 192, or NaN.
fn scale(x: f32, n: f32) -> f32 {
    // The product is exact in f64, whose exponents are wide enough, so one rounding is
    // left.
    (f64::from(x) * 2f64.powi(n as i32)) as f32
}

/// Computes the sigmoid `1 / (1 + exp(-x))` as llama.cpp does, with the math library's
/// exp.
pub fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + glibc::expf(-x))
}

/// Computes SiLU, `x / (1 + exp(-x))`, of an activation that lies in a whole vector of
/// its row, where llama.cpp uses ggml's exp.
pub fn silu(profile: Profile, x: f32) -> f32 {
    x / (1.0 + exp(profile, 0.0 - x))
}

/// Computes SiLU, `x / (1 + exp(-x))`, of an activation that follows the whole vectors
/// of its row, where llama.cpp uses the math library's exp.
pub fn silu_rest(x: f32) -> f32 {
    x / (1.0 + glibc::expf(-x))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_constants_are_the_written_ones() {
        let two = |k: i32| 2f64.powi(k);
        let hex = |mantissa: u32, k: i32| (f64::from(mantissa) * two(k - 24)) as f32;
        assert_eq!(LOG2_E, hex(0x171_5476, 0));
        assert_eq!(LN2_HI, hex(0x162_e400, -1));
        assert_eq!(LN2_LO, hex(0x17f_7d1c, -20));
        assert_eq!(C1, hex(0x1ff_ffec, -1));
        assert_eq!(C2, hex(0x1ff_fdb6, -2));
        assert_eq!(C3, hex(0x155_5e66, -3));
        assert_eq!(C4, hex(0x157_3e2e, -5));
        assert_eq!(C5, hex(0x10e_4020, -7));
    }

    #[test]
    fn both_profiles_are_within_2_5_ulp_of_exp() {
        for profile in Profile::ALL {
            for i in -1000..=880 {
                let x = i as f32 / 10.0;
                let want = f64::from(x).exp();
                let got = f64::from(exp(profile, x));
                let ulp = (want * 2f64.powi(-23)).max(2f64.powi(-149));
                assert!(
                    (got - want).abs() <= 2.5 * ulp,
                    "{profile} exp({x}) = {got}"
                );
            }
            assert_eq!(exp(profile, -200.0), 0.0);
            assert_eq!(exp(profile, 200.0), f32::INFINITY);
            assert!(exp(profile, f32::NAN).is_nan());
        }
    }
}
