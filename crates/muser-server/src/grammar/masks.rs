//! The masks of one answer, computed on a thread of its own.
//!
//! A mask is computed while the model's next pass is: it is usually there when
//! it is needed. One that is late holds up its own answer only, and after its
//! time ends that answer.

use super::Grammar;
use super::vocabulary::first_line;
use crate::error::ApiError;
use llguidance::toktrie::SimpleVob;
use llguidance::{CancellationHandle, Matcher};
use muser_engine::Token;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// How long an answer waits to learn whether a token ended it.
const ACCEPT: Duration = Duration::from_millis(20);

/// What the thread tells.
enum Told {
    /// The token was taken; whether nothing may follow.
    Taken(bool),
    /// The tokens that may come next.
    Mask(SimpleVob),
    /// It cannot go on.
    Failed(String),
}

/// The masks of one answer.
pub(crate) struct Masks {
    tokens: Option<Sender<Token>>,
    told: Receiver<Told>,
    /// Set by the thread.
    cancel: Arc<OnceLock<CancellationHandle>>,
    mask: Option<SimpleVob>,
    complete: bool,
    /// When the mask was asked for.
    since: Instant,
    time: Duration,
}

impl Masks {
    /// Starts the thread, with the first mask.
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
                // A copy with all its tables, which takes a while.
                let matcher = grammar_of.matcher();
                if let Some(cancel) = matcher.cancellation_handle() {
                    // Nobody else sets it.
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

    /// Waits so long at most for the mask; whether it is there.
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

    /// The mask, once it is ready.
    pub(crate) fn mask(&self) -> Option<&SimpleVob> {
        self.mask.as_ref()
    }

    /// Goes on by a token; whether it is known that nothing may follow. Where
    /// that is not known yet, the next mask says so.
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
        // The thread ends with its inbox.
        self.tokens = None;
    }
}

/// Takes tokens and tells masks until nobody asks.
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Masks of a thread that tells what the test tells.
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
        // Whether it is over is told with the next mask if not at once.
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

fn too_much(reason: &str) -> ApiError {
    ApiError::invalid(format!(
        "the answer's grammar cannot be decoded on from here: {reason}"
    ))
}
