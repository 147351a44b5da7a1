//! How much of the grid a run takes, and with which threads.

use super::inputs::Rng;
use muser_ops::Profile;

/// The most that a case of the quick selection costs, in multiply-adds.
const QUICK_COST: u64 = 1 << 24;
/// From this cost on, tenths of a second, a case comes with one kind of input.
const HUGE: u64 = 1 << 29;
/// From this cost on a case is worth all threads. Below it most cases have one:
/// llama.cpp's threads wait for each other by spinning, which costs more than
/// the case where there are more threads than idle cores.
const LARGE: u64 = 1 << 26;

/// What a run is of.
pub(super) struct Plan {
    pub(super) profile: Profile,
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
    /// them; but in the quick one, and of huge cases, the one that the group's
    /// name and the seed pick.
    pub(super) fn selects(&self, group: &str, (which, of): (usize, usize), cost: u64) -> bool {
        let all = !self.quick && cost < HUGE;
        self.affords(cost) && (all || Rng::new(self.seed, group).below(of) == which)
    }

    /// Threads of a case whose bits they do not move, by its name.
    pub(super) fn threads(&self, name: &str, cost: u64) -> usize {
        match Rng::new(self.seed ^ 1, name).below(64) {
            _ if cost >= LARGE => self.most_threads,
            0..4 => 2,
            4 => 3,
            _ => 1,
        }
    }
}
