//! Why the engine refused.

use crate::Token;
use muser_ops::ChoiceError;

/// A refusal: the thing, what was expected, what was found.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The model file, its weights or the forward pass.
    #[error(transparent)]
    Model(#[from] muser_model::ModelError),
    /// The tokenizer, in the file or on a text.
    #[error(transparent)]
    Text(#[from] muser_text::Error),
    /// The file holds no tokenizer, and text was asked for.
    #[error("the model has no tokenizer: give and take token ids instead")]
    NoTokenizer,
    /// The file's tokenizer is of a kind that nothing here implements, and text
    /// was asked for.
    #[error("{0}: give and take token ids instead")]
    OtherTokenizer(#[source] muser_text::Error),
    /// The file holds no chat template, and a chat was asked for.
    #[error("the model has no chat template: use a raw prompt instead")]
    NoChatTemplate,
    /// The file's chat template does not compile.
    #[error("the model's {reason}")]
    BadChatTemplate {
        /// What is wrong with it.
        reason: String,
    },
    /// The file is a part of a model that was split.
    #[error(
        "part {part} of the {parts} of a split model: expected a whole one; join the parts first \
         (llama-gguf-split --merge)"
    )]
    Part {
        /// Which, from 1.
        part: u32,
        /// How many there are.
        parts: u32,
    },
    /// A prompt of no tokens.
    #[error("the prompt is empty: expected at least one token")]
    EmptyPrompt,
    /// A token that the model does not have.
    #[error("token {token} at position {position} is not in the vocabulary of {vocab}")]
    UnknownToken {
        /// The token.
        token: Token,
        /// Where it stands.
        position: usize,
        /// Tokens in the vocabulary; ids are below it.
        vocab: usize,
    },
    /// The tokens do not fit the session's context.
    #[error(
        "the context is full: {needed} tokens need as many positions, the session has {context}"
    )]
    ContextFull {
        /// Positions that were needed.
        needed: usize,
        /// Positions of the session.
        context: usize,
    },
    /// Something asked for a prediction before any token was evaluated.
    #[error("the session has no logits: nothing was evaluated yet")]
    NoLogits,
    /// The caller's flag was raised.
    #[error("interrupted")]
    Cancelled,
    /// A parameter out of its range.
    #[error("{name}: expected {expected}, found {found}")]
    Parameter {
        /// The parameter.
        name: &'static str,
        /// Its range.
        expected: String,
        /// The value.
        found: String,
    },
    /// A logit that is no number to sample by.
    #[error("the logit of token {token} is {found}")]
    NonFiniteLogit {
        /// The token.
        token: usize,
        /// The logit.
        found: f32,
    },
    /// The bias rules out every token.
    #[error("logit_bias: expected to leave a token to sample, found all ruled out")]
    NothingToSample,
}

impl From<ChoiceError> for Error {
    fn from(error: ChoiceError) -> Self {
        match error {
            ChoiceError::Parameter {
                name,
                expected,
                found,
            } => Self::Parameter {
                name,
                expected,
                found,
            },
            ChoiceError::Logit { token, found } | ChoiceError::Adjusted { token, found } => {
                Self::NonFiniteLogit { token, found }
            }
            ChoiceError::NothingLeft => Self::NothingToSample,
        }
    }
}
