//! Slots that change hands before an answer's end.

use super::Scheduler;
use crate::error::ApiError;
use crate::limits::work::Client;
use crate::scheduler::slot::Slot;
use muser_engine::Backend;
use std::time::{Duration, Instant};

/// How long a client may leave its channel full before its slot goes to who
/// waits for one.
const PARK: Duration = Duration::from_millis(250);
/// How long an answer has its slot before it is taken from a client that has
/// more of them than another who waits.
const QUANTUM: Duration = Duration::from_secs(1);
impl<B: Backend> Scheduler<B> {
    /// Takes a slot, where all are taken and somebody waits, from who does not
    /// read or has more than one who waits.
    pub(super) fn make_room(&mut self) {
        let waits = self.queue.iter().any(|unit| unit.rank().is_some());
        if !waits || self.slots.iter().any(Option::is_none) {
            return;
        }
        let now = Instant::now();
        let since = |slot: &Slot<B>| slot.stalled.filter(|&at| now - at >= PARK);
        // One that waits for its mask stays for it.
        let slots = self.slots.iter().flatten().filter(|s| !s.ready);
        let stalled = slots.filter_map(|s| Some((since(s)?, s.id)));
        let stalled = stalled.min().map(|(_, id)| id);
        let chosen = stalled.or_else(|| self.surplus(now));
        if let Some(slot) = chosen.and_then(|id| self.slots[id].take()) {
            self.shared.metrics.parked.inc();
            self.park(slot);
        }
    }

    /// The slot that has been longest with a client who has two more than one
    /// who waits.
    fn surplus(&self, now: Instant) -> Option<usize> {
        if self.sessions_kept() >= self.slots.len() && !self.is_exact() {
            return None;
        }
        let slots = || self.slots.iter().flatten();
        let has = |client: Client| slots().filter(|s| s.unit.client() == client).count();
        let waiting = self.queue.iter().filter(|unit| unit.rank().is_some());
        let least = waiting.map(|unit| has(unit.client())).min()?;
        let may = |s: &&Slot<B>| {
            !s.ready && now - s.since >= QUANTUM && has(s.unit.client()) >= least + 2
        };
        let oldest = slots().filter(may).min_by_key(|s| s.since);
        oldest.map(|s| s.id)
    }

    /// Whether a session computed anew is the same to the bit.
    fn is_exact(&self) -> bool {
        !self.model.transformer().lane().width_matters()
    }

    /// Parked answers that have their session.
    fn sessions_kept(&self) -> usize {
        self.queue
            .iter()
            .filter(|unit| unit.keeps_session())
            .count()
    }

    /// Back to the queue. As many keep their sessions there as there are slots;
    /// beyond, the session goes to the tree and is computed anew. Where that
    /// moves bits it is kept, and the answer that was not read for longest ends.
    fn park(&mut self, slot: Slot<B>) {
        let mut unit = slot.park();
        if self.sessions_kept() >= self.slots.len() {
            let exact = self.is_exact();
            match &mut unit.parked {
                Some(parked) if exact => {
                    let begun = parked.next.is_some();
                    if let Some(mut session) = parked.session.take() {
                        match begun {
                            true => parked.past = session.tokens().to_vec(),
                            false => parked.scores.clear(),
                        }
                        if unit.job.request.cache {
                            session.forget_logits();
                            let (bytes, tokens) = (session.bytes(), session.tokens().to_vec());
                            self.tree.insert(&tokens, session, bytes);
                        }
                    }
                }
                _ => {
                    let longest = self.queue.iter().filter(|unit| unit.keeps_session());
                    let longest = longest.filter_map(|u| Some((u.parked.as_ref()?.stalled?, u)));
                    match longest.min_by_key(|(since, _)| *since) {
                        Some((_, other)) => other.fail(ApiError::unread()),
                        None => unit.fail(ApiError::unread()),
                    }
                }
            }
        }
        self.queue.push(unit.client(), unit);
    }
}
