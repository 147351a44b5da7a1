//! Parks answers: takes the slot (place of a running answer) from an answer that has not
//! ended, for a client that waits.

use super::Scheduler;
use crate::error::ApiError;
use crate::limits::work::Client;
use crate::scheduler::slot::Slot;
use muser_engine::Backend;
use std::time::{Duration, Instant};

/// How long a client may leave its channel of events full before its slot (place of a
/// running answer) goes to a waiting request.
const PARK: Duration = Duration::from_millis(250);
/// The least time that an answer keeps its slot (place of a running answer) before a
/// waiting client that has at least two slots fewer may get it.
const QUANTUM: Duration = Duration::from_secs(1);
impl<B: Backend> Scheduler<B> {
    /// If all slots (places of running answers) are taken and a request waits, parks one
    /// answer: of a client that does not read, or of one that has more slots than a
    /// client that waits.
    pub(super) fn make_room(&mut self) {
        let waits = self.queue.iter().any(|unit| unit.rank().is_some());
        if !waits || self.slots.iter().any(Option::is_none) {
            return;
        }
        let now = Instant::now();
        let since = |slot: &Slot<B>| slot.stalled.filter(|&at| now - at >= PARK);
        // An answer that waits for its grammar's mask stays for it.
        let slots = self.slots.iter().flatten().filter(|s| !s.ready);
        let stalled = slots.filter_map(|s| Some((since(s)?, s.id)));
        let stalled = stalled.min().map(|(_, id)| id);
        let chosen = stalled.or_else(|| self.surplus(now));
        if let Some(slot) = chosen.and_then(|id| self.slots[id].take()) {
            self.shared.metrics.parked.inc();
            self.park(slot);
        }
    }

    /// Returns the slot (place of a running answer) to take for fairness: the one longest
    /// held by a client that has at least two slots more than some client that waits.
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

    /// Whether evaluating a session's tokens anew gives the same bits, as in the strict
    /// lane (muser's own arithmetic), where a call's width does not matter.
    fn is_exact(&self) -> bool {
        !self.model.transformer().lane().width_matters()
    }

    /// Returns how many parked answers (begun, without a slot) keep their session in
    /// memory.
    fn sessions_kept(&self) -> usize {
        self.queue
            .iter()
            .filter(|unit| unit.keeps_session())
            .count()
    }

    /// Parks an answer: it leaves its slot and waits in the queue. As many parked answers
    /// keep their sessions as there are slots. Beyond that, the session goes to the
    /// prefix cache and is computed anew later. Where that would change bits (in the
    /// pinned lane, llama.cpp's arithmetic), the session is kept, and the parked answer
    /// whose client has not read for longest fails.
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
