//! Makes prompts of conversations in which no message's text can command the model.
//!
//! A chat template writes control tokens as text, and the tokenizer reads them
//! back from it. A user who writes `<|eot|>` in a message must get the letters.
//! So before the template runs, every text of a control token in a message is broken up
//! by a character that occurs nowhere else, the sentinel. Afterwards, the control
//! tokens that are still whole are the template's own; the text between them is encoded
//! as plain text, without the sentinel.
//!
//! Messages without the text of a control token, nearly all, are encoded directly.
//! Their tokens are the same either way.

use crate::{ChatTemplate, EncodeOptions, Error, Message, RenderOptions, Result};
use crate::{Special, Tokenizer};
use aho_corasick::{AhoCorasick, Input, MatchKind};
use serde_json::Value;

/// Unicode's characters of private use. The first that no message and no control token
/// has is the sentinel, which breaks up control tokens in messages.
const SENTINELS: std::ops::RangeInclusive<char> = '\u{e000}'..='\u{f8ff}';

/// The caller's bounds on the work of making a prompt, and its error for a refusal.
/// They are checked between steps, none of which takes longer than a pass over the
/// messages.
pub trait Bounds {
    /// The error with which the caller is told why a prompt was refused.
    type Error;

    /// Returns the most tokens that the prompt may have.
    fn most(&self) -> usize;

    /// Checks, between two steps of making a prompt, whether the work may go on.
    ///
    /// # Errors
    /// The work has to stop.
    fn check(&self) -> Result<(), Self::Error>;

    /// Encodes a part of the prompt as tokens, within the caller's bounds.
    ///
    /// # Errors
    /// The tokenizer's, and those of the bounds.
    fn encode(
        &self,
        tokenizer: &Tokenizer,
        text: &str,
        options: EncodeOptions,
    ) -> Result<Vec<u32>, Self::Error>;

    /// Turns an error of the guard, the chat template or the tokenizer into the
    /// caller's error type.
    fn refuse(&self, error: Error) -> Self::Error;
}

/// No bounds on the making of a prompt: it may have any number of tokens and take any
/// time.
#[derive(Clone, Copy, Debug)]
pub struct Unbounded;

impl Bounds for Unbounded {
    type Error = Error;

    fn most(&self) -> usize {
        usize::MAX
    }

    fn check(&self) -> Result<()> {
        Ok(())
    }

    fn encode(
        &self,
        tokenizer: &Tokenizer,
        text: &str,
        options: EncodeOptions,
    ) -> Result<Vec<u32>> {
        tokenizer.encode(text, options)
    }

    fn refuse(&self, error: Error) -> Error {
        error
    }
}

/// The prompt of a conversation as a model gets it, up to where its answer begins: as
/// text and as tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prompt {
    /// The prompt's text, as the chat template wrote it.
    pub text: String,
    /// The prompt's tokens, with the start token (bos) if the model's file asks for
    /// one.
    pub tokens: Vec<u32>,
}

/// Makes prompts of conversations in which text in a message that looks like a control
/// token cannot command the model.
#[derive(Clone, Debug)]
pub struct Guard {
    tokenizer: Tokenizer,
    tokens: ControlTokens,
}

impl Guard {
    /// Makes a guard that keeps the control tokens of this tokenizer out of messages'
    /// texts.
    ///
    /// # Errors
    /// The search for them cannot be built.
    pub fn new(tokenizer: &Tokenizer) -> Result<Self> {
        // Tokens without a text match nothing. Token ids always fit 32 bits, so the
        // count from 0 cannot overflow.
        let all = (0..).take(tokenizer.vocab_size());
        let control = all.filter(|&id| tokenizer.is_control(id));
        let texts = control.filter_map(|id| Some((id, tokenizer.token_text(id)?.to_owned())));
        Ok(Self {
            tokens: ControlTokens::new(texts)?,
            tokenizer: tokenizer.clone(),
        })
    }

    /// Makes the prompt of a conversation, in which only the chat template itself can
    /// write control tokens.
    ///
    /// # Errors
    /// The template's and the tokenizer's; [`Error::NoSentinel`] and
    /// [`Error::TooManyTokens`]; those of the bounds.
    pub fn prompt<B: Bounds>(
        &self,
        template: &ChatTemplate,
        mut messages: Vec<Message>,
        mut options: RenderOptions,
        bounds: &B,
    ) -> Result<Prompt, B::Error> {
        let mut has_control = false;
        let mut used = PrivateChars::new();
        for_each(&mut messages, &mut options, &mut |text| {
            has_control |= self.tokens.occurs(text);
            used.add(text);
        });
        let free = |&c: &char| !used.has(c) && !self.tokens.private.has(c);
        let sentinel = SENTINELS.clone().find(free);
        let sentinel = sentinel.ok_or_else(|| bounds.refuse(Error::NoSentinel))?;
        bounds.check()?;
        if has_control {
            for_each(&mut messages, &mut options, &mut |text| {
                *text = self.tokens.broken(text, sentinel);
            });
            bounds.check()?;
        }
        let text = template.render(&messages, options);
        let text = text.map_err(|error| bounds.refuse(error))?;
        drop(messages);
        bounds.check()?;
        let tokens = match has_control {
            true => self.encode(&text, sentinel, bounds)?,
            false => {
                let options = EncodeOptions {
                    special: Special::Parse,
                    add_bos: false,
                };
                bounds.encode(&self.tokenizer, &text, options)?
            }
        };
        // Most templates write the start token (bos) themselves; one is enough.
        let bos = self.tokenizer.bos().filter(|_| self.tokenizer.add_bos());
        let tokens = match bos {
            Some(bos) if tokens.first() != Some(&bos) => [&[bos], &tokens[..]].concat(),
            _ => tokens,
        };
        let text = match has_control {
            true => text.chars().filter(|&c| c != sentinel).collect(),
            false => text,
        };
        Ok(Prompt { text, tokens })
    }

    /// Encodes a prompt's text in which every whole control token is the template's
    /// own, and from which the sentinel (the character that breaks up others) is left
    /// out.
    fn encode<B: Bounds>(
        &self,
        text: &str,
        sentinel: char,
        bounds: &B,
    ) -> Result<Vec<u32>, B::Error> {
        let mut tokens = Vec::new();
        let mut plain = |text: &str, end: Option<u32>| {
            let text: String = text.chars().filter(|&c| c != sentinel).collect();
            let options = EncodeOptions {
                special: Special::Plain,
                add_bos: false,
            };
            if !text.is_empty() {
                tokens.extend(bounds.encode(&self.tokenizer, &text, options)?);
            }
            tokens.extend(end);
            let most = bounds.most();
            match tokens.len() > most {
                true => Err(bounds.refuse(Error::TooManyTokens { most })),
                false => Ok(()),
            }
        };
        let mut at = 0;
        for (id, place) in self.tokens.find(text) {
            plain(&text[at..place.start], Some(id))?;
            at = place.end;
        }
        plain(&text[at..], None)?;
        Ok(tokens)
    }
}

/// The control tokens of a vocabulary, and the search for their texts in a text.
#[derive(Clone, Debug)]
struct ControlTokens {
    finder: AhoCorasick,
    ids: Vec<u32>,
    /// The characters of private use that occur in the control tokens' texts; none of
    /// them can be the sentinel, which breaks up control tokens in messages.
    private: PrivateChars,
}

impl ControlTokens {
    /// Builds the search for control tokens from their ids and texts.
    fn new(tokens: impl IntoIterator<Item = (u32, String)>) -> Result<Self> {
        let tokens = tokens.into_iter().filter(|(_, text)| !text.is_empty());
        let (ids, texts): (Vec<_>, Vec<_>) = tokens.unzip();
        let mut private = PrivateChars::new();
        texts.iter().for_each(|text| private.add(text));
        let finder = AhoCorasick::builder()
            .match_kind(MatchKind::LeftmostLongest)
            .build(&texts)
            .map_err(|error| Error::Build {
                what: "the search for control tokens",
                reason: error.to_string(),
            })?;
        Ok(Self {
            finder,
            ids,
            private,
        })
    }

    /// Returns whether the text of any control token occurs in `text`.
    fn occurs(&self, text: &str) -> bool {
        self.finder.is_match(text)
    }

    /// Finds the control tokens in a text from left to right; of those that begin at
    /// one place, the longest.
    fn find(&self, text: &str) -> impl Iterator<Item = (u32, std::ops::Range<usize>)> {
        let all = self.finder.find_iter(text);
        all.map(|found| (self.ids[found.pattern().as_usize()], found.range()))
    }

    /// Breaks up the text of every control token: puts the sentinel (a character that
    /// occurs nowhere else) behind its first character. A token of one character cannot
    /// be broken and is left out.
    ///
    /// One pass over the text is enough: nothing that begins before a sentinel can
    /// match behind it, since the sentinel is in no token.
    fn broken(&self, text: &str, sentinel: char) -> String {
        let mut broken = String::with_capacity(text.len() + text.len() / 8);
        let mut at = 0;
        while let Some(found) = self.finder.find(Input::new(text).span(at..text.len())) {
            broken += &text[at..found.start()];
            let first = text[found.start()..]
                .chars()
                .next()
                .map_or(0, char::len_utf8);
            let head = &text[found.start()..found.start() + first];
            at = found.start() + first;
            // The first character of the token that was found can be a token too, if a
            // longer token began there.
            if found.len() > first {
                match self.is_token(head) {
                    true => broken.push(sentinel),
                    false => broken += head,
                }
            }
            broken.push(sentinel);
        }
        broken += &text[at..];
        broken
    }

    /// Returns whether a text is exactly the text of one control token.
    fn is_token(&self, text: &str) -> bool {
        let found = self.finder.find(text);
        found.is_some_and(|m| m.len() == text.len())
    }
}

/// The set of the characters of Unicode's private use area that occur in the texts
/// added to it; the sentinel, which breaks up control tokens, must not be among them.
#[derive(Clone, Debug)]
struct PrivateChars(Vec<bool>);

impl PrivateChars {
    fn new() -> Self {
        Self(vec![false; SENTINELS.clone().count()])
    }

    fn place(c: char) -> Option<usize> {
        let from = u32::from(c).checked_sub(u32::from(*SENTINELS.start()))?;
        usize::try_from(from).ok()
    }

    fn add(&mut self, text: &str) {
        // All characters of private use begin with one of these bytes in UTF-8, which
        // most texts do not have.
        if !text.bytes().any(|b| matches!(b, 0xee | 0xef)) {
            return;
        }
        for place in text.chars().filter_map(Self::place) {
            if let Some(used) = self.0.get_mut(place) {
                *used = true;
            }
        }
    }

    fn has(&self, c: char) -> bool {
        let place = Self::place(c).and_then(|place| self.0.get(place));
        place.is_some_and(|&used| used)
    }
}

/// Calls `f` with every text of the messages and options that reaches the chat
/// template.
fn for_each(messages: &mut [Message], options: &mut RenderOptions, f: &mut dyn FnMut(&mut String)) {
    for m in messages {
        f(&mut m.role);
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

/// Calls `f` with every string of a JSON value, the keys of its objects included.
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
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SENTINEL: char = '\u{e001}';

    /// Breaks up the control tokens in a text by the plain rule, for comparison: while
    /// there is one in the text, breaks the first, and of those the longest.
    fn by_rule(tokens: &ControlTokens, text: &str) -> String {
        let mut broken = text.to_owned();
        while let Some(found) = tokens.finder.find(&broken) {
            let mut inner = broken[found.range()].chars();
            let first = inner.next().filter(|_| !inner.as_str().is_empty());
            let broken_up: String = first.into_iter().chain([SENTINEL]).chain(inner).collect();
            broken.replace_range(found.range(), &broken_up);
        }
        broken
    }

    fn control(tokens: &[&str]) -> ControlTokens {
        ControlTokens::new((0..).zip(tokens.iter().map(|t| (*t).to_owned()))).unwrap()
    }

    #[test]
    fn tokens_are_broken_and_nothing_else() {
        let tokens = control(&["<|eot|>", "<|", "|"]);
        assert_eq!(tokens.broken("a < b", SENTINEL), "a < b");
        assert_eq!(tokens.broken("|a", SENTINEL), format!("{SENTINEL}a"));
        assert_eq!(
            tokens.broken("x<|eot|>y", SENTINEL),
            format!("x<{SENTINEL}{SENTINEL}eot{SENTINEL}>y")
        );
        assert!(!tokens.occurs(&tokens.broken("<<|eot|><|<|", SENTINEL)));
    }

    #[test]
    fn the_sentinel_is_in_no_token() {
        let tokens = control(&["a\u{e000}b"]);
        assert!(tokens.private.has('\u{e000}') && !tokens.private.has('\u{e001}'));
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

        #[test]
        fn one_pass_is_the_rule(
            tokens in prop::collection::vec("[<|é>a]{1,5}", 0..6),
            text in "[<|é>ab]{0,40}",
        ) {
            let tokens: Vec<&str> = tokens.iter().map(String::as_str).collect();
            let tokens = control(&tokens);
            let broken = tokens.broken(&text, SENTINEL);
            prop_assert_eq!(&broken, &by_rule(&tokens, &text));
            prop_assert!(!tokens.occurs(&broken));
        }
    }
}
