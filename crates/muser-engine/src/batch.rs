//! Several sessions advanced in one forward pass.

use crate::{Error, Model, Session, Token};
use muser_model::{Step, Want, Workspace};
use muser_ops::{Backend, Choice, Sampler};

/// What one session gets of a pass.
pub struct Advance<'a, B: Backend> {
    /// The session.
    pub session: &'a mut Session<B>,
    /// What is evaluated next.
    pub tokens: &'a [Token],
    /// Of what the session has the logits afterwards: of the last token with
    /// [`Want::Last`], of none with [`Want::Nothing`]. With [`Want::State`]
    /// they are no logits but the model's last hidden state, after its norm.
    pub want: Want,
    /// Chooses the next token where the backend has the logits, which then do not
    /// become the session's. Needs [`Want::Last`]; others make no choice.
    pub draw: Option<Draw<'a>>,
}

/// How a session's next token is chosen.
#[derive(Debug)]
pub struct Draw<'a> {
    /// The sampler. Its random numbers advance with each token.
    pub sampler: &'a mut Sampler,
    /// The allowed tokens, as in [`Sampler::sample_among`]; `None` allows all.
    pub allowed: Option<&'a [u32]>,
}

/// The token that was chosen for a session, or why there is none; `None` if
/// none was asked for.
pub type Drawn = Option<Result<Token, Error>>;

/// Why a pass failed.
#[derive(Debug, thiserror::Error)]
#[error("{source}")]
pub struct Refused {
    /// Which of the sessions is the reason; `None` if it is none in particular.
    pub index: Option<usize>,
    /// What is wrong.
    pub source: Error,
}

/// The room that passes over several sessions work in.
///
/// The weights are read once for all sessions of a pass, and each gets the bits
/// that it would get alone.
pub struct Batch<B: Backend> {
    work: Workspace<B>,
}

impl<B: Backend> Batch<B> {
    /// Room for passes of this model.
    pub fn new(model: &Model<B>) -> Self {
        Self {
            work: model.transformer().workspace(),
        }
    }

    /// Advances each session by its tokens and returns the tokens chosen, one
    /// entry a session. They are sessions of one model.
    ///
    /// # Errors
    /// The first refusal. The session that is the reason is empty then, and so
    /// is one whose cache cannot go on from where it was; the others stand where
    /// they stood, without logits, and may be advanced again: no sampler has
    /// drawn a random number. A choice that its sampler's settings refuse fails
    /// alone, in the result.
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
                // Stale from here on, whatever happens.
                session.logits.clear();
            }
            // The history of a choice includes the tokens of its pass.
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
