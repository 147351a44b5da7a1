//! Selects the test cases of a bit-for-bit comparison with llama.cpp, quick or full,
//! and the number of threads of each.

use super::inputs::Rng;
use muser_ops::Profile;

/// Largest cost of a test case in the quick selection of test cases, in multiply-adds.
const QUICK_COST: u64 = 1 << 24;
/// Cost, in multiply-adds, from which a test case runs with one random distribution of
/// its inputs only: it takes tenths of a second.
const HUGE: u64 = 1 << 29;
/// Cost, in multiply-adds, from which a test case runs with all threads. Most smaller
/// cases use one: llama.cpp's threads wait for each other by spinning, which takes
/// longer than the case itself when there are more threads than idle cores.
const LARGE: u64 = 1 << 26;

/// Which test cases one comparison with llama.cpp runs, and with how many threads.
pub(super) struct Selection {
    pub(super) profile: Profile,
    pub(super) seed: u64,
    /// Whether the selection of test cases is the quick one, which takes minutes.
    pub(super) quick: bool,
    /// Number of threads with which costly test cases run.
    pub(super) most_threads: usize,
}

impl Selection {
    /// Returns whether the selection (quick or full) holds a test case of this cost, in
    /// multiply-adds.
    pub(super) fn affords(&self, cost: u64) -> bool {
        !self.quick || cost <= QUICK_COST
    }

    /// Returns whether variant `which` of the `of` variants of a test case is run. The
    /// full selection runs all variants of all but huge cases. Otherwise, the seed and
    /// the name of the group pick one variant.
    pub(super) fn selects(&self, group: &str, (which, of): (usize, usize), cost: u64) -> bool {
        let all = !self.quick && cost < HUGE;
        self.affords(cost) && (all || Rng::new(self.seed, group).below(of) == which)
    }

    /// Returns the number of threads for a test case whose bits do not depend on that
    /// number; a hash of seed and name picks it for small cases.
    pub(super) fn threads(&self, name: &str, cost: u64) -> usize {
        match Rng::new(self.seed ^ 1, name).below(64) {
            _ if cost >= LARGE => self.most_threads,
            0..4 => 2,
            4 => 3,
            _ => 1,
        }
    }
}
