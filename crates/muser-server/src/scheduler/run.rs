//! The scheduler's loop: gives slots (places of running answers) to waiting requests,
//! plans and runs forward passes, and sends the tokens that they choose.

mod parking;
mod refused;

use super::answer::Outcome;
use super::prefix::PrefixTree;
use super::slot::{Queue, Ready, Slot, Unit, begin_answer};
use super::{Command, Event, Scored, Shared, SlotStatus, Task};
use crate::error::ApiError;
use crate::limits::turns::Turns;
use crate::metrics::Metrics;
use crate::options::Limits;
use muser_engine::{Advance, Backend, Batch, Model, Session, Token, Want};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The time that a forward pass may take while answers are running. It bounds how many
/// prompt tokens are evaluated in the pass.
const PASS: Duration = Duration::from_millis(400);
/// The fewest prompt tokens for which a forward pass has room.
const LEAST: usize = 16;
/// How long the scheduler waits, when no request can make progress, before it tries
/// again; until then clients may read, or a late token mask may be ready.
const NAP: Duration = Duration::from_millis(5);
/// The longest time for which a grammar's late token mask may delay other answers.
const MASK: Duration = Duration::from_millis(1);
/// The vocabulary size from which on choosing a token is worth a thread for each answer.
const LARGE_VOCAB: usize = 32_768;
/// How many tokens a prefix common to prompts has to extend past the cached ones to be
/// worth a snapshot.
const BRANCH: usize = 32;

/// The state of the scheduler's thread: the model, the running answers in their slots,
/// the queue of requests and the prefix cache.
pub(super) struct Scheduler<B: Backend> {
    model: Arc<Model<B>>,
    batch: Batch<B>,
    context: usize,
    slots: Vec<Option<Slot<B>>>,
    queue: Queue<B>,
    /// How many times the scheduler has given out a slot (the place of one running
    /// answer) so far.
    given: u64,
    /// How long a client may leave its channel of events full before its request fails.
    stall_time: Duration,
    tree: PrefixTree<Session<B>>,
    shared: Arc<Shared>,
    inbox: Receiver<Command>,
    /// When running answers are cut off; `None` unless the server is going down.
    close_at: Option<Instant>,
    /// The running mean of rows (tokens) per second of recent forward passes that had a
    /// piece of a prompt.
    pace: f64,
    /// The number of the machine's processors, which share the choosing of tokens.
    threads: usize,
}

impl<B: Backend> Scheduler<B> {
    pub(super) fn new(
        model: Arc<Model<B>>,
        limits: &Limits,
        shared: Arc<Shared>,
        inbox: Receiver<Command>,
    ) -> Self {
        Self {
            batch: Batch::new(&model),
            context: limits.context,
            slots: (0..limits.slots).map(|_| None).collect(),
            queue: Turns::new(),
            given: 0,
            stall_time: limits.stall_time,
            tree: PrefixTree::new(limits.cache_bytes),
            shared,
            inbox,
            close_at: None,
            pace: 0.0,
            threads: std::thread::available_parallelism().map_or(1, usize::from),
            model,
        }
    }

    /// Runs the scheduler's loop: returns once it was told to close and every request is
    /// done, or once it is idle and every handle was dropped.
    pub(super) fn run(&mut self) {
        while self.listen() {
            let turn = catch_unwind(AssertUnwindSafe(|| self.turn()));
            match turn {
                Ok(true) => {}
                // No request made progress, since all channels of events are full: wait
                // until clients read, or for a command.
                Ok(false) => match self.inbox.recv_timeout(NAP) {
                    Ok(command) => self.take(command),
                    Err(RecvTimeoutError::Timeout) => {}
                    Err(RecvTimeoutError::Disconnected) => std::thread::sleep(NAP),
                },
                Err(_) => {
                    tracing::error!("a forward pass panicked; running requests are failed");
                    self.fail_all(&ApiError::internal("the computation failed"));
                }
            }
            self.publish();
        }
    }

    /// Handles the commands in the scheduler's inbox, and waits for one if there is no
    /// request to work on. Returns whether the loop goes on.
    fn listen(&mut self) -> bool {
        loop {
            let idle = self.queue.is_empty() && self.slots.iter().all(Option::is_none);
            if idle && self.close_at.is_some() {
                return false;
            }
            if idle {
                self.publish();
                match self.inbox.recv() {
                    Ok(command) => self.take(command),
                    Err(_) => return false,
                }
                continue;
            }
            match self.inbox.try_recv() {
                Ok(command) => self.take(command),
                Err(TryRecvError::Empty | TryRecvError::Disconnected) => return true,
            }
        }
    }

    fn take(&mut self, command: Command) {
        match command {
            Command::Close(at) => self.close_at = Some(at),
            Command::Submit(job) => {
                // Ranks the new request behind those of its client that got a slot before
                // it came.
                job.served.store(self.given, Ordering::Relaxed);
                for prompt in 0..job.request.prompts.len() {
                    let unit = Unit::new(job.clone(), prompt, 0);
                    self.queue.push(unit.client(), unit);
                }
            }
        }
    }

    /// Makes one turn of the scheduler's loop: starts waiting answers, runs a forward
    /// pass and sends its tokens; returns whether any request made progress.
    fn turn(&mut self) -> bool {
        self.reap();
        self.make_room();
        let admitted = self.admit();
        let started = Instant::now();
        self.plan();
        let rows: usize = self.slots.iter().flatten().map(|s| s.rows).sum();
        let ran = rows == 0 || self.pass(rows, started);
        if !ran {
            return true;
        }
        let ready: Vec<usize> = (0..self.slots.len()).filter(|&i| self.after(i)).collect();
        // While nothing else moves, there is time to wait for masks.
        self.step(if rows == 0 { NAP } else { MASK });
        for &i in &ready {
            self.tell(i);
        }
        rows > 0 || !ready.is_empty() || admitted
    }

    /// Ends the waiting and running answers whose client is gone or does not read, or
    /// whose deadline has passed; frees their slots.
    fn reap(&mut self) {
        let now = Instant::now();
        if self.close_at.is_some_and(|at| now >= at) {
            self.fail_all(&ApiError::closing());
        }
        let (metrics, stall_time) = (self.shared.metrics.clone(), self.stall_time);
        self.queue.retain(|unit| {
            let unread = unit.stalled_for(stall_time, now);
            !ends(unit, unread, now, &metrics)
        });
        for i in 0..self.slots.len() {
            let Some(slot) = &self.slots[i] else {
                continue;
            };
            let unread = slot.stalled.is_some_and(|since| now - since >= stall_time);
            if ends(&slot.unit, unread, now, &metrics) {
                self.free(i);
            }
        }
    }

    /// Gives free slots (places of running answers) to the waiting answers whose turn it
    /// is; returns whether any got one.
    fn admit(&mut self) -> bool {
        let mut any = false;
        for id in 0..self.slots.len() {
            if self.slots[id].is_some() {
                continue;
            }
            let Some(mut unit) = self.queue.pop(Unit::rank) else {
                break;
            };
            any = true;
            self.given += 1;
            unit.job.served.store(self.given, Ordering::Relaxed);
            match self.prepare(&mut unit) {
                Ok(ready) => self.slots[id] = Some(ready.slot(id, unit)),
                Err(error) => unit.fail(error),
            }
        }
        any
    }

    fn prepare(&mut self, unit: &mut Unit<B>) -> Result<Ready<B>, ApiError> {
        if let Some(parked) = unit.parked.take() {
            let past = parked.past;
            let session = match parked.session {
                Some(session) => session,
                None => {
                    let tokens = if past.is_empty() {
                        unit.tokens()
                    } else {
                        &past
                    };
                    self.begin(unit, tokens)?.0
                }
            };
            return Ok(Ready {
                next: parked.next,
                past,
                cached: parked.cached,
                scores: parked.scores,
                last_token: parked.last_token,
                ..Ready::new(session, parked.answer)
            });
        }
        let (codec, vocab) = (self.model.codec(), self.model.spec().vocab);
        let answer = begin_answer(&unit.job, unit.choice, codec, vocab)?;
        if let Some(session) = unit.ready.take() {
            let session = session.lock().unwrap_or_else(PoisonError::into_inner);
            return Ok(Ready::new(session.clone(), answer));
        }
        let (session, common) = self.begin(unit, unit.tokens())?;
        let cached = session.tokens().len();
        Ok(Ready {
            cached,
            branch: Some(common).filter(|&c| c >= cached + BRANCH),
            ..Ready::new(session, answer)
        })
    }

    /// Returns a session that begins with the longest prefix of `tokens` in the prefix
    /// cache, and how many of the tokens earlier prompts share.
    fn begin(&mut self, unit: &Unit<B>, tokens: &[Token]) -> Result<(Session<B>, usize), ApiError> {
        let metrics = &self.shared.metrics;
        let mut common = 0;
        // Prompts whose tokens get log-probabilities take nothing from the prefix cache:
        // the logits after each token are needed.
        let whole = unit.job.request.scores().is_some();
        if unit.job.request.cache && !whole && !self.model.transformer().lane().width_matters() {
            let found = self.tree.find(tokens, |snapshot| {
                let mut session = snapshot.clone();
                if session.tokens() == tokens && session.logits().is_ok() {
                    return (tokens.len(), session);
                }
                (session.keep_prefix(tokens), session)
            });
            common = found.common;
            if let Some((saved, session)) = found.best {
                metrics.cache_hits.inc();
                metrics.cached_tokens.inc_by(saved as u64);
                return Ok((session, common));
            }
            metrics.cache_misses.inc();
        }
        let session = Session::new(self.model.clone(), Some(self.context))?;
        Ok((session, common))
    }

    /// Decides how many tokens (rows) of each running answer or its prompt the next
    /// forward pass evaluates.
    fn plan(&mut self) {
        let lane = self.model.transformer().lane();
        let mut decoding = 0;
        let mut prompts = 0;
        let now = Instant::now();
        for slot in self.slots.iter_mut().flatten() {
            slot.rows = 0;
            if !slot.unit.job.has_room() {
                slot.stalled.get_or_insert(now);
                continue;
            }
            slot.stalled = None;
            if slot.missing() > 0 {
                prompts += 1;
            } else if slot.next.is_some() {
                slot.rows = 1;
                decoding += 1;
            }
        }
        let sizes = self.model.transformer().backend().sizes();
        let most = sizes.micro_batch.saturating_sub(decoding).max(LEAST);
        let quick = (self.pace * PASS.as_secs_f64()) as usize;
        let mut budget = match decoding {
            0 => most,
            _ => quick.clamp(LEAST, most),
        };
        for slot in self.slots.iter_mut().flatten() {
            let missing = slot.missing();
            if slot.stalled.is_some() || missing == 0 {
                continue;
            }
            // In this lane (pinned) the width of a call changes bits, so a prompt is one
            // call.
            if lane.width_matters() {
                slot.rows = missing;
                continue;
            }
            let share = budget.div_ceil(prompts);
            let mut rows = missing.min(share);
            let at = slot.session.tokens().len();
            if let Some(branch) = slot.branch.filter(|&b| b > at) {
                rows = rows.min(branch - at);
            }
            slot.rows = rows;
            budget -= rows.min(budget);
            prompts -= 1;
        }
    }

    /// Runs one forward pass over the planned tokens of all running answers; returns
    /// `false` if it failed and has to be planned anew.
    fn pass(&mut self, rows: usize, started: Instant) -> bool {
        self.score();
        let (codec, vocab) = (self.model.codec(), self.model.spec().vocab);
        let mut advances = Vec::new();
        let (mut of, mut before) = (Vec::new(), Vec::new());
        let mut prompt = false;
        for (i, slot) in self.slots.iter_mut().enumerate() {
            let wanted = slot.as_mut().filter(|s| s.rows > 0 && !s.is_scoring());
            let Some(slot) = wanted else {
                continue;
            };
            let (at, missing) = (slot.session.tokens().len(), slot.missing());
            let target = match slot.past.is_empty() {
                true => slot.unit.tokens(),
                false => &slot.past,
            };
            let (tokens, last) = match &slot.next {
                Some(token) if missing == 0 => (std::slice::from_ref(token), true),
                next => {
                    prompt = true;
                    let end = at + slot.rows;
                    (&target[at..end], end == target.len() && next.is_none())
                }
            };
            let want = match (&slot.answer, last) {
                (_, false) => Want::Nothing,
                (None, true) => Want::State,
                (Some(_), true) => Want::Last,
            };
            // A prompt's logits stay with its session, for the prefix cache and for the
            // request's other answers; those after a token of an answer are read by
            // nobody else.
            let draw = match (&mut slot.answer, &slot.next) {
                (Some(answer), Some(_)) if last => answer.draw(vocab, codec),
                _ => None,
            };
            advances.push(Advance {
                session: &mut slot.session,
                tokens,
                want,
                draw,
            });
            of.push(i);
            before.push((i, at));
        }
        let done = self.batch.run(&mut advances);
        let seconds = started.elapsed().as_secs_f64();
        let metrics = &self.shared.metrics;
        metrics.passes.inc();
        metrics.rows.observe(rows as f64);
        metrics.busy_seconds.inc_by(seconds);
        let bytes = self.model.transformer().bytes_per_token();
        metrics.weight_bytes.inc_by(bytes);
        metrics
            .streaming
            .set(bytes as f64 / 1e9 / seconds.max(1e-9));
        if prompt {
            let now = rows as f64 / seconds.max(1e-9);
            self.pace = if self.pace == 0.0 {
                now
            } else {
                0.7 * self.pace + 0.3 * now
            };
        }
        let refused = match done {
            Ok(drawn) => {
                for (&i, drawn) in of.iter().zip(drawn) {
                    if let Some(slot) = &mut self.slots[i] {
                        slot.drawn = drawn;
                    }
                }
                return true;
            }
            Err(refused) => refused,
        };
        tracing::warn!(error = %refused, "a forward pass was refused");
        let memory = refused.source.is_memory();
        let error = ApiError::from(refused.source);
        match refused.index.and_then(|i| of.get(i)) {
            Some(&i) => self.fail(i, &error),
            None if memory => self.free_memory(&before, &error),
            None => self.fail_all(&error),
        }
        false
    }

    /// Evaluates prompts whose tokens get log-probabilities, each in a call of its own,
    /// outside the forward pass that running answers share.
    fn score(&mut self) {
        for place in &mut self.slots {
            let Some(slot) = place.as_mut().filter(|s| s.rows > 0 && s.is_scoring()) else {
                continue;
            };
            if let Err(error) = slot.score() {
                tracing::warn!(%error, "a prompt could not be scored");
                self.shared.metrics.failed.inc();
                slot.unit.fail(error);
                *place = None;
            }
        }
    }

    /// Updates the running answer in slot `i` after a forward pass; returns whether all
    /// its tokens are evaluated, so that the next one can be chosen.
    fn after(&mut self, i: usize) -> bool {
        let Some(slot) = &mut self.slots[i] else {
            return false;
        };
        if slot.stalled.is_some() {
            return false;
        }
        if slot.ready {
            // The slot waits for its grammar's token mask.
            return true;
        }
        let rows = std::mem::take(&mut slot.rows);
        if slot.next.is_some() && rows == 0 {
            return false;
        }
        // Tokens that were evaluated anew are not counted; the next one is known.
        if slot.next.is_some() && slot.session.tokens().len() <= slot.past.len() {
            return false;
        }
        if slot.next.take().is_none() {
            self.shared.metrics.prompt_tokens.inc_by(rows as u64);
            let at = slot.session.tokens().len();
            let keep = slot.unit.job.request.cache && slot.answer.is_some();
            if keep && slot.branch == Some(at) {
                let mut snapshot = slot.session.clone();
                snapshot.forget_logits();
                let bytes = snapshot.bytes();
                self.tree.insert(&slot.unit.tokens()[..at], snapshot, bytes);
            }
            if slot.missing() > 0 {
                return false;
            }
            self.prompt_done(i);
        }
        if let Some(slot) = &mut self.slots[i] {
            slot.ready = true;
        }
        true
    }

    /// Adds the next token to each running answer that is ready: the token that the
    /// forward pass chose, or one chosen here. With a large vocabulary choosing takes
    /// milliseconds, so the answers share the processors then. Each has its own sampler
    /// and state, so their order changes nothing.
    fn step(&mut self, patience: Duration) {
        let (codec, context) = (self.model.codec(), self.context);
        let slots = self.slots.iter_mut().flatten();
        let mut ready: Vec<&mut Slot<B>> = slots.filter(|s| s.ready).collect();
        let choices = ready.iter().filter(|s| s.drawn.is_none()).count();
        let threads = match self.model.spec().vocab {
            LARGE_VOCAB.. => self.threads.min(choices),
            _ => 1,
        };
        let each = ready.len().div_ceil(threads.max(1)).max(1);
        std::thread::scope(|scope| {
            let mut shares = ready.chunks_mut(each);
            let own = shares.next();
            for share in shares {
                scope.spawn(move || {
                    share
                        .iter_mut()
                        .for_each(|s| s.step(codec, context, patience))
                });
            }
            own.into_iter()
                .flatten()
                .for_each(|s| s.step(codec, context, patience));
        });
    }

    /// Shares the evaluated prompt in slot `i`: puts a snapshot into the prefix cache,
    /// and queues the request's other answers to the prompt, which begin from it.
    fn prompt_done(&mut self, i: usize) {
        let Some(slot) = &mut self.slots[i] else {
            return;
        };
        let Task::Generate(generate) = &slot.unit.job.request.task else {
            return;
        };
        if slot.unit.choice > 0 {
            return;
        }
        if generate.score {
            slot.unit.scored = Some(Arc::new(Scored {
                first: slot.unit.tokens().first().copied().unwrap_or_default(),
                rest: std::mem::take(&mut slot.scores),
            }));
        }
        if generate.n > 1 {
            let ready = Arc::new(Mutex::new(slot.session.clone()));
            for choice in 1..generate.n {
                let mut unit = Unit::new(slot.unit.job.clone(), slot.unit.prompt, choice);
                unit.ready = Some(ready.clone());
                unit.scored = slot.unit.scored.clone();
                self.queue.push(unit.client(), unit);
            }
        }
        if slot.unit.job.request.cache && slot.cached < slot.unit.tokens().len() {
            let bytes = slot.session.bytes();
            let snapshot = slot.session.clone();
            self.tree.insert(slot.unit.tokens(), snapshot, bytes);
        }
    }

    /// Sends to the request's handler what the running answer in slot `i` has new: more
    /// text, its end, or an embedding.
    fn tell(&mut self, i: usize) {
        let metrics = &self.shared.metrics;
        let Some(slot) = &mut self.slots[i] else {
            return;
        };
        slot.ready = false;
        let choice = slot.unit.number();
        let Some(step) = slot.step.take() else {
            match slot.session.logits() {
                Ok(state) => {
                    let state = state.to_vec();
                    let counts = slot.counts();
                    self.end(
                        i,
                        Event::State {
                            choice,
                            state,
                            counts,
                        },
                    );
                }
                Err(e) => {
                    slot.unit.fail(e.into());
                    self.free(i);
                }
            }
            return;
        };
        let (mut delta, outcome) = match step {
            Ok(step) => step,
            Err(e) => {
                metrics.failed.inc();
                slot.unit.fail(e);
                self.free(i);
                return;
            }
        };
        if outcome == Outcome::Later {
            slot.ready = true;
            return;
        }
        let now = Instant::now();
        if slot.is_first {
            let since = now - slot.unit.job.arrived;
            metrics.first_token.observe(since.as_secs_f64());
        } else {
            let since = now - slot.last_token;
            metrics.between_tokens.observe(since.as_secs_f64());
        }
        slot.last_token = now;
        metrics.completion_tokens.inc();
        delta.prompt = slot.unit.scored.take();
        if !delta.is_empty() {
            let counts = slot.counts();
            slot.unit.send(Event::Delta {
                choice,
                delta,
                counts,
            });
        }
        match outcome {
            // Handled above.
            Outcome::Later => {}
            Outcome::Next(token) => slot.next = Some(token),
            Outcome::Done(finish) => {
                let counts = slot.counts();
                let took = now - slot.unit.job.arrived;
                self.shared.took(took.as_secs_f64());
                self.end(
                    i,
                    Event::Done {
                        choice,
                        finish,
                        counts,
                    },
                );
            }
        }
    }

    /// Empties slot `i` (the place of one running answer) and then sends the answer's
    /// last event: in this order, a client that asks again at once finds its place free.
    fn end(&mut self, i: usize, event: Event) {
        let sender = self.slots[i].as_ref().map(|s| s.unit.job.events.clone());
        self.free(i);
        if let Some(sender) = sender {
            // `plan` checked the capacity.
            let _ = sender.try_send(event);
        }
    }

    /// Empties slot `i` (the place of one running answer); its session goes to the prefix
    /// cache if the request may use that.
    fn free(&mut self, i: usize) {
        let Some(mut slot) = self.slots[i].take() else {
            return;
        };
        if slot.unit.job.request.cache && slot.answer.is_some() {
            slot.session.forget_logits();
            let (bytes, tokens) = (slot.session.bytes(), slot.session.tokens().to_vec());
            // The prefix cache has the whole prompt already, with its logits.
            if tokens.len() > slot.unit.tokens().len() || slot.missing() > 0 {
                self.tree.insert(&tokens, slot.session, bytes);
            }
        }
    }

    /// Publishes the state of the slots (places of running answers) to the metrics and to
    /// the route `/slots`.
    fn publish(&self) {
        let metrics = &self.shared.metrics;
        let running = self.slots.iter().flatten().count();
        metrics.running.set(running as i64);
        metrics.waiting.set(self.queue.len() as i64);
        metrics.cache_bytes.set(self.tree.bytes() as i64);
        for (id, status) in self.shared.slots().iter_mut().enumerate() {
            *status = match &self.slots[id] {
                None => SlotStatus {
                    id,
                    ..SlotStatus::default()
                },
                Some(slot) => SlotStatus {
                    id: slot.id,
                    is_processing: true,
                    prompt_tokens: slot.unit.tokens().len(),
                    cached_tokens: slot.cached,
                    completion_tokens: slot.counts().completion,
                },
            };
        }
    }
}

/// Returns whether an answer has to be cut off: it is late, unread or cancelled. If so,
/// records why as the request's failure and counts it.
fn ends<B: Backend>(unit: &Unit<B>, unread: bool, now: Instant, metrics: &Metrics) -> bool {
    let late = now >= unit.job.request.deadline;
    let told = unit.job.failure.get().is_some();
    let reason = match (late, unread) {
        (true, _) => &metrics.timed_out,
        (_, true) => &metrics.unread,
        _ => &metrics.cancelled,
    };
    if late && !unit.is_dead() {
        unit.fail(ApiError::deadline());
    }
    if unread && !unit.is_dead() {
        unit.fail(ApiError::unread());
    }
    let ends = unit.is_dead();
    // A request with several answers (choices) is counted once.
    if ends && !told {
        reason.inc();
    }
    ends
}
