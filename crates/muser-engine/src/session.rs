//! [`Session`], one sequence of tokens with its KV cache and the logits after it.

use crate::{Error, Model, Token};
use muser_model::{Cache, Step, Want};
use muser_ops::{Backend, Choice, Sampler};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Number of a prompt's tokens that are evaluated between two checks of the cancel
/// flag. Where the prompt is cut changes no bit of the logits.
const STEP: usize = 512;

/// One sequence of tokens on a shared [`Model`], with its KV cache and its last
/// logits.
///
/// The caller always gives the whole prefix ([`Session::sync`]), and the session reuses
/// what it already holds of it. The logits have the same bits whatever it reused.
pub struct Session<B: Backend> {
    model: Arc<Model<B>>,
    pub(crate) cache: Cache<B>,
    context: usize,
    /// The sequence's tokens, whose K and V are in the cache.
    pub(crate) tokens: Vec<Token>,
    /// The logits after the sequence's last token; empty if there are none.
    pub(crate) logits: Vec<f32>,
}

/// Makes another session with the same tokens and logits. The two sessions share the
/// KV cache until one of them writes.
impl<B: Backend> Clone for Session<B> {
    fn clone(&self) -> Self {
        Self {
            model: self.model.clone(),
            cache: self.cache.clone(),
            context: self.context,
            tokens: self.tokens.clone(),
            logits: self.logits.clone(),
        }
    }
}

/// The work that [`Session::sync`] did to bring a session to the tokens asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SyncReport {
    /// Number of tokens whose K and V were reused from the session's cache.
    pub reused: usize,
    /// Number of tokens that the model evaluated, since the session did not hold them.
    pub evaluated: usize,
}

impl<B: Backend> Session<B> {
    /// Makes an empty session with room for `context` positions; `None` takes the
    /// longest context that the model has.
    ///
    /// # Errors
    /// A context of 0, or larger than the model's.
    pub fn new(model: Arc<Model<B>>, context: Option<usize>) -> Result<Self, Error> {
        let most = model.spec().context;
        let context = context.unwrap_or(most);
        if context == 0 || context > most {
            return Err(Error::Parameter {
                name: "context",
                expected: format!("1 to the model's {most} positions"),
                found: context.to_string(),
            });
        }
        Ok(Self {
            cache: model.transformer().cache(context),
            model,
            context,
            tokens: Vec::new(),
            logits: Vec::new(),
        })
    }

    /// Returns the model that the session runs on.
    pub fn model(&self) -> &Arc<Model<B>> {
        &self.model
    }

    /// Returns the most positions that the session can hold (its context).
    pub fn context(&self) -> usize {
        self.context
    }

    /// Returns the tokens of the session's sequence, all of which are evaluated.
    pub fn tokens(&self) -> &[Token] {
        &self.tokens
    }

    /// Returns the logits after the sequence's last token, one for each token of the
    /// vocabulary.
    ///
    /// # Errors
    /// [`Error::NoLogits`] if nothing was evaluated yet, if the session was cut back,
    /// or if a token was chosen in place of reading the logits.
    pub fn logits(&self) -> Result<&[f32], Error> {
        if self.logits.is_empty() {
            return Err(Error::NoLogits);
        }
        Ok(&self.logits)
    }

    /// Brings the session's sequence to exactly these tokens, and evaluates those that
    /// its KV cache does not hold.
    ///
    /// Keeps the longest common prefix with its own tokens and cuts off the rest. If a
    /// ring (the cache of a sliding layer, which keeps the last positions only) no
    /// longer holds what the cut needs, everything is evaluated again. The last token
    /// is always evaluated, unless the session has these tokens and their logits
    /// already.
    ///
    /// # Errors
    /// No tokens, an unknown one, or more than the context holds; the session is
    /// unchanged then. An error of the evaluation leaves the session empty.
    pub fn sync(&mut self, tokens: &[Token]) -> Result<SyncReport, Error> {
        self.sync_until(tokens, &AtomicBool::new(false))
    }

    /// Runs [`Session::sync`], but stops early when the cancel flag is raised, and
    /// keeps what was evaluated until then.
    ///
    /// # Errors
    /// Those of [`Session::sync`]; [`Error::Cancelled`].
    pub fn sync_until(
        &mut self,
        tokens: &[Token],
        cancel: &AtomicBool,
    ) -> Result<SyncReport, Error> {
        if tokens.is_empty() {
            return Err(Error::EmptyPrompt);
        }
        self.check_room(tokens.len())?;
        self.model.check_tokens(tokens, 0)?;
        if self.tokens == tokens && !self.logits.is_empty() {
            return Ok(SyncReport {
                reused: tokens.len(),
                evaluated: 0,
            });
        }
        let reused = self.keep_prefix(tokens);
        for step in tokens[reused..].chunks(STEP) {
            if cancel.load(Ordering::Relaxed) {
                return Err(Error::Cancelled);
            }
            self.advance(step, tokens.len())?;
        }
        Ok(SyncReport {
            reused,
            evaluated: tokens.len() - reused,
        })
    }

    /// Truncates the session's sequence to the longest common prefix with `tokens` that
    /// leaves at least one of them to evaluate. Returns the length kept: 0 if the KV
    /// cache can no longer continue from there.
    pub fn keep_prefix(&mut self, tokens: &[Token]) -> usize {
        let common = self.tokens.iter().zip(tokens);
        let common = common.take_while(|(a, b)| a == b).count();
        self.cut_back(common.min(tokens.len().saturating_sub(1)))
    }

    /// Returns the bytes that the session holds: KV cache, logits and tokens,
    /// including what it shares with clones.
    pub fn bytes(&self) -> u64 {
        let rest = size_of_val(&self.logits[..]) + size_of_val(&self.tokens[..]);
        self.cache.bytes().saturating_add(rest as u64)
    }

    /// Frees the session's logits and keeps its tokens. To have logits again, the last
    /// token must be evaluated again.
    pub fn forget_logits(&mut self) {
        self.logits = Vec::new();
    }

    /// Evaluates one more token at the end of the session's sequence.
    ///
    /// # Errors
    /// Those of [`Session::sync`].
    pub fn push(&mut self, token: Token) -> Result<(), Error> {
        self.check_room(self.tokens.len() + 1)?;
        self.model.check_tokens(&[token], self.tokens.len())?;
        self.advance(&[token], self.tokens.len() + 1)
    }

    /// Evaluates one more token at the end of the session's sequence, and lets the
    /// backend choose the one after it; [`Session::logits`] has no logits afterwards.
    /// The chosen token is the same that [`Session::push`] followed by
    /// [`Sampler::sample`] gives.
    ///
    /// # Errors
    /// Those of [`Session::push`] and [`Sampler::sample`]. If only the choice failed,
    /// the token was evaluated.
    pub fn push_and_choose(&mut self, token: Token, sampler: &mut Sampler) -> Result<Token, Error> {
        self.check_room(self.tokens.len() + 1)?;
        self.model.check_tokens(&[token], self.tokens.len())?;
        let chosen = self.forward(&[token], Want::Last, Some(sampler), &mut |_, _| ())?;
        chosen.ok_or(Error::NoLogits)
    }

    /// Evaluates more tokens of the session's sequence in one forward call, and calls
    /// `each(position, logits)` with the logits after each of them, in order.
    ///
    /// # Errors
    /// Those of [`Session::sync`].
    pub fn score(
        &mut self,
        tokens: &[Token],
        each: &mut dyn FnMut(usize, &[f32]),
    ) -> Result<(), Error> {
        self.check_room(self.tokens.len().saturating_add(tokens.len()))?;
        self.model.check_tokens(tokens, self.tokens.len())?;
        self.forward(tokens, Want::All, None, each)?;
        Ok(())
    }

    /// Removes all tokens from the session. The memory of its KV cache is kept.
    pub fn clear(&mut self) {
        self.cache.clear();
        self.tokens.clear();
        self.logits.clear();
    }

    pub(crate) fn check_room(&self, needed: usize) -> Result<(), Error> {
        if needed <= self.context {
            return Ok(());
        }
        Err(Error::ContextFull {
            needed,
            context: self.context,
        })
    }

    /// Truncates the session's sequence to `to` tokens and returns the new length: 0 if
    /// the KV cache can no longer continue from position `to`. There are no logits
    /// afterwards, unless there was nothing to cut.
    pub fn cut_back(&mut self, to: usize) -> usize {
        if to >= self.tokens.len() {
            return self.tokens.len();
        }
        if !self.cache.truncate(to) {
            self.clear();
            return 0;
        }
        self.tokens.truncate(to);
        self.logits.clear();
        to
    }

    /// Evaluates the next tokens of a prompt that has `end` tokens in all. Logits are
    /// computed for the last token of the prompt only.
    fn advance(&mut self, tokens: &[Token], end: usize) -> Result<(), Error> {
        let last = self.tokens.len() + tokens.len() == end;
        let want = if last { Want::Last } else { Want::Nothing };
        self.forward(tokens, want, None, &mut |_, _| ())?;
        Ok(())
    }

    fn forward(
        &mut self,
        tokens: &[Token],
        want: Want,
        sampler: Option<&mut Sampler>,
        each: &mut dyn FnMut(usize, &[f32]),
    ) -> Result<Option<Token>, Error> {
        if tokens.is_empty() {
            return Ok(None);
        }
        // The logits are stale from here on, also after an error.
        self.logits.clear();
        let (first, last) = (self.tokens.len(), tokens.len() - 1);
        // The history from which a token is chosen includes the tokens of this forward
        // pass.
        self.tokens.extend_from_slice(tokens);
        let mut step = Step {
            cache: &mut self.cache,
            tokens,
            want,
            choice: sampler.map(|sampler| Choice::new(sampler, &self.tokens, None)),
        };
        let (logits, transformer) = (&mut self.logits, self.model.transformer());
        let result = transformer.forward_step(&mut step, &mut |i, row| {
            if i == last {
                logits.extend_from_slice(row);
            }
            each(first + i, row);
        });
        if let Err(e) = result {
            // A failed forward pass may have left a part of the tokens in the KV
            // cache.
            self.clear();
            return Err(e.into());
        }
        let chosen = step.choice.as_mut().and_then(Choice::take);
        Ok(chosen.transpose()?)
    }
}

impl<B: Backend> std::fmt::Debug for Session<B> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Session")
            .field("context", &self.context)
            .field("tokens", &self.tokens.len())
            .finish()
    }
}
