//! Computes the token masks of one constrained answer on a thread of its own.
//!
//! The mask of the next token is computed during the model's forward pass, so it is
//! usually there when it is needed. A late mask delays its own answer only, and ends
//! that answer when the limit for one mask is passed.

use super::Grammar;
use super::vocabulary::first_line;
use crate::error::ApiError;
use llguidance::toktrie::SimpleVob;
use llguidance::{CancellationHandle, Matcher};
use muser_engine::Token;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// How long an answer waits for the grammar's thread to say whether the token just
/// chosen completes the answer.
const ACCEPT: Duration = Duration::from_millis(20);

/// What the grammar's thread reports to the answer: a token taken, a token mask, or a
/// failure.
enum Told {
    /// The grammar accepted the chosen token; true if the answer is complete, so that
    /// no token may follow.
    Taken(bool),
    /// The mask of the tokens that the grammar allows next.
    Mask(SimpleVob),
    /// The grammar library gave up, for this reason.
    Failed(String),
}

/// The token masks of one constrained answer, and the thread that computes them.
pub(crate) struct Masks {
    tokens: Option<Sender<Token>>,
    told: Receiver<Told>,
    /// The handle that stops the computation of a token mask; set by the grammar's
    /// thread once it has its copy of the grammar.
    cancel: Arc<OnceLock<CancellationHandle>>,
    mask: Option<SimpleVob>,
    complete: bool,
    /// The time at which the current token mask was requested.
    since: Instant,
    time: Duration,
}

impl Masks {
    /// Starts the thread that computes an answer's token masks, with the mask of the
    /// first token.
    ///
    /// # Errors
    /// The system has no thread.
    pub(crate) fn new(grammar: &Grammar) -> Result<Self, ApiError> {
        let cancel = Arc::new(OnceLock::new());
        let (tokens, inbox) = channel();
        let (outbox, told) = channel();
        let (grammar_of, handle) = (grammar.clone(), cancel.clone());
        std::thread::Builder::new()
            .name("mask".into())
            .stack_size(grammar.stack)
            .spawn(move || {
                // Copies the compiled grammar with all its tables, which takes a while.
                let matcher = grammar_of.matcher();
                if let Some(cancel) = matcher.cancellation_handle() {
                    // Cannot fail: only this thread sets the handle.
                    let _ = handle.set(cancel);
                }
                serve(matcher, &inbox, &outbox);
            })
            .map_err(|e| ApiError::internal(format!("no thread for the grammar: {e}")))?;
        Ok(Self {
            tokens: Some(tokens),
            told,
            cancel,
            mask: None,
            complete: false,
            since: Instant::now(),
            time: grammar.mask_time,
        })
    }

    /// Waits at most `patience` for the mask of the next token; returns whether it has
    /// come.
    ///
    /// # Errors
    /// It took its time and more, or the library gave up.
    pub(crate) fn ready(&mut self, patience: Duration) -> Result<bool, ApiError> {
        let until = Instant::now() + patience;
        while self.mask.is_none() {
            let left = until.saturating_duration_since(Instant::now());
            match self.told.recv_timeout(left) {
                Ok(told) => self.take(told)?,
                Err(RecvTimeoutError::Timeout) if self.since.elapsed() >= self.time => {
                    return Err(too_much("more time than one token has"));
                }
                Err(RecvTimeoutError::Timeout) => return Ok(false),
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(ApiError::internal("constrained decoding failed"));
                }
            }
        }
        Ok(true)
    }

    fn take(&mut self, told: Told) -> Result<(), ApiError> {
        match told {
            Told::Taken(complete) => self.complete = complete,
            Told::Mask(mask) => self.mask = Some(mask),
            Told::Failed(reason) => return Err(too_much(&reason)),
        }
        Ok(())
    }

    /// Returns the mask of the tokens that may come next; `None` while it is not ready.
    pub(crate) fn mask(&self) -> Option<&SimpleVob> {
        self.mask.as_ref()
    }

    /// Advances the answer's grammar by the chosen token; returns whether the answer is
    /// known to be complete. If the grammar's thread is late, this is known with the
    /// next token mask.
    ///
    /// # Errors
    /// The library gave up.
    pub(crate) fn push(&mut self, token: Token) -> Result<bool, ApiError> {
        self.mask = None;
        self.since = Instant::now();
        let gone = || ApiError::internal("constrained decoding failed");
        let tokens = self.tokens.as_ref().ok_or_else(gone)?;
        tokens.send(token).map_err(|_| gone())?;
        match self.told.recv_timeout(ACCEPT) {
            Ok(told) => self.take(told)?,
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return Err(gone()),
        }
        Ok(self.complete)
    }
}

impl Drop for Masks {
    fn drop(&mut self) {
        if let Some(cancel) = self.cancel.get() {
            cancel.cancel();
        }
        // Dropping the sender ends the thread.
        self.tokens = None;
    }
}

/// Runs the grammar's thread: sends a token mask, receives the chosen token, and so on
/// until the answer drops its ends of the channels.
fn serve(mut matcher: Matcher, inbox: &Receiver<Token>, outbox: &Sender<Told>) {
    let failed = |error: &dyn std::fmt::Display| Told::Failed(first_line(&error.to_string()));
    loop {
        let told = match matcher.compute_mask_or_eos() {
            Ok(mask) => Told::Mask(mask),
            Err(e) => failed(&e),
        };
        if outbox.send(told).is_err() {
            return;
        }
        let Ok(token) = inbox.recv() else {
            return;
        };
        let told = match matcher.consume_token(token) {
            Ok(()) => Told::Taken(matcher.is_stopped()),
            Err(e) => failed(&e),
        };
        if outbox.send(told).is_err() {
            return;
        }
    }
}

fn too_much(reason: &str) -> ApiError {
    ApiError::invalid(format!(
        "the answer's grammar cannot be decoded on from here: {reason}"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns an answer's masks without a thread: the test itself sends what the
    /// thread would, and receives the tokens.
    fn masks(time: Duration) -> (Masks, Sender<Told>, Receiver<Token>) {
        let (tokens, inbox) = channel();
        let (outbox, told) = channel();
        let masks = Masks {
            tokens: Some(tokens),
            told,
            cancel: Arc::default(),
            mask: None,
            complete: false,
            since: Instant::now(),
            time,
        };
        (masks, outbox, inbox)
    }

    #[test]
    fn a_late_mask_is_asked_for_again_and_holds_nobody_up() {
        let (mut masks, thread, inbox) = masks(Duration::from_secs(3600));
        for _ in 0..3 {
            assert!(!masks.ready(Duration::ZERO).unwrap());
        }
        thread.send(Told::Mask(SimpleVob::alloc(8))).unwrap();
        assert!(masks.ready(Duration::ZERO).unwrap());
        // Whether the answer is complete comes with the next mask if it does not come
        // at once.
        assert!(!masks.push(5).unwrap());
        assert_eq!(inbox.try_recv(), Ok(5));
        assert!(!masks.ready(Duration::ZERO).unwrap());
        thread.send(Told::Taken(true)).unwrap();
        thread.send(Told::Mask(SimpleVob::alloc(8))).unwrap();
        assert!(masks.ready(Duration::ZERO).unwrap());
    }

    #[test]
    fn a_mask_beyond_its_time_ends_the_answer() {
        let (mut masks, thread, _inbox) = masks(Duration::ZERO);
        let error = masks.ready(Duration::ZERO).unwrap_err();
        assert!(error.to_string().contains("more time"), "{error}");
        drop(thread);
        let error = masks.ready(Duration::ZERO).unwrap_err();
        assert!(error.to_string().contains("failed"), "{error}");
    }
}
