//! What the scheduler does about a forward pass that was refused.

use super::Scheduler;
use crate::error::ApiError;
use crate::scheduler::slot::Slot;
use muser_engine::{Backend, Batch};

impl<B: Backend> Scheduler<B> {
    /// Empties slot `i` (the place of one running answer) and fails the request of its
    /// answer with this error.
    pub(super) fn fail(&mut self, i: usize, error: &ApiError) {
        if let Some(slot) = self.slots[i].take() {
            self.shared.metrics.failed.inc();
            slot.unit.fail(error.clone());
        }
    }

    /// Frees memory after a forward pass that found too little of it for K and V. First,
    /// answers whose sessions the pass has changed are failed; `before` has each slot
    /// with its session's length before the pass. Then the prefix cache is emptied. If it
    /// was empty, the answer that got its slot last fails.
    pub(super) fn free_memory(&mut self, before: &[(usize, usize)], error: &ApiError) {
        for &(i, len) in before {
            let changed = |slot: &Slot<B>| slot.session.tokens().len() != len;
            if self.slots[i].as_ref().is_some_and(changed) {
                self.fail(i, error);
            }
        }
        if self.tree.bytes() > 0 {
            self.tree.clear();
            return;
        }
        let slots = self.slots.iter().flatten();
        let last = slots.max_by_key(|slot| slot.since).map(|slot| slot.id);
        if let Some(i) = last {
            self.fail(i, error);
        }
    }

    /// Fails every waiting and running answer with this error, and empties the prefix
    /// cache.
    pub(super) fn fail_all(&mut self, error: &ApiError) {
        self.queue.retain(|unit| {
            unit.fail(error.clone());
            false
        });
        for slot in self.slots.iter_mut().filter_map(Option::take) {
            slot.unit.fail(error.clone());
        }
        // A failed pass may have left wrong states behind.
        self.tree.clear();
        self.batch = Batch::new(&self.model);
    }
}
