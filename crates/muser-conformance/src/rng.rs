//! Generates the random numbers of the conformance suite with SplitMix64. They depend
//! only on one seed, which the report of every failed group prints, and the group's
//! name.

/// A stream of random numbers: the same seed gives the same stream on any machine.
#[derive(Clone, Debug)]
pub(super) struct Rng(u64);

impl Rng {
    /// Starts a stream of random numbers from a seed and a conformance group's name, so
    /// that each group has inputs of its own.
    pub(super) fn new(seed: u64, name: &str) -> Self {
        // FNV-1a: unlike the standard library's hash, it never changes with the
        // Rust version.
        let hash = name.bytes().fold(0xcbf2_9ce4_8422_2325, |h: u64, b| {
            (h ^ u64::from(b)).wrapping_mul(0x100_0000_01b3)
        });
        Self(seed ^ hash)
    }

    pub(super) fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub(super) fn byte(&mut self) -> u8 {
        (self.bits() >> 56) as u8
    }

    /// Returns a random number in `0..n`; 0 if `n` is 0.
    pub(super) fn below(&mut self, n: usize) -> usize {
        ((u128::from(self.bits()) * n as u128) >> 64) as usize
    }

    /// Returns a random element of a list.
    pub(super) fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len())]
    }

    /// Returns a random element of a list, or its negative.
    pub(super) fn pick_signed(&mut self, of: &[f32]) -> f32 {
        let x = self.pick(of);
        self.sign(x)
    }

    /// Returns a uniformly distributed random value in `-1..1`, a multiple of 2^-24.
    pub(super) fn signed(&mut self) -> f32 {
        (self.bits() >> 39) as f32 / (1 << 24) as f32 - 1.0
    }

    /// Returns a random value of roughly normal distribution and variance 1: the sum of
    /// three uniform ones.
    pub(super) fn normal(&mut self) -> f32 {
        self.signed() + self.signed() + self.signed()
    }

    /// Returns `x` with a random sign.
    pub(super) fn sign(&mut self, x: f32) -> f32 {
        if self.bits() >> 63 == 0 { x } else { -x }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_stream_is_fixed() {
        // The published first output of SplitMix64 for state 1234567.
        assert_eq!(Rng(1_234_567).bits(), 6_457_827_717_110_365_317);
        assert_ne!(Rng::new(1, "a").bits(), Rng::new(1, "b").bits());
    }

    #[test]
    fn ranges_hold() {
        let mut r = Rng::new(7, "ranges");
        let mut seen = [false; 5];
        for _ in 0..1000 {
            seen[r.below(5)] = true;
            assert!((-1.0..1.0).contains(&r.signed()));
        }
        assert_eq!(seen, [true; 5]);
        assert_eq!(r.below(0), 0);
    }
}
