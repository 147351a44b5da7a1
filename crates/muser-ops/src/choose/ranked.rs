//! The tokens of a vocabulary in the order of their logits, sorted only as far as the
//! sampler reads them.

use std::cmp::Ordering;

/// The number of tokens, those with the largest logits, that the first partial sort puts
/// in order: most random draws end among them.
const FIRST: usize = 256;

/// The tokens of a vocabulary by (logit descending, id ascending), sorted only as far as
/// they are read.
///
/// Sorting 200,000 tokens would cost a good part of the time of a small model's token; a
/// draw rarely looks past the first hundred. The order is total, so what a partial sort
/// gives does not depend on how far it went.
#[derive(Clone, Debug, Default)]
pub struct Ranked {
    items: Vec<(u32, f32)>,
    sorted: usize,
}

impl Ranked {
    /// Starts a new ranking of tokens with these logits, of which none is a NaN or a
    /// negative zero.
    pub fn fill(&mut self, logits: &[f32]) {
        self.items.clear();
        self.items.extend((0..).zip(logits.iter().copied()));
        self.sorted = 0;
    }

    /// Keeps the `k` tokens with the largest logits and drops the others.
    pub fn keep(&mut self, k: usize) {
        if k < self.items.len() {
            self.sort_to(k);
            self.items.truncate(k);
            self.sorted = k;
        }
    }

    /// Returns the number of tokens kept in the ranking.
    pub fn len(&self) -> usize {
        self.items.len()
    }

    /// Returns whether no token is kept in the ranking.
    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// Returns the token at this rank in the order of logits, counted from 0, and its
    /// logit; `None` from [`Ranked::len`] on.
    pub fn get(&mut self, rank: usize) -> Option<(u32, f32)> {
        if rank >= self.sorted {
            self.sort_to((rank + 1).max(FIRST).max(self.sorted.saturating_mul(4)));
        }
        self.items.get(rank).copied()
    }

    fn sort_to(&mut self, end: usize) {
        let end = end.min(self.items.len());
        let Some(unsorted) = self.items.get_mut(self.sorted..) else {
            return;
        };
        let more = end.saturating_sub(self.sorted);
        if more == 0 {
            return;
        }
        if more < unsorted.len() {
            unsorted.select_nth_unstable_by(more - 1, order);
        }
        unsorted[..more].sort_unstable_by(order);
        self.sorted = end;
    }
}

fn order(a: &(u32, f32), b: &(u32, f32)) -> Ordering {
    b.1.total_cmp(&a.1).then(a.0.cmp(&b.0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Checks that tokens sorted in parts are in the same order as tokens sorted at
        /// once. The test's logits have few distinct values, so that most are ties, and
        /// are more than `FIRST`, so that the sort goes on twice.
        #[test]
        fn a_partial_sort_is_the_beginning_of_the_whole(
            logits in prop::collection::vec((-3i8..3).prop_map(f32::from), 1..2000),
            k in 1usize..2000,
        ) {
            let mut whole: Vec<(u32, f32)> = (0..).zip(logits.iter().copied()).collect();
            whole.sort_by(order);
            let mut ranked = Ranked::default();
            ranked.fill(&logits);
            let got: Vec<_> = (0..).map_while(|r| ranked.get(r)).collect();
            prop_assert_eq!(&got, &whole);
            ranked.fill(&logits);
            ranked.keep(k);
            let got: Vec<_> = (0..).map_while(|r| ranked.get(r)).collect();
            prop_assert_eq!(&got[..], &whole[..k.min(whole.len())]);
        }
    }
}
