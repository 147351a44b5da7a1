//! Makes the prompt of a conversation with the chat template, within the bounds of a
//! request.

use crate::error::ApiError;
use crate::limits::text::TextBounds;
use muser_engine::{Codec, Token};
use muser_text::chat::{Bounds, Prompt};
use muser_text::{EncodeOptions, Error, Message, RenderOptions, Tokenizer};

/// The request's field that has the conversation, for errors about it.
const FIELD: &str = "messages";

/// Makes the prompt of a conversation: renders it with the model's chat template and
/// encodes it.
///
/// # Errors
/// The model has no tokenizer or no chat template, which is the request's fault;
/// so is what the template refuses, and a prompt longer than the context. 504
/// when the request's time is up.
pub(crate) fn chat(
    codec: &Codec,
    messages: Vec<Message>,
    options: RenderOptions,
    bounds: &TextBounds<'_>,
) -> Result<Prompt, ApiError> {
    let guard = codec.guard()?;
    guard.prompt(codec.chat_template()?, messages, options, bounds)
}

impl Bounds for TextBounds<'_> {
    type Error = ApiError;

    fn most(&self) -> usize {
        self.most
    }

    fn check(&self) -> Result<(), ApiError> {
        self.work.check()
    }

    fn encode(
        &self,
        tokenizer: &Tokenizer,
        text: &str,
        options: EncodeOptions,
    ) -> Result<Vec<Token>, ApiError> {
        self.encode(tokenizer, FIELD, text, options)
    }

    /// Turns an error of the chat template or the tokenizer into an API error. A template
    /// that fails counts as the fault of the request's messages.
    fn refuse(&self, error: Error) -> ApiError {
        match error {
            Error::NoSentinel => ApiError::field(FIELD, error),
            Error::TooManyTokens { most } => {
                ApiError::context(FIELD, format!("more than {most}"), most, most)
            }
            Error::Template { .. } | Error::TemplateRaised { .. } | Error::TemplateLimit { .. } => {
                ApiError::field(FIELD, format!("the chat template: {error}"))
            }
            other => muser_engine::Error::from(other).into(),
        }
    }
}
