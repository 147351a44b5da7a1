//! One sequence of tokens and the state of the model after it.

use crate::{Error, Model, Token};
use muser_model::{Cache, Step, Want};
use muser_ops::{Backend, Choice, Sampler};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Tokens of one forward call of a prompt. Between two of them a cancel flag
/// is looked at; the cut changes no bit.
const STEP: usize = 512;

/// One mutable timeline over a shared [`Model`].
///
/// The caller always gives the whole prefix, and the session finds out what it
/// can keep. Whatever way it takes, the logits have the same bits.
pub struct Session<B: Backend> {
    model: Arc<Model<B>>,
    pub(crate) cache: Cache<B>,
    context: usize,
    /// What the cache holds.
    pub(crate) tokens: Vec<Token>,
    /// After the last token; empty before the first.
    pub(crate) logits: Vec<f32>,
}

/// Another session with the same past. It costs no copy of it: the storage is
/// shared until one of the two writes.
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

/// What [`Session::sync`] did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SyncReport {
    /// Tokens whose state was kept.
    pub reused: usize,
    /// Tokens that went through the model.
    pub evaluated: usize,
}

impl<B: Backend> Session<B> {
    /// An empty session of `context` positions; `None` takes the model's own
    /// number.
    ///
    /// # Errors
    /// A context of zero, or beyond what the model was trained on.
    pub fn new(model: Arc<Model<B>>, context: Option<usize>) -> Result<Self, Error> {
        let most = model.config().context;
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

    /// The model.
    pub fn model(&self) -> &Arc<Model<B>> {
        &self.model
    }

    /// Positions that fit.
    pub fn context(&self) -> usize {
        self.context
    }

    /// The tokens evaluated so far.
    pub fn tokens(&self) -> &[Token] {
        &self.tokens
    }

    /// The logits after the last token, one a token of the vocabulary.
    ///
    /// # Errors
    /// Nothing was evaluated yet.
    pub fn logits(&self) -> Result<&[f32], Error> {
        if self.logits.is_empty() {
            return Err(Error::NoLogits);
        }
        Ok(&self.logits)
    }

    /// Brings the session to exactly these tokens and evaluates what is new.
    ///
    /// The longest common prefix is kept; what goes beyond it is cut back. If
    /// a sliding layer's ring no longer holds what the cut needs, everything
    /// is evaluated again. The last token is evaluated unless the session
    /// stands just there already.
    ///
    /// # Errors
    /// No tokens, an unknown one, or more than the context holds: the session
    /// is as it was. After a failed evaluation it is empty.
    pub fn sync(&mut self, tokens: &[Token]) -> Result<SyncReport, Error> {
        self.sync_until(tokens, &AtomicBool::new(false))
    }

    /// [`Session::sync`] that stops early when the flag is raised, with what
    /// was evaluated until then kept.
    ///
    /// # Errors
    /// As [`Session::sync`]; [`Error::Cancelled`].
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

    /// Cuts back to the longest common prefix with `tokens` that leaves one of
    /// them to evaluate, or, if the cache no longer can, to nothing; how many
    /// tokens are left.
    pub fn keep_prefix(&mut self, tokens: &[Token]) -> usize {
        let common = self.tokens.iter().zip(tokens);
        let common = common.take_while(|(a, b)| a == b).count();
        self.cut_back(common.min(tokens.len().saturating_sub(1)))
    }

    /// Bytes held, those shared with clones included.
    pub fn bytes(&self) -> u64 {
        let rest = size_of_val(&self.logits[..]) + size_of_val(&self.tokens[..]);
        self.cache.bytes().saturating_add(rest as u64)
    }

    /// Forgets the logits, not the past: the last token has to be evaluated
    /// again for them.
    pub fn forget_logits(&mut self) {
        self.logits = Vec::new();
    }

    /// Evaluates one more token.
    ///
    /// # Errors
    /// As [`Session::sync`].
    pub fn push(&mut self, token: Token) -> Result<(), Error> {
        self.check_room(self.tokens.len() + 1)?;
        self.model.check_tokens(&[token], self.tokens.len())?;
        self.advance(&[token], self.tokens.len() + 1)
    }

    /// Evaluates one more token and chooses the one after it, where the backend
    /// has the logits. They do not become the session's: [`Session::logits`] has
    /// none afterwards. The token is the one that [`Session::push`] and
    /// [`Sampler::sample`] would give.
    ///
    /// # Errors
    /// As [`Session::push`] and [`Sampler::sample`]; after an error of the latter
    /// the token is evaluated.
    pub fn push_and_choose(&mut self, token: Token, sampler: &mut Sampler) -> Result<Token, Error> {
        self.check_room(self.tokens.len() + 1)?;
        self.model.check_tokens(&[token], self.tokens.len())?;
        let chosen = self.forward(&[token], Want::Last, Some(sampler), &mut |_, _| ())?;
        chosen.ok_or(Error::NoLogits)
    }

    /// Evaluates more tokens in one forward call and gives the logits after
    /// each: `each(position, logits)`, ascending.
    ///
    /// # Errors
    /// As [`Session::sync`].
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

    /// Forgets everything but the memory.
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

    /// Cuts back to the first `to` tokens if the cache still can, else to none;
    /// how many are left. There are no logits until something is evaluated.
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

    /// Evaluates the next tokens on the way to `end` of them.
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
        // Stale from here on, whatever happens.
        self.logits.clear();
        let (first, last) = (self.tokens.len(), tokens.len() - 1);
        // The history of a choice includes the tokens of its pass.
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
            // What a failed pass left in the cache is nobody's prefix.
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
