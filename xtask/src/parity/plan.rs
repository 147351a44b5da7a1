//! How much of the grid a run takes, and with which threads.

use super::inputs::Rng;

/// The most that a case of the quick selection costs, in multiply-adds.
const QUICK_COST: u64 = 1 << 25;
/// Below this cost a case may run with more threads than there are cores:
/// llama.cpp's wait for each other by spinning.
const SMALL: u64 = 1 << 22;

/// What a run is of.
pub(super) struct Plan {
    pub(super) seed: u64,
    /// A bounded selection.
    pub(super) quick: bool,
    /// Threads of large cases.
    pub(super) most_threads: usize,
}

impl Plan {
    /// Whether a case of this cost is in the selection.
    pub(super) fn affords(&self, cost: u64) -> bool {
        !self.quick || cost <= QUICK_COST
    }

    /// Whether variant `which` of `of` of a group is in the selection: all of
    /// them, or in the quick one the one that the group's name and seed pick.
    pub(super) fn selects(&self, group: &str, of: usize, which: usize) -> bool {
        !self.quick || Rng::new(self.seed, group).below(of) == which
    }

    /// Threads of a case, by its name.
    pub(super) fn threads(&self, name: &str, cost: u64) -> usize {
        match Rng::new(self.seed ^ 1, name).below(16) {
            0 | 1 => 1,
            2 if cost <= SMALL => 3,
            _ => self.most_threads,
        }
    }
}
