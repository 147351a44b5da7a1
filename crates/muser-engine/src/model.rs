//! A loaded model: what sessions share.

use crate::{Codec, Error, Token};
use muser_model::gguf::Gguf;
use muser_model::{Spec, Transformer};
use muser_ops::Backend;
use muser_text::chat::Format;
use muser_text::{ChatTemplate, Message, Tokenizer};
use std::sync::Arc;

/// A model: the transformer and its [`Codec`]. It is immutable; sessions share it
/// through an [`Arc`].
pub struct Model<B: Backend> {
    transformer: Transformer<B>,
    codec: Codec,
}

impl<B: Backend> Model<B> {
    /// Loads a model; its weights stay in the file.
    ///
    /// # Errors
    /// A file that is no such model, or one part of several; a weight that the
    /// backend refuses; [`Codec::load`]'s.
    pub fn load(gguf: &Gguf, backend: Arc<B>) -> Result<Self, Error> {
        refuse_part(gguf)?;
        Ok(Self {
            transformer: Transformer::load(gguf, backend)?,
            codec: Codec::load(gguf)?,
        })
    }

    /// The transformer.
    pub fn transformer(&self) -> &Transformer<B> {
        &self.transformer
    }

    /// The model's specification.
    pub fn config(&self) -> &Spec {
        self.transformer.config()
    }

    /// Tokenizer and chat template.
    pub fn codec(&self) -> &Codec {
        &self.codec
    }

    /// The tokenizer.
    ///
    /// # Errors
    /// The file has none.
    pub fn tokenizer(&self) -> Result<&Tokenizer, Error> {
        self.codec.tokenizer()
    }

    /// The chat template.
    ///
    /// # Errors
    /// The file has none, or one that does not compile.
    pub fn chat_template(&self) -> Result<&ChatTemplate, Error> {
        self.codec.chat_template()
    }

    /// Whether the model ends its answer with this token.
    pub fn is_end(&self, token: Token) -> bool {
        self.codec.is_end(token)
    }

    /// [`Codec::raw_prompt`].
    ///
    /// # Errors
    /// The file has no tokenizer, or the text cannot be encoded.
    pub fn raw_prompt(&self, text: &str) -> Result<Vec<Token>, Error> {
        self.codec.raw_prompt(text)
    }

    /// [`Codec::chat_prompt`].
    ///
    /// # Errors
    /// No tokenizer, no template, one that does not compile or fails on these
    /// messages.
    pub fn chat_prompt(&self, messages: &[Message]) -> Result<Vec<Token>, Error> {
        self.codec.chat_prompt(messages)
    }

    /// [`Codec::format`].
    pub fn format(&self) -> Format {
        self.codec.format()
    }

    /// Refuses the first token that the vocabulary lacks; `at` is the position
    /// of the first.
    pub(crate) fn check_tokens(&self, tokens: &[Token], at: usize) -> Result<(), Error> {
        let vocab = self.config().vocab;
        match tokens.iter().position(|&t| t as usize >= vocab) {
            None => Ok(()),
            Some(i) => Err(Error::UnknownToken {
                token: tokens[i],
                position: at.saturating_add(i),
                vocab,
            }),
        }
    }
}

/// Refuses one part of a split file, which has only some of the tensors. The first
/// part has the header of the whole model and would fail at a tensor's name.
fn refuse_part(gguf: &Gguf) -> Result<(), Error> {
    let keys = gguf.metadata();
    let number = |key| keys.opt_u32(key).map_err(|e| Error::Model(e.into()));
    let (parts, part) = (number("split.count")?, number("split.no")?);
    match parts {
        Some(parts) if parts > 1 => Err(Error::Part {
            part: part.map_or(1, |n| n.saturating_add(1)),
            parts,
        }),
        _ => Ok(()),
    }
}

impl<B: Backend> std::fmt::Debug for Model<B> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Model")
            .field("config", self.config())
            .field("codec", &self.codec)
            .finish()
    }
}
