//! Prompts whose user cannot command the model.
//!
//! A chat template writes control tokens as text, and the tokenizer reads them
//! back from it. A user who writes `<|eot|>` in a message must get the letters.
//! So before the template runs, every control token's text in a message is
//! broken by a character that occurs nowhere else; after it, the text is cut at
//! the control tokens that are still whole, which are the template's own, and
//! what lies between is encoded without that character, as plain text.
//!
//! Messages without such texts, nearly all, take the direct way and have the
//! same tokens.

use crate::error::ApiError;
use aho_corasick::{AhoCorasick, MatchKind};
use muser_engine::{Codec, Error, Token};
use muser_text::{EncodeOptions, Message, RenderOptions, Special, Tokenizer};
use serde_json::Value;

/// Finds the control tokens of one vocabulary.
pub(crate) struct Guard {
    finder: Option<AhoCorasick>,
    ids: Vec<Token>,
}

/// Characters of private use: one that the messages do not have is the mark.
const MARKS: std::ops::RangeInclusive<char> = '\u{e000}'..='\u{f8ff}';

impl Guard {
    /// For this model's control tokens; without a tokenizer there are none, and
    /// no chat.
    pub(crate) fn new(codec: &Codec) -> Self {
        let Ok(tokenizer) = codec.tokenizer() else {
            return Self {
                finder: None,
                ids: Vec::new(),
            };
        };
        // Tokens without a text match nothing; ids fit 32 bits by their type.
        let all = (0..).take(tokenizer.vocab_size());
        let texts = all.filter(|&id: &Token| tokenizer.is_control(id));
        let texts = texts.filter_map(|id| Some((id, tokenizer.token_text(id)?.to_owned())));
        let (ids, texts): (Vec<_>, Vec<_>) = texts.filter(|(_, t)| !t.is_empty()).unzip();
        let finder = AhoCorasick::builder()
            .match_kind(MatchKind::LeftmostLongest)
            .build(&texts)
            .ok();
        Self { finder, ids }
    }

    fn occurs(&self, text: &str) -> bool {
        self.finder.as_ref().is_some_and(|f| f.is_match(text))
    }

    /// Breaks every control token's text behind its first character. One of a
    /// single character cannot be broken and is left out.
    fn broken(&self, text: &str, mark: char) -> String {
        let mut broken = text.to_owned();
        while let Some(found) = self.finder.as_ref().and_then(|f| f.find(&broken)) {
            let mut inner = broken[found.range()].chars();
            let first = inner.next().filter(|_| !inner.as_str().is_empty());
            let marked: String = first.into_iter().chain([mark]).chain(inner).collect();
            broken.replace_range(found.range(), &marked);
        }
        broken
    }

    /// The tokens of a text in which whole control tokens count as such.
    fn encode(&self, tokenizer: &Tokenizer, text: &str, mark: char) -> Result<Vec<Token>, Error> {
        let plain = |text: &str| {
            let text: String = text.chars().filter(|&c| c != mark).collect();
            let options = EncodeOptions {
                special: Special::Plain,
                add_bos: false,
            };
            tokenizer.encode(&text, options)
        };
        let mut tokens = Vec::new();
        let mut at = 0;
        for found in self.finder.iter().flat_map(|f| f.find_iter(text)) {
            tokens.extend(plain(&text[at..found.start()])?);
            tokens.push(self.ids[found.pattern().as_usize()]);
            at = found.end();
        }
        tokens.extend(plain(&text[at..])?);
        Ok(tokens)
    }

    /// The prompt's text and tokens for a conversation.
    pub(crate) fn chat(
        &self,
        codec: &Codec,
        mut messages: Vec<Message>,
        mut options: RenderOptions,
    ) -> Result<(String, Vec<Token>), ApiError> {
        let tokenizer = codec.tokenizer()?;
        let template = codec.chat_template()?;
        let mut unsafe_text = false;
        let mut all = String::new();
        for_each(&mut messages, &mut options, &mut |text| {
            unsafe_text |= self.occurs(text);
            all.push_str(text);
        });
        let mark = MARKS.clone().find(|c| !all.contains(*c));
        let mark = mark.ok_or_else(|| {
            ApiError::field("messages", "expected a character of private use to be left")
        })?;
        if unsafe_text {
            for_each(&mut messages, &mut options, &mut |text| {
                *text = self.broken(text, mark);
            });
        }
        let text = template.render(&messages, options).map_err(refused)?;
        let tokens = match unsafe_text {
            true => self.encode(tokenizer, &text, mark)?,
            false => {
                let options = EncodeOptions {
                    special: Special::Parse,
                    add_bos: false,
                };
                tokenizer.encode(&text, options).map_err(Error::from)?
            }
        };
        // Most templates write the start token themselves; one is enough.
        let bos = tokenizer.bos().filter(|_| tokenizer.add_bos());
        let tokens = match bos {
            Some(bos) if tokens.first() != Some(&bos) => [&[bos], &tokens[..]].concat(),
            _ => tokens,
        };
        let text = text.chars().filter(|&c| c != mark).collect();
        Ok((text, tokens))
    }
}

/// What a template refuses is the messages' fault, what breaks it may be too.
fn refused(error: muser_text::Error) -> ApiError {
    ApiError::field("messages", format!("the chat template: {error}"))
}

/// Every text of a user's that reaches the template.
fn for_each(messages: &mut [Message], options: &mut RenderOptions, f: &mut dyn FnMut(&mut String)) {
    for m in messages {
        f(&mut m.content);
        let rest = [&mut m.reasoning_content, &mut m.tool_call_id, &mut m.name];
        rest.into_iter().flatten().for_each(&mut *f);
        if let Some(calls) = &mut m.tool_calls {
            strings(calls, f);
        }
    }
    if let Some(tools) = &mut options.tools {
        strings(tools, f);
    }
    options.extra.values_mut().for_each(|v| strings(v, f));
}

/// Every string of a value, keys of objects among them.
fn strings(value: &mut Value, f: &mut dyn FnMut(&mut String)) {
    match value {
        Value::String(s) => f(s),
        Value::Array(items) => items.iter_mut().for_each(|v| strings(v, f)),
        Value::Object(map) => {
            let old = std::mem::take(map);
            for (mut key, mut value) in old {
                f(&mut key);
                strings(&mut value, f);
                map.insert(key, value);
            }
        }
        _ => {}
    }
}
