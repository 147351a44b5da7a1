//! One of a request's completions (a choice) on its way through the scheduler: waiting
//! for a slot, running in one, or parked in between.

use super::answer::{Answer, Outcome, Source};
use super::{Counts, Delta, Event, Job, Scored, Task, TokenLogProb};
use crate::error::ApiError;
use crate::limits::turns::Turns;
use crate::limits::work::Client;
use muser_engine::{Backend, Codec, Drawn, LogProbs, Session, Token};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// The queue of answers that wait for a slot (the place of one running answer); clients
/// take turns.
pub(super) type Queue<B> = Turns<Client, Unit<B>>;

/// One of a request's completions (a choice), which waits for a slot or runs in one.
pub(super) struct Unit<B: Backend> {
    pub(super) job: Arc<Job>,
    /// The index of the answer's prompt among the request's prompts.
    pub(super) prompt: usize,
    /// The index of the answer among those to the same prompt.
    pub(super) choice: usize,
    /// The session with the evaluated prompt, which the first answer to the prompt made
    /// for all others. Locked because a session is not `Sync`.
    pub(super) ready: Option<Arc<Mutex<Session<B>>>>,
    /// The log-probabilities of the prompt's tokens, which the first answer to the prompt
    /// computed for all others.
    pub(super) scored: Option<Arc<Scored>>,
    /// The state of an answer that had a slot (a place among the running answers) and
    /// gave it away; `None` if it has not begun.
    pub(super) parked: Option<Box<Parked<B>>>,
}

/// The state of a parked answer: it has begun and has no slot (place among the running
/// answers) at present.
pub(super) struct Parked<B: Backend> {
    /// The parked answer's session with its KV cache; `None` if its tokens have to be
    /// evaluated anew.
    pub(super) session: Option<Session<B>>,
    /// The tokens of the prompt and of the answer so far, if they have to be evaluated
    /// anew; otherwise empty.
    pub(super) past: Vec<Token>,
    pub(super) answer: Option<Answer>,
    pub(super) next: Option<Token>,
    pub(super) cached: usize,
    /// The log-probabilities of the prompt's tokens that are evaluated already, if they
    /// are asked for.
    pub(super) scores: Vec<TokenLogProb>,
    pub(super) last_token: Instant,
    /// Since when the client does not read the answer; `None` if it reads.
    pub(super) stalled: Option<Instant>,
}

impl<B: Backend> Unit<B> {
    /// Creates a waiting entry for one of a request's completions (a choice), which has
    /// not begun.
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

    /// Returns the answer's index among all answers of its request, over all prompts.
    pub(super) fn number(&self) -> usize {
        self.prompt * self.job.request.n() + self.choice
    }

    pub(super) fn send(&self, event: Event) {
        // The scheduler's `plan` checked the channel's room; its `reap` removes choices
        // whose receiver is closed.
        let _ = self.job.events.try_send(event);
    }

    pub(super) fn fail(&self, error: ApiError) {
        // If the request has failed already, the first reason stays.
        let _ = self.job.failure.set(error);
    }

    pub(super) fn is_dead(&self) -> bool {
        self.job.events.is_closed() || self.job.failure.get().is_some()
    }

    /// Returns the rank of a waiting answer among those of its client: the least for the
    /// request that has waited longest. `None` while the client does not read.
    pub(super) fn rank(&self) -> Option<u64> {
        let served = self.job.served.load(Ordering::Relaxed);
        self.job.has_room().then_some(served)
    }

    /// Whether a waiting answer keeps its session, and with it the KV cache.
    pub(super) fn keeps_session(&self) -> bool {
        self.parked.as_ref().is_some_and(|p| p.session.is_some())
    }

    /// Whether the client of a waiting answer has not read for at least `time`.
    pub(super) fn stalled_for(&self, time: Duration, now: Instant) -> bool {
        let since = self.parked.as_ref().and_then(|p| p.stalled);
        since.is_some_and(|since| now.saturating_duration_since(since) >= time)
    }
}

/// A slot (the place of one running answer) in use: the answer, its session, and its
/// share of the current forward pass.
pub(super) struct Slot<B: Backend> {
    pub(super) id: usize,
    pub(super) unit: Unit<B>,
    pub(super) session: Session<B>,
    /// The state of the answer; `None` if an embedding is computed.
    pub(super) answer: Option<Answer>,
    /// The answer's latest token, which the model evaluates next; `None` while the prompt
    /// is evaluated.
    pub(super) next: Option<Token>,
    /// The tokens to evaluate instead of the prompt (prompt and answer so far), for an
    /// answer that was parked without its session; empty otherwise.
    pub(super) past: Vec<Token>,
    /// The number of tokens after which other prompts are likely to differ from this one:
    /// there, a snapshot of the session is worth its memory.
    pub(super) branch: Option<usize>,
    pub(super) cached: usize,
    /// The log-probabilities of the prompt's tokens evaluated so far, if they are asked
    /// for.
    pub(super) scores: Vec<TokenLogProb>,
    pub(super) last_token: Instant,
    pub(super) stalled: Option<Instant>,
    /// When the answer got its slot (its place among the running answers).
    pub(super) since: Instant,
    /// The number of this answer's (or its prompt's) tokens that the current forward pass
    /// evaluates.
    pub(super) rows: usize,
    /// Whether all tokens of the prompt and of the answer so far are evaluated, so that
    /// the answer's next token can be chosen.
    pub(super) ready: bool,
    /// The answer's next token, if the forward pass itself chose it.
    pub(super) drawn: Drawn,
    /// Whether the token chosen last is the first of its answer.
    pub(super) is_first: bool,
    /// The result of choosing the answer's next token, kept until it is sent to the
    /// client.
    pub(super) step: Option<Result<(Delta, Outcome), ApiError>>,
}

impl<B: Backend> Slot<B> {
    /// Returns the tokens that have to be evaluated before the answer's next token can be
    /// chosen.
    pub(super) fn target(&self) -> &[Token] {
        match self.past.is_empty() {
            true => self.unit.tokens(),
            false => &self.past,
        }
    }

    /// Returns how many tokens of the prompt, or of a parked answer's past, are not
    /// evaluated yet.
    pub(super) fn missing(&self) -> usize {
        self.target()
            .len()
            .saturating_sub(self.session.tokens().len())
    }

    /// Chooses the next token of the answer that runs in the slot; does nothing for an
    /// embedding.
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

    /// Whether the prompt is being evaluated and each of its tokens gets a
    /// log-probability.
    pub(super) fn is_scoring(&self) -> bool {
        self.next.is_none() && self.unit.job.request.scores().is_some()
    }

    /// Evaluates the next tokens of a prompt and records their log-probabilities. They
    /// have a call of their own, since the logits after each token are needed: 4 bytes
    /// for each token of the vocabulary.
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

    /// Takes a running answer out of its slot (its place in the forward passes) and keeps
    /// its state, so that it can go on later.
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

/// The state with which an answer enters a slot (the place of one running answer): its
/// session, its tokens and what it generated.
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
    /// Creates the state in which a new answer enters a slot (the place of one running
    /// answer), with this session.
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

/// Creates the state of an answer that has not begun; `None` if the request wants an
/// embedding.
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
