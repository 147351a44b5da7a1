//! [`Codec`]: the tokenizer and the chat template of a model.

use crate::{Error, Token};
use muser_model::gguf::{self, Gguf};
use muser_text::{ChatTemplate, EncodeOptions, Message, RenderOptions, Special};
use muser_text::{Tokenizer, TokenizerSpec};

/// The tokenizer and the chat template of a model, if its file has them. A clone
/// shares the vocabulary.
#[derive(Clone)]
pub struct Codec {
    tokenizer: Option<Result<Tokenizer, muser_text::Error>>,
    template: Option<Result<ChatTemplate, String>>,
    header_end: Option<Token>,
}

impl Codec {
    /// Reads both from a file.
    ///
    /// A template that does not compile does not refuse the model; it is an error of
    /// [`Codec::chat_template`]. In the same way a tokenizer of an unknown kind is an
    /// error of [`Codec::tokenizer`]: the model still takes and gives token ids.
    ///
    /// # Errors
    /// A tokenizer of a known kind that cannot be built as the file describes it.
    pub fn load(gguf: &Gguf) -> Result<Self, Error> {
        let tokenizer = match tokenizer_spec(gguf)?.map(Tokenizer::new) {
            Some(Err(e)) if !is_another_kind(&e) => return Err(e.into()),
            tokenizer => tokenizer,
        };
        let usable = tokenizer.as_ref().and_then(|t| t.as_ref().ok());
        let template = template(gguf, usable)?;
        let header_end = match (usable, &template) {
            (Some(tokenizer), Some(Ok(template))) => header_end(tokenizer, template),
            _ => None,
        };
        Ok(Self {
            tokenizer,
            template,
            header_end,
        })
    }

    /// Returns the tokenizer.
    ///
    /// # Errors
    /// The file has none, or one of an unknown kind.
    pub fn tokenizer(&self) -> Result<&Tokenizer, Error> {
        match &self.tokenizer {
            None => Err(Error::NoTokenizer),
            Some(Ok(tokenizer)) => Ok(tokenizer),
            Some(Err(reason)) => Err(Error::OtherTokenizer(reason.clone())),
        }
    }

    /// Returns the chat template.
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

    /// Returns whether this token ends an answer.
    pub fn is_end(&self, token: Token) -> bool {
        self.tokenizer().is_ok_and(|t| t.eog().contains(token))
    }

    /// Encodes a text to continue, with the start token if the file asks for one. The
    /// names of special tokens in the text are encoded as plain text.
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

    /// Encodes a conversation up to where the answer of the model begins.
    ///
    /// The template writes special tokens as text, so special tokens in the text of a
    /// message are parsed too. Callers must check messages from untrusted authors
    /// before.
    ///
    /// # Errors
    /// No tokenizer or no template; a template that does not compile or fails on these
    /// messages.
    pub fn chat_prompt(&self, messages: &[Message]) -> Result<Vec<Token>, Error> {
        let options = RenderOptions {
            add_generation_prompt: true,
            ..RenderOptions::default()
        };
        let tokenizer = self.tokenizer()?;
        let text = self.chat_template()?.render(messages, options)?;
        let options = |add_bos| EncodeOptions {
            special: Special::Parse,
            add_bos,
        };
        let tokens = tokenizer.encode(&text, options(false))?;
        // Most templates write the start token themselves; it is added only once.
        if tokenizer.add_bos() && tokens.first().copied() != tokenizer.bos() {
            return Ok(tokenizer.encode(&text, options(true))?);
        }
        Ok(tokens)
    }

    /// Returns the control token that ends the header of an answer, if the template
    /// leaves a header for the model to write.
    ///
    /// The prompt of Muse Glimmer ends after `<|start|>assistant`; the model writes
    /// ` to=user<|message|>` before the answer. The token is found by comparing the
    /// prompt with the template's form of a given answer.
    pub fn header_end(&self) -> Option<Token> {
        self.header_end
    }
}

impl std::fmt::Debug for Codec {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Codec")
            .field("tokenizer", &self.tokenizer().is_ok())
            .field("template", &self.template.is_some())
            .finish()
    }
}

/// Returns whether the error means an unknown kind of tokenizer, and not a broken
/// tokenizer of a known kind.
fn is_another_kind(error: &muser_text::Error) -> bool {
    use muser_text::Error as Text;
    matches!(
        error,
        Text::UnknownModel { .. } | Text::UnknownSplitRule { .. }
    )
}

fn header_end(tokenizer: &Tokenizer, template: &ChatTemplate) -> Option<Token> {
    const ANSWER: &str = "\u{e000}";
    let message = |role: &str, content: &str| Message {
        role: role.to_owned(),
        content: content.to_owned(),
        ..Message::default()
    };
    let mut messages = vec![message("user", "a")];
    let render = |messages: &[Message], add_generation_prompt| {
        let options = RenderOptions {
            add_generation_prompt,
            ..RenderOptions::default()
        };
        template.render(messages, options).ok()
    };
    let prompt = render(&messages, true)?;
    messages.push(message("assistant", ANSWER));
    let given = render(&messages, false)?;
    let (before, _) = given.split_once(ANSWER)?;
    let options = EncodeOptions {
        special: Special::Parse,
        add_bos: false,
    };
    let header = tokenizer
        .encode(before.strip_prefix(&*prompt)?, options)
        .ok()?;
    header.last().copied().filter(|&t| tokenizer.is_control(t))
}

/// Reads the description of the tokenizer in a file; `None` if it has none.
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
