//! [`Error`]: why the engine refused.

use crate::Token;
use muser_ops::ChoiceError;

impl Error {
    /// Returns whether memory for buffers or K/V pages ran out. What asked for it can be
    /// asked again when other sessions have ended.
    pub fn is_memory(&self) -> bool {
        matches!(
            self,
            Self::Model(muser_model::ModelError::Op(
                muser_ops::OpError::Memory { .. }
            ))
        )
    }
}

/// A refusal: the thing, what was expected, what was found.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// An error of the model file, its weights or the forward pass.
    #[error(transparent)]
    Model(#[from] muser_model::ModelError),
    /// An error of the tokenizer, in the file or on a text.
    #[error(transparent)]
    Text(#[from] muser_text::Error),
    /// Text was given or asked for, and the file has no tokenizer.
    #[error("the model has no tokenizer: give and take token ids instead")]
    NoTokenizer,
    /// Text was given or asked for, and the tokenizer of the file is of an unknown
    /// kind.
    #[error("{0}: give and take token ids instead")]
    OtherTokenizer(#[source] muser_text::Error),
    /// A chat was asked for, and the file has no chat template.
    #[error("the model has no chat template: use a raw prompt instead")]
    NoChatTemplate,
    /// The file's chat template does not compile.
    #[error("the model's {reason}")]
    BadChatTemplate {
        /// The reason.
        reason: String,
    },
    /// The file is one part of a split model.
    #[error(
        "part {part} of the {parts} of a split model: expected a whole one; join the parts first \
         (llama-gguf-split --merge)"
    )]
    Part {
        /// Its number, from 1.
        part: u32,
        /// The number of parts.
        parts: u32,
    },
    /// A prompt without tokens.
    #[error("the prompt is empty: expected at least one token")]
    EmptyPrompt,
    /// A token outside the vocabulary.
    #[error("token {token} at position {position} is not in the vocabulary of {vocab}")]
    UnknownToken {
        /// The token.
        token: Token,
        /// Its position.
        position: usize,
        /// Size of the vocabulary; token ids are below it.
        vocab: usize,
    },
    /// The tokens do not fit the session's context.
    #[error(
        "the context is full: {needed} tokens need as many positions, the session has {context}"
    )]
    ContextFull {
        /// Number of positions needed.
        needed: usize,
        /// Number of positions of the session.
        context: usize,
    },
    /// Logits were asked for, and the session has none.
    #[error("the session has no logits: nothing was evaluated yet")]
    NoLogits,
    /// The cancel flag was raised.
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
    /// A logit from which no token can be chosen: a NaN or infinite.
    #[error("the logit of token {token} is {found}")]
    NonFiniteLogit {
        /// The token.
        token: usize,
        /// The logit.
        found: f32,
    },
    /// The bias, or the set of allowed tokens, rules out every token.
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
