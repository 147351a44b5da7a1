//! [`Model`], a loaded model, which several sessions share.

use crate::{Codec, Error, Token};
use muser_model::gguf::Gguf;
use muser_model::{Spec, Transformer};
use muser_ops::Backend;
use muser_text::chat::Format;
use muser_text::{ChatTemplate, Message, Tokenizer};
use std::sync::Arc;

/// A loaded model: the transformer and, if the file has them, the tokenizer and the
/// chat template. It is immutable; sessions share it through an [`Arc`].
pub struct Model<B: Backend> {
    transformer: Transformer<B>,
    codec: Codec,
}

impl<B: Backend> Model<B> {
    /// Loads a model from a GGUF file. Its weights stay in the mapped file where the
    /// backend reads host memory.
    ///
    /// # Errors
    /// A part of a split model; those of [`Transformer::load`] and [`Codec::load`].
    pub fn load(gguf: &Gguf, backend: Arc<B>) -> Result<Self, Error> {
        refuse_part(gguf)?;
        Ok(Self {
            transformer: Transformer::load(gguf, backend)?,
            codec: Codec::load(gguf)?,
        })
    }

    /// Returns the transformer, which holds the model's weights and runs its forward
    /// passes.
    pub fn transformer(&self) -> &Transformer<B> {
        &self.transformer
    }

    /// Returns the model's description: its architecture and sizes, as read from the
    /// file.
    pub fn spec(&self) -> &Spec {
        self.transformer.spec()
    }

    /// Returns the model's tokenizer, chat template and chat format, as one [`Codec`].
    pub fn codec(&self) -> &Codec {
        &self.codec
    }

    /// Returns the model's tokenizer.
    ///
    /// # Errors
    /// Those of [`Codec::tokenizer`].
    pub fn tokenizer(&self) -> Result<&Tokenizer, Error> {
        self.codec.tokenizer()
    }

    /// Returns the model's chat template.
    ///
    /// # Errors
    /// Those of [`Codec::chat_template`].
    pub fn chat_template(&self) -> Result<&ChatTemplate, Error> {
        self.codec.chat_template()
    }

    /// Returns whether this token ends an answer: an end-of-generation token of the
    /// model.
    pub fn is_end(&self, token: Token) -> bool {
        self.codec.is_end(token)
    }

    /// Encodes a text for the model to continue, as [`Codec::raw_prompt`].
    ///
    /// # Errors
    /// Those of [`Codec::raw_prompt`].
    pub fn raw_prompt(&self, text: &str) -> Result<Vec<Token>, Error> {
        self.codec.raw_prompt(text)
    }

    /// Encodes a conversation up to where the model's answer begins, as
    /// [`Codec::chat_prompt`].
    ///
    /// # Errors
    /// Those of [`Codec::chat_prompt`].
    pub fn chat_prompt(&self, messages: &[Message]) -> Result<Vec<Token>, Error> {
        self.codec.chat_prompt(messages)
    }

    /// Returns the chat format, in which the model's conversations are written, as
    /// [`Codec::format`].
    pub fn format(&self) -> Format {
        self.codec.format()
    }

    /// Refuses tokens outside the model's vocabulary. `at` is the position of the first
    /// token in its sequence.
    pub(crate) fn check_tokens(&self, tokens: &[Token], at: usize) -> Result<(), Error> {
        let vocab = self.spec().vocab;
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

/// Refuses a file that is one part of a split model. Without this check the first part,
/// which has the header of the whole model, would be refused for a missing tensor.
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
            .field("spec", self.spec())
            .field("codec", &self.codec)
            .finish()
    }
}
