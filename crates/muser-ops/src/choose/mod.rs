//! The choice of the next token from logits, the same on every machine.
//!
//! ```text
//! allowed    l_i = -inf for tokens that a grammar rules out
//! bias       l_i += bias_i
//! penalties  for tokens i among the last n of the history, c_i times:
//!                l_i = l_i > 0 ? l_i / repeat : l_i · repeat
//!                l_i = l_i - (c_i · frequency + presence)
//! greedy     temperature 0: the largest l_i, the lowest i on ties. The end.
//! weights    w_i = exp((l_i - max l) / temperature)     f32
//! top-k      the first k by (l descending, i ascending)
//! top-p      in that order, up to the first at which Σ w >= p · Σ w of all kept
//! min-p      in that order, up to the last with w >= min_p   (the largest w is 1)
//! draw       u in [0, 1); in that order, the first at which Σ w > u · Σ w of all kept
//! ```
//!
//! This is version 2 of the sampling ([`VERSION`]). Every step is an IEEE operation or
//! [`crate::math::exp`]. Every sum is a reduction in the order of the strict lane,
//! muser's own arithmetic ([`crate::reduce`], in f32), of the weights in the order
//! above: the sum up to rank n is the reduction of the first n weights. Where top-k cuts
//! nothing, the sum over the vocabulary takes the weights by token id. Products with p
//! and u, and the comparisons with them, are in f64. `u` is the upper 53 bits of the
//! next 64 of ChaCha8, keyed with the seed. A greedy choice draws no random number;
//! every other choice draws exactly one.
//!
//! A [`Sampler`] computes the choice on the host and defines the token. A backend may
//! compute it where the logits are ([`Backend::choose`](crate::Backend::choose)) and
//! must then choose the same token or report the same error.

mod params;
mod ranked;
mod rng;
mod sampler;
#[cfg(test)]
mod tests;
mod tree;

pub use params::SamplingParams;
pub use ranked::Ranked;
pub use sampler::Sampler;

/// The version of the arithmetic of sampling. It rises whenever a sampled token can
/// change; greedy tokens depend on the logits alone.
///
/// In version 1, the sums of token weights were in f64, one weight after the other.
/// Version 2 takes them in 256 partial sums, so that a device can choose the token that
/// the host would.
pub const VERSION: u32 = 2;

/// The error of a sampler that could not be made, or of a token that could not be
/// chosen.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ChoiceError {
    /// A sampling parameter is out of its range.
    #[error("{name}: expected {expected}, found {found}")]
    Parameter {
        /// The name of the sampling parameter that is out of its range.
        name: &'static str,
        /// The range of the sampling parameter, in words.
        expected: String,
        /// The value of the sampling parameter that is out of its range.
        found: String,
    },
    /// A logit that the model computed is infinite or a NaN.
    #[error("the logit of token {token} is {found}")]
    Logit {
        /// The first token whose logit, as the model computed it, is not finite.
        token: usize,
        /// The token's logit as the model computed it, infinite or a NaN.
        found: f32,
    },
    /// The bias and penalties of the sampling parameters made a finite logit a NaN or
    /// plus infinity.
    #[error("the logit of token {token} is {found}")]
    Adjusted {
        /// The first token whose logit became a NaN or plus infinity by bias and
        /// penalties.
        token: usize,
        /// The token's logit after bias and penalties, a NaN or plus infinity.
        found: f32,
    },
    /// The bias of logits, or the set of allowed tokens, rules out every token.
    #[error("logit_bias: expected to leave a token to sample, found all ruled out")]
    NothingLeft,
}

/// One token to choose: a sampler, what its choice depends on beside the logits, and the
/// outcome, a token or an error.
///
/// The random numbers of a choice's sampler advance when [`Choice::take`] hands out a
/// token, not when it is chosen. So a choice whose forward pass failed can be dropped,
/// and made again without a change of the token.
#[derive(Debug)]
pub struct Choice<'a> {
    sampler: &'a mut Sampler,
    history: &'a [u32],
    allowed: Option<&'a [u32]>,
    outcome: Option<Result<u32, ChoiceError>>,
}

impl<'a> Choice<'a> {
    /// Prepares the choice of one token, which has no outcome yet.
    ///
    /// The slice `history` is all tokens so far, prompt and answer; the penalties look
    /// at its end. `allowed` is a bit mask of tokens: bit i % 32 of word i / 32 allows
    /// token i; a token beyond the last word is not allowed. `None` allows all.
    pub fn new(sampler: &'a mut Sampler, history: &'a [u32], allowed: Option<&'a [u32]>) -> Self {
        Self {
            sampler,
            history,
            allowed,
            outcome: None,
        }
    }

    /// Returns the settings (temperature, top-k, …) of the sampler that makes this
    /// choice.
    pub fn params(&self) -> &SamplingParams {
        self.sampler.params()
    }

    /// Returns all tokens of the sequence so far, prompt and answer.
    pub fn history(&self) -> &'a [u32] {
        self.history
    }

    /// Returns the bit mask of the tokens that may be chosen, one bit for each token;
    /// `None` allows all.
    pub fn allowed(&self) -> Option<&'a [u32]> {
        self.allowed
    }

    /// Returns the random number u in [0, 1) that decides which token is sampled. It
    /// stays the same until [`Choice::take`] hands out a token.
    pub fn uniform(&self) -> f64 {
        self.sampler.uniform()
    }

    /// Chooses the token on the host, from one row of logits (one for each token of the
    /// vocabulary), and stores the outcome. A device's outcome must equal it.
    pub fn choose(&mut self, logits: &[f32]) {
        self.outcome = Some(self.sampler.pick(logits, self.history, self.allowed));
    }

    /// Stores the outcome that a device computed for the choice of a token: the token or
    /// an error.
    pub fn set(&mut self, outcome: Result<u32, ChoiceError>) {
        self.outcome = Some(outcome);
    }

    /// Returns the outcome of the choice of a token, the token or an error, and leaves it
    /// in place; `None` before the choice is made.
    pub fn outcome(&self) -> Option<&Result<u32, ChoiceError>> {
        self.outcome.as_ref()
    }

    /// Removes and returns the outcome of the choice of a token; `None` before the choice
    /// is made. If the outcome is a token that used a random number, the sampler draws
    /// its next one.
    pub fn take(&mut self) -> Option<Result<u32, ChoiceError>> {
        let outcome = self.outcome.take();
        if let Some(Ok(_)) = outcome {
            self.sampler.advance();
        }
        outcome
    }
}
