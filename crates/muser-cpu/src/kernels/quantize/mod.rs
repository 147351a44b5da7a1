//! Quantises activations to Q8_K and to Q8, 256 values at a time.
//!
//! Contracts: [`muser_quant::q8_k::BlockQ8K::quantize`] and, for eight groups at a time,
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

/// One block of 256 quantised activations.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub(crate) struct Block {
    /// The codes.
    pub(crate) q: [i8; QK],
    /// The sums of 16 codes each.
    pub(crate) sums16: [i16; QK / 16],
    /// The sums of 32 codes each.
    pub(crate) sums32: [i16; QK / 32],
    /// The scale.
    pub(crate) d: f32,
}

const _: () = assert!(size_of::<Block>() == 320);

impl Block {
    /// A block whose codes are 0, with this scale.
    pub(crate) const fn zeros(d: f32) -> Self {
        Self {
            q: [0; QK],
            sums16: [0; QK / 16],
            sums32: [0; QK / 32],
            d,
        }
    }

    /// Returns the block of the special cases, whose codes are 0, or `None` if the values
    /// have to be quantised. `max_bits` are the bits of the largest magnitude.
    #[inline]
    fn special(max_bits: u32) -> Option<Self> {
        if max_bits >= f32::INFINITY.to_bits() {
            return Some(Self::zeros(f32::NAN));
        }
        let max = f32::from_bits(max_bits);
        (max == 0.0 || (-127.0 / max).is_infinite()).then_some(Self::zeros(0.0))
    }

    /// Computes the sums of 32 codes from those of 16.
    #[inline]
    fn pair_sums(&mut self) {
        for (s, pair) in self.sums32.iter_mut().zip(self.sums16.as_chunks::<2>().0) {
            *s = pair[0] + pair[1];
        }
    }
}

/// Eight groups of 32 quantised activations.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub(crate) struct Groups {
    /// The codes.
    pub(crate) q: [i8; QK],
    /// The scale of each group.
    pub(crate) d: [f32; QK / GROUP],
    /// The sum of each group's codes.
    pub(crate) sums: [i16; QK / GROUP],
}

const _: () = assert!(size_of::<Groups>() == 320);

impl Groups {
    /// Groups whose scales and codes are 0.
    pub(crate) const ZERO: Self = Self {
        q: [0; QK],
        d: [0.0; QK / GROUP],
        sums: [0; QK / GROUP],
    };

    /// Sets the scale of group `g`, whose largest magnitude has the bits `max_bits`.
    /// Returns the factor to multiply its values with, or `None` if its codes stay 0.
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
