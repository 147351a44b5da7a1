//! The random numbers of sampling, the same on every machine and in every version.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

/// A stream of random numbers in [0, 1), drawn from ChaCha8.
#[derive(Clone, Debug)]
pub(super) struct Uniform {
    rng: ChaCha8Rng,
    /// The current random number, which [`Uniform::peek`] returns.
    current: f64,
}

impl Uniform {
    /// Starts the stream of random numbers of a seed. ChaCha8's key is the seed,
    /// little-endian, then zeros. Not `seed_from_u64`: a later version of the library
    /// may expand the seed in another way.
    pub(super) fn new(seed: u64) -> Self {
        let mut key = [0; 32];
        key[..8].copy_from_slice(&seed.to_le_bytes());
        let mut uniform = Self {
            rng: ChaCha8Rng::from_seed(key),
            current: 0.0,
        };
        uniform.advance();
        uniform
    }

    /// Returns the current random number, in [0, 1), without drawing a new one.
    pub(super) fn peek(&self) -> f64 {
        self.current
    }

    /// Draws the next random number of the stream and makes it the current one: the upper
    /// 53 bits of ChaCha8's next 64, times 2^-53, which is exact.
    pub(super) fn advance(&mut self) {
        self.current = (self.rng.next_u64() >> 11) as f64 * (1.0 / (1u64 << 53) as f64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks that the stream of random numbers is ChaCha8's key stream for the zero key
    /// (the published test vector `3e00ef2f895f40d6 7f5bb8e81f09a5a1 …`), as
    /// little-endian words.
    #[test]
    fn the_stream_is_chacha8s() {
        let mut uniform = Uniform::new(0);
        for word in [0xd640_5f89_2fef_003eu64, 0xa1a5_091f_e8b8_5b7f] {
            let want = (word >> 11) as f64 / 9_007_199_254_740_992.0;
            assert_eq!(uniform.peek(), want);
            assert_eq!(uniform.peek(), want, "peeking draws nothing");
            uniform.advance();
        }
    }
}
