//! Random numbers that are the same everywhere and for good.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

/// Numbers in [0, 1).
#[derive(Clone, Debug)]
pub(crate) struct Uniform(ChaCha8Rng);

impl Uniform {
    /// The key is the seed, little-endian, then zeros. Not `seed_from_u64`,
    /// whose expansion of the seed is the library's to change.
    pub(crate) fn new(seed: u64) -> Self {
        let mut key = [0; 32];
        key[..8].copy_from_slice(&seed.to_le_bytes());
        Self(ChaCha8Rng::from_seed(key))
    }

    /// The upper 53 bits of the next 64, times 2^-53: exact.
    pub(crate) fn next(&mut self) -> f64 {
        (self.0.next_u64() >> 11) as f64 * (1.0 / (1u64 << 53) as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// ChaCha8's key stream for the zero key (the published test vector
    /// `3e00ef2f895f40d6 7f5bb8e81f09a5a1 …`), as little-endian words.
    #[test]
    fn the_stream_is_chacha8s() {
        let mut uniform = Uniform::new(0);
        for word in [0xd640_5f89_2fef_003eu64, 0xa1a5_091f_e8b8_5b7f] {
            assert_eq!(
                uniform.next(),
                (word >> 11) as f64 / 9_007_199_254_740_992.0
            );
        }
    }
}
