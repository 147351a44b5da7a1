//! Sums of tokens' weights for sampling, in the order of reductions in the strict lane
//! (muser's own arithmetic).
//!
//! The module [`crate::reduce`] defines the sum of a sequence: value n is added to
//! partial sum n mod 256, then the partial sums are halved. So a device with 256 threads
//! gets the bits of the host. Prefix sums never fall, because rounding is monotonic, so
//! a device may also search for the first prefix whose sum passes a bound.

use crate::reduce::PARTIALS;

/// The running sum of a sequence: gives the sums of all its prefixes, one after the
/// other.
#[derive(Clone, Debug)]
pub(super) struct Running {
    /// The tree of sums, in levels: the last 256 nodes are the partial sums, the 128
    /// nodes before them the sums of two of those, and so on to the sum of all values in
    /// node 1.
    nodes: [f32; 2 * PARTIALS],
    next: usize,
}

impl Running {
    /// Makes the running sum of the empty sequence.
    pub(super) fn new() -> Self {
        Self {
            nodes: [0.0; 2 * PARTIALS],
            next: 0,
        }
    }

    /// Appends a value to the running sum and returns the sum of all values so far. Takes
    /// nine additions: one to the value's partial sum, eight on the way from there to the
    /// root of the tree of sums.
    pub(super) fn push(&mut self, value: f32) -> f32 {
        let place = self.next % PARTIALS;
        self.next += 1;
        self.nodes[PARTIALS + place] += value;
        let mut width = PARTIALS / 2;
        while width > 0 {
            let (l, n) = (place % width, &mut self.nodes);
            n[width + l] = n[2 * width + l] + n[3 * width + l];
            width /= 2;
        }
        self.nodes[1]
    }
}

/// Returns the sum of all values, in 256 partial sums that are then added by halves.
pub(super) fn sum(values: impl Iterator<Item = f32>) -> f32 {
    let mut partials = [0.0f32; PARTIALS];
    for (i, value) in values.enumerate() {
        partials[i % PARTIALS] += value;
    }
    crate::reduce::halve(&mut partials)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reduce;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn each_sum_is_the_reduction_of_what_came_so_far(
            values in prop::collection::vec(0f32..1e3, 1..700),
        ) {
            let mut running = Running::new();
            let mut last = 0.0;
            for n in 1..=values.len() {
                let got = running.push(values[n - 1]);
                let want = reduce::dot(&values[..n], &vec![1.0; n]);
                prop_assert_eq!(got.to_bits(), want.to_bits());
                prop_assert_eq!(sum(values[..n].iter().copied()).to_bits(), want.to_bits());
                prop_assert!(got >= last, "sums of weights never fall");
                last = got;
            }
        }
    }
}
