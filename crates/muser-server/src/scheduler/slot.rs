//! One choice of a request: waiting, running, or parked in between.

use super::answer::{Answer, Outcome, Source};
use super::{Counts, Delta, Event, Job, Scored, Task, TokenLogProb};
use crate::error::ApiError;
use crate::limits::turns::Turns;
use crate::limits::work::Client;
use muser_engine::{Backend, Codec, Drawn, LogProbs, Session, Token};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// The choices that wait for a slot, by client.
pub(super) type Queue<B> = Turns<Client, Unit<B>>;

/// One choice of a request.
pub(super) struct Unit<B: Backend> {
    pub(super) job: Arc<Job>,
    /// The number of its prompt in the request.
    pub(super) prompt: usize,
    /// Its number among the prompt's choices.
    pub(super) choice: usize,
    /// The evaluated prompt, made by the prompt's first choice for all others. Locked
    /// because a session is not `Sync`.
    pub(super) ready: Option<Arc<Mutex<Session<B>>>>,
    /// The prompt's log-probabilities, made by the first choice too.
    pub(super) scored: Option<Arc<Scored>>,
    /// Its state when it gave its slot away.
    pub(super) parked: Option<Box<Parked<B>>>,
}

/// A choice that has begun and has no slot.
pub(super) struct Parked<B: Backend> {
    /// Its session; `None` if its tokens have to be evaluated anew.
    pub(super) session: Option<Session<B>>,
    /// Its prompt and answer so far, if they have to be evaluated anew.
    pub(super) past: Vec<Token>,
    pub(super) answer: Option<Answer>,
    pub(super) next: Option<Token>,
    pub(super) cached: usize,
    /// As [`Slot::scores`].
    pub(super) scores: Vec<TokenLogProb>,
    pub(super) last_token: Instant,
    /// When its client stopped reading.
    pub(super) stalled: Option<Instant>,
}

impl<B: Backend> Unit<B> {
    /// A choice that has not begun.
    pub(super) fn new(job: Arc<Job>, prompt: usize, choice: usize) -> Self {
        Self {
            job,
            prompt,
            choice,
            ready: None,
            scored: None,
            parked: None,
        }
    }

    pub(super) fn client(&self) -> Client {
        self.job.work.client
    }

    pub(super) fn tokens(&self) -> &[Token] {
        &self.job.request.prompts[self.prompt]
    }

    /// The choice's number among all of the request.
    pub(super) fn number(&self) -> usize {
        self.prompt * self.job.request.n() + self.choice
    }

    pub(super) fn send(&self, event: Event) {
        // `plan` checked the capacity; `reap` removes closed receivers.
        let _ = self.job.events.try_send(event);
    }

    pub(super) fn fail(&self, error: ApiError) {
        // The first reason stays.
        let _ = self.job.failure.set(error);
    }

    pub(super) fn is_dead(&self) -> bool {
        self.job.events.is_closed() || self.job.failure.get().is_some()
    }

    /// Its rank among the client's choices: the request that has waited longest for a
    /// slot is first. `None` while the client does not read.
    pub(super) fn rank(&self) -> Option<u64> {
        let served = self.job.served.load(Ordering::Relaxed);
        self.job.has_room().then_some(served)
    }

    /// Whether its session is kept while it waits.
    pub(super) fn keeps_session(&self) -> bool {
        self.parked.as_ref().is_some_and(|p| p.session.is_some())
    }

    /// Whether its client has not read for this long.
    pub(super) fn stalled_for(&self, time: Duration, now: Instant) -> bool {
        let since = self.parked.as_ref().and_then(|p| p.stalled);
        since.is_some_and(|since| now.saturating_duration_since(since) >= time)
    }
}

/// A running choice.
pub(super) struct Slot<B: Backend> {
    pub(super) id: usize,
    pub(super) unit: Unit<B>,
    pub(super) session: Session<B>,
    /// `None` for an embedding.
    pub(super) answer: Option<Answer>,
    /// The token to evaluate next, after the prompt.
    pub(super) next: Option<Token>,
    /// The tokens to evaluate instead of the prompt, for a choice that was parked without
    /// its session; empty otherwise.
    pub(super) past: Vec<Token>,
    /// Where other prompts are likely to differ from this one, which is worth a
    /// snapshot.
    pub(super) branch: Option<usize>,
    pub(super) cached: usize,
    /// The prompt's log-probabilities while it is evaluated, if they are asked for.
    pub(super) scores: Vec<TokenLogProb>,
    pub(super) last_token: Instant,
    pub(super) stalled: Option<Instant>,
    /// When it got the slot.
    pub(super) since: Instant,
    /// Its rows in the current pass.
    pub(super) rows: usize,
    /// Whether the next token can be chosen.
    pub(super) ready: bool,
    /// The token that the pass chose, where it did.
    pub(super) drawn: Drawn,
    /// Whether that token is the first one.
    pub(super) is_first: bool,
    /// The result of choosing it.
    pub(super) step: Option<Result<(Delta, Outcome), ApiError>>,
}

impl<B: Backend> Slot<B> {
    /// The tokens to evaluate before the next one can be chosen.
    pub(super) fn target(&self) -> &[Token] {
        match self.past.is_empty() {
            true => self.unit.tokens(),
            false => &self.past,
        }
    }

    /// The number of them that are not evaluated yet.
    pub(super) fn missing(&self) -> usize {
        self.target()
            .len()
            .saturating_sub(self.session.tokens().len())
    }

    /// Chooses the next token; does nothing for an embedding.
    pub(super) fn step(&mut self, codec: &Codec, context: usize, patience: Duration) {
        let Some(answer) = &mut self.answer else {
            return;
        };
        self.is_first = answer.counts().completion == 0;
        let source = match self.drawn.take() {
            Some(token) => token.map(Source::Pass),
            None => self.session.logits().map(Source::Logits),
        };
        let (source, history) = (source.map_err(ApiError::from), self.session.tokens());
        self.step = Some(source.and_then(|s| answer.step(s, history, context, codec, patience)));
    }

    /// Whether the prompt is being evaluated and each of its tokens has to be scored.
    pub(super) fn is_scoring(&self) -> bool {
        self.next.is_none() && self.unit.job.request.scores().is_some()
    }

    /// Evaluates the next tokens of a prompt in a call of their own, since the logits of
    /// each are needed: 4 bytes for each token of the vocabulary.
    pub(super) fn score(&mut self) -> Result<(), ApiError> {
        let top = self.unit.job.request.scores().unwrap_or_default();
        let at = self.session.tokens().len();
        let (tokens, scores) = (self.unit.tokens(), &mut self.scores);
        let mut each = |position: usize, logits: &[f32]| {
            let Some(&token) = tokens.get(position + 1) else {
                return;
            };
            let all = LogProbs::new(logits);
            scores.push(TokenLogProb {
                token,
                // The prompt was checked, so the token exists.
                logprob: all.of(token).unwrap_or(f64::NEG_INFINITY),
                top: all.top(top),
            });
        };
        let part = &tokens[at..at + self.rows];
        Ok(self.session.score(part, &mut each)?)
    }

    pub(super) fn counts(&self) -> Counts {
        let counts = self.answer.as_ref().map(Answer::counts).unwrap_or_default();
        let first = self.unit.choice == 0;
        Counts {
            prompt: if first { self.unit.tokens().len() } else { 0 },
            cached: if first { self.cached } else { 0 },
            ..counts
        }
    }

    /// Takes the choice out of its slot, to go on later.
    pub(super) fn park(self) -> Unit<B> {
        let mut unit = self.unit;
        unit.parked = Some(Box::new(Parked {
            session: Some(self.session),
            past: self.past,
            answer: self.answer,
            next: self.next,
            cached: self.cached,
            scores: self.scores,
            last_token: self.last_token,
            stalled: self.stalled,
        }));
        unit
    }
}

/// The state that a slot begins with.
pub(super) struct Ready<B: Backend> {
    pub(super) session: Session<B>,
    pub(super) answer: Option<Answer>,
    pub(super) next: Option<Token>,
    pub(super) past: Vec<Token>,
    pub(super) cached: usize,
    pub(super) branch: Option<usize>,
    pub(super) scores: Vec<TokenLogProb>,
    pub(super) last_token: Instant,
}

impl<B: Backend> Ready<B> {
    /// The state at the beginning of a choice.
    pub(super) fn new(session: Session<B>, answer: Option<Answer>) -> Self {
        Self {
            session,
            answer,
            next: None,
            past: Vec::new(),
            cached: 0,
            branch: None,
            scores: Vec::new(),
            last_token: Instant::now(),
        }
    }

    pub(super) fn slot(self, id: usize, unit: Unit<B>) -> Slot<B> {
        Slot {
            id,
            unit,
            session: self.session,
            answer: self.answer,
            next: self.next,
            past: self.past,
            branch: self.branch,
            cached: self.cached,
            scores: self.scores,
            last_token: self.last_token,
            stalled: None,
            since: Instant::now(),
            rows: 0,
            ready: false,
            drawn: None,
            is_first: false,
            step: None,
        }
    }
}

/// Makes the answer of a choice that has not begun.
pub(super) fn begin_answer(
    job: &Job,
    choice: usize,
    codec: &Codec,
    vocab: usize,
) -> Result<Option<Answer>, ApiError> {
    match &job.request.task {
        Task::Embed => Ok(None),
        Task::Generate(g) => Answer::new(g, codec, vocab, choice as u64).map(Some),
    }
}
