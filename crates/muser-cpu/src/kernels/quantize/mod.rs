//! Quantises activations to int8 codes: Q8_K (one scale for 256 values) and Q8 (one for
//! 32).
//!
//! Contracts (the scalar functions that define the bits):
//! [`muser_quant::q8_k::BlockQ8K::quantize`] and, for eight groups at a time,
//! [`muser_quant::q8::BlockQ8::quantize`]. Unlike the contract's block, [`Block`] has
//! sums of 16 and of 32 codes, since formats need one or the other, and it is laid out
//! for aligned loads.
//!
//! Magnitudes are compared as integers: the bits of |x| have the order of |x|, and bits
//! from 0x7f800000 on mean that x is not finite.
//!
//! Traffic: 1,024 bytes read and 320 written for 256 values; 6,656 values are 26 blocks,
//! about 1.5 µs.

use muser_quant::{GROUP, QK};

#[cfg(target_arch = "x86_64")]
pub(crate) mod avx2;
#[cfg(target_arch = "x86_64")]
pub(crate) mod avx512;
pub(crate) mod scalar;

/// A Q8_K block: 256 activations quantised to int8 codes with one scale.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub(crate) struct Block {
    /// The quantised values (int8 codes) of the 256 activations.
    pub(crate) q: [i8; QK],
    /// The sums of the quantised activations (codes): one for each 16 consecutive ones.
    pub(crate) sums16: [i16; QK / 16],
    /// The sums of the quantised activations (codes): one for each 32 consecutive ones.
    pub(crate) sums32: [i16; QK / 32],
    /// The scale: an activation is about this factor times its code.
    pub(crate) d: f32,
}

const _: () = assert!(size_of::<Block>() == 320);

impl Block {
    /// Returns a block of 256 activations with this scale, whose codes are all 0.
    pub(crate) const fn zeros(d: f32) -> Self {
        Self {
            q: [0; QK],
            sums16: [0; QK / 16],
            sums32: [0; QK / 32],
            d,
        }
    }

    /// Returns `None` if the 256 activations have to be quantised. Returns a block of
    /// zeros if they are all 0 or too small, or if one is not finite. `max_bits` are
    /// the f32 bits of the largest magnitude.
    #[inline]
    fn special(max_bits: u32) -> Option<Self> {
        if max_bits >= f32::INFINITY.to_bits() {
            return Some(Self::zeros(f32::NAN));
        }
        let max = f32::from_bits(max_bits);
        (max == 0.0 || (-127.0 / max).is_infinite()).then_some(Self::zeros(0.0))
    }

    /// Computes the sums of 32 activation codes each of a Q8_K block from its sums of 16.
    #[inline]
    fn pair_sums(&mut self) {
        for (s, pair) in self.sums32.iter_mut().zip(self.sums16.as_chunks::<2>().0) {
            *s = pair[0] + pair[1];
        }
    }
}

/// Eight Q8 groups: 256 activations quantised to int8 codes, each 32 with their own
/// scale.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub(crate) struct Groups {
    /// The quantised values (int8 codes) of the 256 activations.
    pub(crate) q: [i8; QK],
    /// The scale of each of the eight groups of activations: the factor of its codes.
    pub(crate) d: [f32; QK / GROUP],
    /// The sums of the quantised activations (codes), one for each group of 32.
    pub(crate) sums: [i16; QK / GROUP],
}

const _: () = assert!(size_of::<Groups>() == 320);

impl Groups {
    /// Eight groups of activations whose scales and codes are 0.
    pub(crate) const ZERO: Self = Self {
        q: [0; QK],
        d: [0.0; QK / GROUP],
        sums: [0; QK / GROUP],
    };

    /// Sets the scale of group `g` of 32 activations, whose largest magnitude has the f32
    /// bits `max_bits`. Returns the factor that turns its values into codes, or `None` if
    /// the codes stay 0.
    #[inline]
    fn scale(&mut self, g: usize, max_bits: u32) -> Option<f32> {
        if max_bits >= f32::INFINITY.to_bits() {
            self.d[g] = f32::NAN;
            return None;
        }
        let max = f32::from_bits(max_bits);
        let iscale = 127.0 / max;
        if !iscale.is_finite() {
            return None;
        }
        self.d[g] = max / 127.0;
        Some(iscale)
    }
}
