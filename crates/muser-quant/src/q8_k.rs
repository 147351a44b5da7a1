//! Q8_K: 256 activations as signed bytes with one f32 scale.
//!
//! ```text
//!  byte 0     4                      260                292
//!       | d   | q_0 … q_255          | bsum_0 … bsum_15 |
//!       | f32 | i8                   | i16              |
//! ```
//!
//! Activation `i` of a block is `d · q_i`; d: the scale, q_i: the code. `bsum_k` is the
//! exact sum of `q_16k … q_16k+15`, so that the product with a format that has minima
//! needs no second pass over the codes.
//!
//! Files do not contain this block. Both lanes (muser's own arithmetic, and that of
//! llama.cpp) quantise activations to it, by the rule of [`BlockQ8K::quantize`], to
//! multiply them with superblocks of weights.
//!
//! ```
//! use muser_quant::q8_k::BlockQ8K;
//! let mut x = [0.0f32; 256];
//! x[3] = -2.0; // the largest magnitude becomes -127
//! x[4] = 1.0;
//! let b = BlockQ8K::quantize(&x);
//! assert_eq!(b.q[3], -127);
//! assert_eq!(b.q[4], 64); // 63.5, ties to even
//! assert_eq!(b.d, 1.0 / (-127.0 / -2.0) * 1.0);
//! assert_eq!(b.bsums[0], -127 + 64);
//! ```

use crate::QK;

/// The number of bytes in one Q8_K block of 256 activations.
pub const BYTES: usize = 292;

/// One Q8_K block: 256 activations, quantised to signed bytes with one f32 scale.
#[derive(Clone, Copy, Debug, PartialEq)]
#[repr(C)]
pub struct BlockQ8K {
    /// The scale of a Q8_K block: activation i is `d · q_i`.
    pub d: f32,
    /// The 256 quantised activations of a Q8_K block, each in `-127..=127`.
    pub q: [i8; QK],
    /// The exact sums of each 16 quantised values (codes) of a Q8_K block, for products
    /// with weights that have minima.
    pub bsums: [i16; QK / 16],
}

const _: () = assert!(size_of::<BlockQ8K>() == BYTES);

impl BlockQ8K {
    /// Makes a Q8_K block of 256 activations with this scale, whose quantised values
    /// (codes) are all 0.
    fn zeros(d: f32) -> Self {
        Self {
            d,
            q: [0; QK],
            bsums: [0; QK / 16],
        }
    }

    /// Quantises 256 activations to a Q8_K block, by the rule of the strict lane
    /// (muser's own arithmetic).
    ///
    /// The rule for activations x_i: let `max` be the element of the largest magnitude,
    /// the first one on ties. `iscale = -127 / max`, `q_i = min(127, rne(iscale · x_i))`
    /// with the product rounded to f32 before it is rounded to an integer,
    /// `d = 1 / iscale`; rne rounds to nearest even. Three cases differ:
    ///
    /// - all values zero: `d = 0`, all codes 0;
    /// - `max` so small that `iscale` is not finite (|max| below about
    ///   3.7e-37): the same;
    /// - a value that is not finite: `d` is NaN and all codes are 0, so that
    ///   every product with the block is NaN instead of a wrong number.
    pub fn quantize(x: &[f32; QK]) -> Self {
        if x.iter().any(|v| !v.is_finite()) {
            return Self::zeros(f32::NAN);
        }
        let mut max = 0.0f32;
        for &v in x {
            if v.abs() > max.abs() {
                max = v;
            }
        }
        if max == 0.0 {
            return Self::zeros(0.0);
        }
        let iscale = -127.0 / max;
        if !iscale.is_finite() {
            return Self::zeros(0.0);
        }
        let mut block = Self::zeros(1.0 / iscale);
        for (q, &v) in block.q.iter_mut().zip(x) {
            // |iscale · v| is at most 127 plus a rounding error: the integer fits.
            *q = (iscale * v).round_ties_even().min(127.0) as i8;
        }
        for (sum, codes) in block.bsums.iter_mut().zip(block.q.chunks_exact(16)) {
            *sum = codes.iter().map(|&c| i16::from(c)).sum();
        }
        block
    }

    /// Decodes a Q8_K block to its 256 activations.
    pub fn decode(&self) -> [f32; QK] {
        self.q.map(|q| self.d * f32::from(q))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_of_tied_magnitudes_sets_the_sign() {
        let mut x = [0.0; QK];
        x[10] = 3.0;
        x[20] = -3.0;
        let b = BlockQ8K::quantize(&x);
        assert_eq!((b.q[10], b.q[20]), (-127, 127));
        assert!(b.d < 0.0);
        x[5] = -3.0;
        let b = BlockQ8K::quantize(&x);
        assert_eq!((b.q[5], b.q[10], b.q[20]), (-127, 127, -127));
        assert!(b.d > 0.0);
    }

    #[test]
    fn special_blocks() {
        assert_eq!(BlockQ8K::quantize(&[-0.0; QK]), BlockQ8K::zeros(0.0));
        // Subnormal: -127 / max overflows.
        assert_eq!(BlockQ8K::quantize(&[1e-40; QK]), BlockQ8K::zeros(0.0));
        // Just above the magnitude whose inverse scale overflows.
        assert_ne!(BlockQ8K::quantize(&[4e-37; QK]).q[0], 0);
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut x = [1.0; QK];
            x[255] = bad;
            let b = BlockQ8K::quantize(&x);
            assert!(b.d.is_nan() && b.q == [0; QK]);
        }
        let b = BlockQ8K::quantize(&[f32::MAX; QK]);
        assert!(b.d.is_finite() && b.q == [-127; QK]);
        assert_eq!(b.bsums, [-127 * 16; 16]);
    }

    #[test]
    fn codes_stay_in_range_for_every_magnitude() {
        for e in -120..127 {
            for m in [1.0f32, 1.1, 1.5, 1.9999999] {
                let v = m * 2f32.powi(e);
                let mut x = [v; QK];
                x[1] = -v;
                x[2] = v * 0.5;
                let b = BlockQ8K::quantize(&x);
                assert_eq!((b.q[0], b.q[1]), (-127, 127), "at {v:e}");
                assert!((-64..=-63).contains(&b.q[2]), "at {v:e}: {}", b.q[2]);
            }
        }
    }
}
