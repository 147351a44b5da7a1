//! Sums of weights in the order of the strict lane's reductions.
//!
//! A sum over values in an order is [`muser_ops::reduce`]'s: value n goes to lane
//! n mod 256, then lanes are halved. So a device with 256 threads gets the bits of
//! the host, and so does one that searches for the place where a sum passes a
//! bound: rounding keeps order, so the sums of longer and longer beginnings never
//! fall, although no two of them share a chain.

use muser_ops::reduce::PARTIALS;

/// The sum of a growing sequence of values, as if it were taken anew after each.
#[derive(Clone, Debug)]
pub(super) struct Running {
    /// The halving tree: the lanes are the last 256 nodes, the 128 sums of two
    /// lanes the 128 before them, and so on to the whole sum at 1.
    nodes: [f32; 2 * PARTIALS],
    next: usize,
}

impl Running {
    /// Of no value yet.
    pub(super) fn new() -> Self {
        Self {
            nodes: [0.0; 2 * PARTIALS],
            next: 0,
        }
    }

    /// Adds a value; the sum of all so far. Nine additions: the value's lane, and
    /// what lies between it and the whole.
    pub(super) fn push(&mut self, value: f32) -> f32 {
        let lane = self.next % PARTIALS;
        self.next += 1;
        self.nodes[PARTIALS + lane] += value;
        let mut width = PARTIALS / 2;
        while width > 0 {
            let (l, n) = (lane % width, &mut self.nodes);
            n[width + l] = n[2 * width + l] + n[3 * width + l];
            width /= 2;
        }
        self.nodes[1]
    }
}

/// The sum of all values.
pub(super) fn sum(values: impl Iterator<Item = f32>) -> f32 {
    let mut lanes = [0.0f32; PARTIALS];
    for (i, value) in values.enumerate() {
        lanes[i % PARTIALS] += value;
    }
    muser_ops::reduce::halve(&mut lanes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use muser_ops::reduce;
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
