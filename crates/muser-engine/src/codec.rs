//! [`Codec`], which holds the tokenizer and the chat template of a model and encodes
//! prompts with them.

use crate::{Error, Token};
use muser_model::gguf::{self, Gguf};
use muser_text::chat::{Format, Guard, Unbounded};
use muser_text::{ChatTemplate, EncodeOptions, Message, RenderOptions, Special};
use muser_text::{Tokenizer, TokenizerSpec};
use std::sync::Arc;

/// The tokenizer, the chat template and the chat format of a model, as far as its file
/// has them. A clone shares the vocabulary.
#[derive(Clone)]
pub struct Codec {
    tokenizer: Option<Result<Usable, muser_text::Error>>,
    template: Option<Result<ChatTemplate, String>>,
    format: Format,
}

/// A tokenizer, and the guard that keeps control tokens in users' text from commanding
/// the model.
#[derive(Clone)]
struct Usable {
    tokenizer: Tokenizer,
    guard: Arc<Guard>,
}

impl Codec {
    /// Reads the tokenizer and the chat template from a GGUF file, and detects the
    /// model's chat format.
    ///
    /// A chat template that does not compile does not refuse the model; it is an error
    /// of [`Codec::chat_template`]. In the same way a tokenizer of an unknown kind is
    /// an error of [`Codec::tokenizer`]: the model still takes and gives token ids.
    ///
    /// # Errors
    /// A tokenizer of a known kind that cannot be built as the file describes it.
    pub fn load(gguf: &Gguf) -> Result<Self, Error> {
        let tokenizer = match tokenizer_spec(gguf)?.map(Tokenizer::new) {
            None => None,
            Some(Err(e)) if is_another_kind(&e) => Some(Err(e)),
            Some(tokenizer) => {
                let tokenizer = tokenizer?;
                let guard = Arc::new(Guard::new(&tokenizer)?);
                Some(Ok(Usable { tokenizer, guard }))
            }
        };
        let usable = tokenizer.as_ref().and_then(|t| t.as_ref().ok());
        let usable = usable.map(|usable| &usable.tokenizer);
        let template = template(gguf, usable)?;
        let format = match (usable, &template) {
            (Some(tokenizer), Some(Ok(template))) => Format::detect(tokenizer, template),
            _ => Format::Plain,
        };
        Ok(Self {
            tokenizer,
            template,
            format,
        })
    }

    /// Returns the tokenizer, and the guard that keeps control tokens in users' text
    /// from commanding the model.
    fn usable(&self) -> Result<&Usable, Error> {
        match &self.tokenizer {
            None => Err(Error::NoTokenizer),
            Some(Ok(usable)) => Ok(usable),
            Some(Err(reason)) => Err(Error::OtherTokenizer(reason.clone())),
        }
    }

    /// Returns the model's tokenizer.
    ///
    /// # Errors
    /// The file has none, or one of a kind that is not implemented.
    pub fn tokenizer(&self) -> Result<&Tokenizer, Error> {
        Ok(&self.usable()?.tokenizer)
    }

    /// Returns the guard, which makes prompts of conversations and keeps control tokens
    /// in users' text from commanding the model.
    ///
    /// # Errors
    /// As [`Codec::tokenizer`].
    pub fn guard(&self) -> Result<&Guard, Error> {
        Ok(&self.usable()?.guard)
    }

    /// Returns the chat format, in which the model's conversations are written;
    /// [`Format::Plain`] for a model without a chat template.
    pub fn format(&self) -> Format {
        self.format
    }

    /// Returns the model's chat template.
    ///
    /// # Errors
    /// The file has none, or one that does not compile.
    pub fn chat_template(&self) -> Result<&ChatTemplate, Error> {
        match &self.template {
            None => Err(Error::NoChatTemplate),
            Some(Ok(template)) => Ok(template),
            Some(Err(reason)) => Err(Error::BadChatTemplate {
                reason: reason.clone(),
            }),
        }
    }

    /// Returns whether this token ends an answer: an end-of-generation token of the
    /// model.
    pub fn is_end(&self, token: Token) -> bool {
        self.tokenizer().is_ok_and(|t| t.eog().contains(token))
    }

    /// Encodes a text for the model to continue, with the start token (bos) if the file
    /// asks for one. The names of control tokens in the text are encoded as plain text.
    ///
    /// # Errors
    /// The file has no tokenizer, or the text cannot be encoded.
    pub fn raw_prompt(&self, text: &str) -> Result<Vec<Token>, Error> {
        let tokenizer = self.tokenizer()?;
        let options = EncodeOptions {
            special: Special::Plain,
            add_bos: tokenizer.add_bos(),
        };
        Ok(tokenizer.encode(text, options)?)
    }

    /// Encodes the prompt of a conversation: its messages, up to where the model's
    /// answer begins.
    ///
    /// Control tokens come from the chat template only: the names of control tokens in
    /// the text of a message are encoded as plain text.
    ///
    /// # Errors
    /// No tokenizer or no template; a template that does not compile or fails on these
    /// messages.
    pub fn chat_prompt(&self, messages: &[Message]) -> Result<Vec<Token>, Error> {
        let guard = self.guard()?;
        let options = RenderOptions {
            add_generation_prompt: true,
            ..RenderOptions::default()
        };
        let template = self.chat_template()?;
        let prompt = guard.prompt(template, messages.to_vec(), options, &Unbounded)?;
        Ok(prompt.tokens)
    }
}

impl std::fmt::Debug for Codec {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Codec")
            .field("tokenizer", &self.tokenizer().is_ok())
            .field("template", &self.template.is_some())
            .field("format", &self.format)
            .finish()
    }
}

/// Returns whether the error means a tokenizer of an unknown kind, and not a broken
/// tokenizer of a known kind.
fn is_another_kind(error: &muser_text::Error) -> bool {
    use muser_text::Error as Text;
    matches!(
        error,
        Text::UnknownModel { .. } | Text::UnknownSplitRule { .. }
    )
}

/// Reads the description of the tokenizer from a GGUF file; `None` if the file has no
/// tokenizer.
///
/// # Errors
/// A key of the wrong type.
pub fn tokenizer_spec(gguf: &Gguf) -> Result<Option<TokenizerSpec>, Error> {
    read_spec(gguf).map_err(|e| Error::Model(e.into()))
}

fn read_spec(gguf: &Gguf) -> Result<Option<TokenizerSpec>, gguf::Error> {
    let keys = gguf.metadata();
    let name = |key: &str| format!("tokenizer.ggml.{key}");
    let Some(model) = keys.opt_string(&name("model"))? else {
        return Ok(None);
    };
    if matches!(model, "none" | "no_vocab") {
        return Ok(None);
    }
    let id = |key: &str| keys.opt_u32(&name(key));
    let flag = |key: &str| Ok::<_, gguf::Error>(keys.opt_bool(&name(key))?.unwrap_or(false));
    let merges = keys.opt_strings(&name("merges"))?;
    Ok(Some(TokenizerSpec {
        model: model.to_owned(),
        pre: keys.opt_string(&name("pre"))?.map(str::to_owned),
        tokens: owned(keys.strings(&name("tokens"))?),
        token_types: keys.opt_i32s(&name("token_type"))?,
        merges: merges.map_or_else(Vec::new, owned),
        bos: id("bos_token_id")?,
        eos: id("eos_token_id")?,
        eot: id("eot_token_id")?,
        eom: id("eom_token_id")?,
        unknown: id("unknown_token_id")?,
        padding: id("padding_token_id")?,
        add_bos: flag("add_bos_token")?,
        add_eos: flag("add_eos_token")?,
        extra_eog: Vec::new(),
    }))
}

fn owned(strings: &gguf::Strings) -> Vec<String> {
    strings.iter().map(str::to_owned).collect()
}

type Template = Option<Result<ChatTemplate, String>>;

fn template(gguf: &Gguf, tokenizer: Option<&Tokenizer>) -> Result<Template, Error> {
    let source = gguf.metadata().opt_string("tokenizer.chat_template");
    let source = source.map_err(|e| Error::Model(e.into()))?;
    let (Some(source), Some(tokenizer)) = (source, tokenizer) else {
        return Ok(None);
    };
    let text = |id: Option<Token>| id.and_then(|id| tokenizer.token_text(id)).unwrap_or("");
    let compiled = ChatTemplate::new(source, text(tokenizer.bos()), text(tokenizer.eos()));
    Ok(Some(compiled.map_err(|e| e.to_string())))
}
