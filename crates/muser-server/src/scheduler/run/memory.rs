//! What the scheduler does when memory for K and V runs out.

use super::Scheduler;
use crate::error::ApiError;
use crate::scheduler::slot::Slot;
use muser_engine::Backend;

impl<B: Backend> Scheduler<B> {
    /// Fails the choice in a slot.
    pub(super) fn fail(&mut self, i: usize, error: &ApiError) {
        if let Some(slot) = self.slots[i].take() {
            self.shared.metrics.failed.inc();
            slot.unit.fail(error.clone());
        }
    }

    /// Makes room after a pass for which there was no memory: first the prefix tree
    /// goes; if it is empty, the choice that came last is failed. The others go on:
    /// a refused pass has changed no session, but those whose rows were cut into
    /// several micro-batches; `before` has the slots and their sessions' lengths.
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
}
