//! Makes the inputs of the test cases that compare muser with llama.cpp. Random ones
//! depend only on the seed and the name of the case, so that one case can be repeated
//! alone; adversarial ones hit the limits of a weight format.

use muser_quant::{DType, Layout, QK, bf16, f16};

/// A SplitMix64 pseudo-random generator for the inputs of test cases.
pub(super) struct Rng(u64);

impl Rng {
    /// Starts the pseudo-random generator that a seed and the name of a test case
    /// determine.
    pub(super) fn new(seed: u64, name: &str) -> Self {
        let fnv = |h: u64, b: u8| (h ^ u64::from(b)).wrapping_mul(0x0000_0100_0000_01b3);
        Self(name.bytes().fold(seed ^ 0xcbf2_9ce4_8422_2325, fnv))
    }

    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Returns a random number below `n`, which must not be 0.
    pub(super) fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }

    pub(super) fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len())]
    }

    /// Returns a random f32, uniform in -1 .. 1.
    pub(super) fn unit(&mut self) -> f32 {
        unit(self.next())
    }

    /// Returns a roughly normal random f32 of variance 1: the sum of three of
    /// [`Rng::unit`].
    pub(super) fn normal(&mut self) -> f32 {
        self.unit() + self.unit() + self.unit()
    }

    fn sign(&mut self, x: f32) -> f32 {
        if self.next() & 1 == 0 { x } else { -x }
    }

    fn bytes(&mut self, n: usize) -> Vec<u8> {
        let mut bytes = vec![0; n];
        let (words, rest) = bytes.as_chunks_mut::<8>();
        for word in words {
            *word = self.next().to_le_bytes();
        }
        let last = self.next().to_le_bytes();
        rest.copy_from_slice(&last[..rest.len()]);
        bytes
    }
}

fn unit(bits: u64) -> f32 {
    (bits >> 40) as f32 / (1u64 << 23) as f32 - 1.0
}

/// Random distributions of the activations (inputs of an operation) in test cases.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Normal,
    HeavyTailed,
    /// Test activations of equal magnitude, or halfway between two quantised values,
    /// two f16 or two bf16 values, where rounding has to break a tie.
    Ties,
    /// Test activations that are mostly zeros of both signs, with another value here
    /// and there.
    Zeros,
    Subnormal,
    Huge,
}

impl Kind {
    pub(super) const ALL: [Self; 6] = [
        Self::Normal,
        Self::HeavyTailed,
        Self::Ties,
        Self::Zeros,
        Self::Subnormal,
        Self::Huge,
    ];

    /// Returns `n` random activations of this distribution of test inputs; those of the
    /// distribution of huge values stay below `most` in magnitude.
    pub(super) fn fill(self, rng: &mut Rng, n: usize, most: f32) -> Vec<f32> {
        let mut x = Vec::with_capacity(n);
        // Filled block by block, so that each quantisation block has a pattern of its
        // own.
        while x.len() < n {
            let block = QK.min(n - x.len());
            self.block(rng, block, most, &mut x);
        }
        x
    }

    fn block(self, rng: &mut Rng, n: usize, most: f32, out: &mut Vec<f32>) {
        let turn = rng.next();
        let small = rng.pick(&[1e-39, 1e-38, 1e-37, 6e-8, 6e-5]);
        for i in 0..n {
            out.push(match self {
                Self::Normal => rng.normal(),
                Self::HeavyTailed => rng.unit().powi(9) * 50.0,
                Self::Ties => match turn % 4 {
                    0 => rng.pick(&[1.5, -1.5, 0.75, -0.75]),
                    1 if i as u64 == turn >> 8 & 63 => rng.sign(127.0),
                    1 => rng.below(254) as f32 - 126.5,
                    2 => rng.below(1024) as f32 * 2.0 + 2049.0,
                    _ => rng.below(128) as f32 * 2.0 - 257.0,
                },
                Self::Zeros => match rng.next() % 64 {
                    // About every second block is all zeros.
                    0 if turn.is_multiple_of(2) => rng.unit(),
                    1..8 => -0.0,
                    _ => 0.0,
                },
                Self::Subnormal => rng.unit() * small,
                Self::Huge => rng.unit() * most,
            });
        }
    }
}

/// Returns the largest activation that a product with weights of this format takes
/// without overflow in llama.cpp, which converts activations to f16 for F16 weights.
pub(super) fn most(dtype: DType) -> f32 {
    if dtype == DType::F16 { 6e4 } else { 1e30 }
}

/// Random distributions of the weights in test cases.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Weights {
    /// Test weights of random quantised values (codes), scales and signs, which come
    /// out of the order of one.
    Random,
    /// Test weights of which each block sits at one limit of its format: all bits of
    /// the quantised values set, the largest scales, or a block factor that is zero,
    /// negative or subnormal.
    Adversarial,
}

impl Weights {
    /// Returns the bytes of `values` random weights of this distribution in a weight
    /// format; `values` must fill whole blocks of the format.
    pub(super) fn fill(self, rng: &mut Rng, dtype: DType, values: usize) -> Vec<u8> {
        match dtype.is_quantized() {
            true => self.blocks(rng, dtype, values / dtype.block_values()),
            false => self.floats(rng, dtype, values),
        }
    }

    fn blocks(self, rng: &mut Rng, dtype: DType, blocks: usize) -> Vec<u8> {
        let n = dtype.block_bytes();
        let mut bytes = rng.bytes(blocks * n);
        // Where the f16 factors and the packed scales stand in a block, as byte
        // offsets.
        let Layout {
            factors, scales, ..
        } = dtype.layout();
        for block in bytes.chunks_exact_mut(n) {
            let pick = |rng: &mut Rng| match self {
                Self::Random => 0.1 * rng.unit(),
                // 6e-8 is the smallest subnormal f16.
                Self::Adversarial => rng.pick(&[1.0, -1.0, 0.0, -0.0, 0.05, -0.3, 6e-8, -3e-6]),
            };
            if self == Self::Adversarial {
                match rng.below(5) {
                    0 => block.fill(0xff),
                    1 => block[scales.clone()].fill(0xff),
                    2 if dtype == DType::Q6K => block[scales.clone()].fill(0x80),
                    3 if dtype == DType::Q6K => block[scales.clone()].fill(0x7f),
                    2 => block[16..].fill(0xff),
                    3 => block.fill(0),
                    _ => {}
                }
            }
            for &at in factors {
                let d = f16::from_f32(pick(rng));
                block[at..at + 2].copy_from_slice(&d.to_le_bytes());
            }
        }
        bytes
    }

    fn floats(self, rng: &mut Rng, dtype: DType, values: usize) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(values * dtype.block_bytes());
        for _ in 0..values {
            let v = match self {
                Self::Random => unit(rng.next()),
                Self::Adversarial => match rng.below(8) {
                    0 => 0.0,
                    1 => -0.0,
                    2 => rng.unit() * 6e-5,
                    3 => rng.unit() * 1e-38,
                    4 => rng.sign(65504.0),
                    5 => rng.sign(1.0),
                    _ => rng.unit(),
                },
            };
            match dtype {
                DType::F16 => bytes.extend_from_slice(&f16::from_f32(v).to_le_bytes()),
                DType::BF16 => bytes.extend_from_slice(&bf16::from_f32(v).to_le_bytes()),
                _ => bytes.extend_from_slice(&v.to_le_bytes()),
            }
        }
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inputs_are_their_seed_and_name_and_stay_finite() {
        for dtype in DType::ALL {
            for weights in [Weights::Random, Weights::Adversarial] {
                let make = |seed| weights.fill(&mut Rng::new(seed, "w"), dtype, 16 * QK);
                assert_eq!(make(1), make(1));
                assert_ne!(make(1), make(2));
                let mut values = vec![0.0; 16 * QK];
                dtype.decode_row(&make(3), &mut values).unwrap();
                assert!(values.iter().all(|v| v.is_finite()), "{dtype} {weights:?}");
            }
        }
        for kind in Kind::ALL {
            let x = kind.fill(&mut Rng::new(5, "x"), 1000, 6e4);
            assert_eq!(x.len(), 1000);
            assert!(x.iter().all(|v| v.abs() <= 6e4), "{kind:?}");
        }
    }
}
