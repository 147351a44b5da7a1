//! Q8: 32 activations as signed bytes with one f32 scale.
//!
//! ```text
//!  byte 0     4              36
//!       | d   | q_0 … q_31   |
//!       | f32 | i8           |
//! ```
//!
//! Activation `i` of a block is `d · q_i`; d: the scale, q_i: the code. Files do not
//! contain this block. The strict lane (muser's own arithmetic) quantises activations to
//! it, by the rule of [`BlockQ8::quantize`], to multiply them with weights that have a
//! float scale for each 32 values.
//!
//! ```
//! use muser_quant::q8::BlockQ8;
//! let mut x = [0.0f32; 32];
//! x[3] = -2.0; // the largest magnitude becomes 127, with its sign
//! x[4] = 1.0;
//! let b = BlockQ8::quantize(&x);
//! assert_eq!(b.q[3], -127);
//! assert_eq!(b.q[4], 64); // 63.5, ties to even
//! assert_eq!(b.d, 2.0 / 127.0);
//! ```

use crate::GROUP;

/// The number of bytes in one Q8 block of 32 activations.
pub const BYTES: usize = 36;

/// One Q8 block: 32 activations, quantised to signed bytes with one f32 scale.
#[derive(Clone, Copy, Debug, PartialEq)]
#[repr(C)]
pub struct BlockQ8 {
    /// The scale of a Q8 block: activation i is `d · q_i`.
    pub d: f32,
    /// The 32 quantised activations of a Q8 block, each in `-127..=127`.
    pub q: [i8; GROUP],
}

const _: () = assert!(size_of::<BlockQ8>() == BYTES);

impl BlockQ8 {
    /// Makes a Q8 block of 32 activations with this scale, whose quantised values (codes)
    /// are all 0.
    fn zeros(d: f32) -> Self {
        Self { d, q: [0; GROUP] }
    }

    /// Quantises 32 activations to a Q8 block, by the rule of the strict lane (muser's
    /// own arithmetic).
    ///
    /// The rule for activations x_i: let `max` be the largest magnitude.
    /// `iscale = 127 / max`, `q_i = rne(iscale · x_i)` with the product rounded to f32
    /// before it is rounded to an integer, `d = max / 127`; rne rounds to nearest even.
    /// Two cases differ:
    ///
    /// - `max` is zero, or so small that `iscale` is not finite (below about
    ///   3.7e-37): `d = 0`, all codes 0;
    /// - a value that is not finite: `d` is NaN and all codes are 0, so that
    ///   every product with the block is NaN instead of a wrong number.
    pub fn quantize(x: &[f32; GROUP]) -> Self {
        if x.iter().any(|v| !v.is_finite()) {
            return Self::zeros(f32::NAN);
        }
        let max = x.iter().fold(0.0f32, |max, v| max.max(v.abs()));
        let iscale = 127.0 / max;
        if !iscale.is_finite() {
            return Self::zeros(0.0);
        }
        let mut block = Self::zeros(max / 127.0);
        for (q, &v) in block.q.iter_mut().zip(x) {
            // |iscale · v| is at most 127 plus a rounding error: the integer fits.
            *q = (iscale * v).round_ties_even() as i8;
        }
        block
    }

    /// Decodes a Q8 block to its 32 activations.
    pub fn decode(&self) -> [f32; GROUP] {
        self.q.map(|q| self.d * f32::from(q))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn special_blocks() {
        assert_eq!(BlockQ8::quantize(&[-0.0; GROUP]), BlockQ8::zeros(0.0));
        // Subnormal: 127 / max overflows.
        assert_eq!(BlockQ8::quantize(&[1e-40; GROUP]), BlockQ8::zeros(0.0));
        // Just above the magnitude whose inverse scale overflows.
        assert_ne!(BlockQ8::quantize(&[4e-37; GROUP]).q[0], 0);
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut x = [1.0; GROUP];
            x[31] = bad;
            let b = BlockQ8::quantize(&x);
            assert!(b.d.is_nan() && b.q == [0; GROUP]);
        }
        let b = BlockQ8::quantize(&[f32::MAX; GROUP]);
        assert!(b.d.is_finite() && b.q == [127; GROUP]);
    }

    #[test]
    fn codes_stay_in_range_for_every_magnitude() {
        for e in -120..127 {
            for m in [1.0f32, 1.1, 1.5, 1.9999999] {
                let v = m * 2f32.powi(e);
                let mut x = [v; GROUP];
                x[1] = -v;
                x[2] = v * 0.5;
                let b = BlockQ8::quantize(&x);
                assert_eq!((b.q[0], b.q[1]), (127, -127), "at {v:e}");
                assert!((63..=64).contains(&b.q[2]), "at {v:e}: {}", b.q[2]);
            }
        }
    }
}
