//! [`Error`], which says why the engine refused a model, a prompt or a generation.

use crate::Token;
use muser_ops::ChoiceError;

/// A refusal: the thing, what was expected, what was found.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// An error of the model's GGUF file, its weights or the forward pass.
    #[error(transparent)]
    Model(#[from] muser_model::ModelError),
    /// An error of the tokenizer or the chat template, in the file or on a text.
    #[error(transparent)]
    Text(#[from] muser_text::Error),
    /// Text was given or asked for, and the model's file has no tokenizer.
    #[error("the model has no tokenizer: give and take token ids instead")]
    NoTokenizer,
    /// Text was given or asked for, and the tokenizer of the model's file is of an
    /// unknown kind.
    #[error("{0}: give and take token ids instead")]
    OtherTokenizer(#[source] muser_text::Error),
    /// A conversation was given, and the model's file has no chat template.
    #[error("the model has no chat template: use a raw prompt instead")]
    NoChatTemplate,
    /// The chat template of the model's file does not compile.
    #[error("the model's {reason}")]
    BadChatTemplate {
        /// Why the chat template does not compile.
        reason: String,
    },
    /// The model's file is one part of a model that is split into several files.
    #[error(
        "part {part} of the {parts} of a split model: expected a whole one; join the parts first \
         (llama-gguf-split --merge)"
    )]
    Part {
        /// The number of this part of the split model, from 1.
        part: u32,
        /// The number of parts of the split model.
        parts: u32,
    },
    /// The prompt has no tokens.
    #[error("the prompt is empty: expected at least one token")]
    EmptyPrompt,
    /// A token to evaluate is outside the model's vocabulary.
    #[error("token {token} at position {position} is not in the vocabulary of {vocab}")]
    UnknownToken {
        /// The token id that is outside the vocabulary.
        token: Token,
        /// The position, in its sequence, of the token that is outside the vocabulary.
        position: usize,
        /// The number of tokens in the vocabulary; token ids are below it.
        vocab: usize,
    },
    /// The sequence's tokens do not fit the positions that the session has (its
    /// context).
    #[error(
        "the context is full: {needed} tokens need as many positions, the session has {context}"
    )]
    ContextFull {
        /// Number of positions that the sequence's tokens need.
        needed: usize,
        /// Number of positions that the session has (its context).
        context: usize,
    },
    /// Logits were asked for, and the session has none.
    #[error("the session has no logits: nothing was evaluated yet")]
    NoLogits,
    /// The caller raised the cancel flag before the work was done.
    #[error("interrupted")]
    Cancelled,
    /// A parameter, such as a setting of the sampler or the context, is out of its
    /// range.
    #[error("{name}: expected {expected}, found {found}")]
    Parameter {
        /// The name of the parameter that is out of its range.
        name: &'static str,
        /// The range that the parameter must be in.
        expected: String,
        /// The parameter's value, which is out of its range.
        found: String,
    },
    /// A logit from which no token can be chosen: a NaN or an infinity.
    #[error("the logit of token {token} is {found}")]
    NonFiniteLogit {
        /// The token id whose logit is not finite.
        token: usize,
        /// The logit that is not finite.
        found: f32,
    },
    /// No token is left to sample: the logit bias, or the set of allowed tokens, rules
    /// out every one.
    #[error("logit_bias: expected to leave a token to sample, found all ruled out")]
    NothingToSample,
}

impl Error {
    /// Returns whether memory for buffers or for pages of the KV cache ran out. The same
    /// call may succeed when other sessions have ended.
    pub fn is_memory(&self) -> bool {
        matches!(
            self,
            Self::Model(muser_model::ModelError::Op(
                muser_ops::OpError::Memory { .. }
            ))
        )
    }
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
