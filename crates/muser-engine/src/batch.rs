//! [`Batch`], which advances several sessions (sequences of one model) in one forward
//! pass.

use crate::{Error, Model, Session, Token};
use muser_model::{Step, Want, Workspace};
use muser_ops::{Backend, Choice, Sampler};

/// One session's part in a forward pass over several sessions: the tokens to evaluate,
/// and the outputs that it wants.
pub struct Advance<'a, B: Backend> {
    /// The session (a token sequence with its KV cache) to advance.
    pub session: &'a mut Session<B>,
    /// The tokens that the forward pass evaluates at the end of the session's sequence.
    pub tokens: &'a [Token],
    /// The outputs wanted, which [`Session::logits`] returns after the forward pass:
    /// the logits after the last token with [`Want::Last`] or [`Want::All`], nothing
    /// with [`Want::Nothing`], and the model's last hidden state, after its norm, with
    /// [`Want::State`].
    pub want: Want,
    /// Asks the backend to choose the session's next token, with this sampler and among
    /// these tokens; [`Session::logits`] has no logits then. Needs [`Want::Last`] or
    /// [`Want::All`]. With `None`, no token is chosen.
    pub draw: Option<Draw<'a>>,
}

/// How a session's next token is chosen: the sampler, and the tokens that are allowed.
#[derive(Debug)]
pub struct Draw<'a> {
    /// The sampler that chooses the session's next token. Its random numbers advance
    /// with each token.
    pub sampler: &'a mut Sampler,
    /// The mask of the tokens that may be chosen, as in [`Sampler::sample_among`];
    /// `None` allows all.
    pub allowed: Option<&'a [u32]>,
}

/// The token that a forward pass chose for a session, or why there is none; `None` if
/// no choice was asked for.
pub type Drawn = Option<Result<Token, Error>>;

/// The error of a forward pass over several sessions, and the session that caused it.
#[derive(Debug, thiserror::Error)]
#[error("{source}")]
pub struct Refused {
    /// The index of the session that caused the error; `None` if no single one did.
    pub index: Option<usize>,
    /// The error that ended the forward pass.
    pub source: Error,
}

/// Runs forward passes over several sessions, and owns the buffers of these passes.
///
/// A forward pass reads the weights once for all sessions. Each session gets the same
/// bits as alone.
pub struct Batch<B: Backend> {
    work: Workspace<B>,
}

impl<B: Backend> Batch<B> {
    /// Makes a batch, which advances several sessions of this model at once. It
    /// allocates nothing yet.
    pub fn new(model: &Model<B>) -> Self {
        Self {
            work: model.transformer().workspace(),
        }
    }

    /// Advances each session by its tokens in one forward pass. Returns the tokens
    /// chosen, one entry for each session. All sessions must be of one model.
    ///
    /// # Errors
    /// The first refusal. The session that caused it is empty then, and so is every
    /// session whose cache cannot continue from its old length. The others have their
    /// old tokens and no logits, and can be advanced again; no sampler has drawn a
    /// random number. A choice that fails because of its sampler's settings is an
    /// entry of the result instead.
    pub fn run(&mut self, advances: &mut [Advance<'_, B>]) -> Result<Vec<Drawn>, Refused> {
        for (i, a) in advances.iter().enumerate() {
            let (at, n) = (a.session.tokens.len(), a.tokens.len());
            let fits = a.session.check_room(at.saturating_add(n));
            let known = fits.and_then(|()| a.session.model().check_tokens(a.tokens, at));
            known.map_err(|source| Refused {
                index: Some(i),
                source,
            })?;
        }
        let Some(model) = advances.first().map(|a| a.session.model().clone()) else {
            return Ok(Vec::new());
        };
        let mut logits = Vec::with_capacity(advances.len());
        let mut steps = Vec::with_capacity(advances.len());
        for a in advances.iter_mut() {
            let session = &mut *a.session;
            if !a.tokens.is_empty() {
                // The logits are stale from here on, also after an error.
                session.logits.clear();
            }
            // The history from which a token is chosen includes the tokens of this
            // forward pass.
            session.tokens.extend_from_slice(a.tokens);
            let draw = a.draw.as_mut();
            steps.push(Step {
                cache: &mut session.cache,
                tokens: a.tokens,
                want: a.want,
                choice: draw.map(|d| Choice::new(d.sampler, &session.tokens, d.allowed)),
            });
            logits.push((&mut session.logits, a.tokens.len()));
        }
        let sink = &mut |step: usize, i: usize, row: &[f32]| {
            let (logits, tokens) = &mut logits[step];
            if i + 1 == *tokens {
                logits.extend_from_slice(row);
            }
        };
        let done = model
            .transformer()
            .forward_many(&mut self.work, &mut steps, sink);
        match done {
            Ok(()) => {
                let choices = steps.iter_mut().map(|step| step.choice.as_mut());
                let drawn = choices.map(|choice| choice.and_then(Choice::take));
                Ok(drawn.map(|d| d.map(|token| Ok(token?))).collect())
            }
            Err(e) => {
                for (i, a) in advances.iter_mut().enumerate() {
                    let len = a.session.tokens.len() - a.tokens.len();
                    a.session.tokens.truncate(len);
                    a.session.logits.clear();
                    if e.step == Some(i) || !a.session.cache.truncate(len) {
                        a.session.clear();
                    }
                }
                Err(Refused {
                    index: e.step,
                    source: e.source.into(),
                })
            }
        }
    }
}

impl<B: Backend> std::fmt::Debug for Batch<B> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Batch").finish_non_exhaustive()
    }
}
