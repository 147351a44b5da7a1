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
use crate::limits::text::TextBounds;
use aho_corasick::{AhoCorasick, Input, MatchKind};
use muser_engine::{Codec, Token};
use muser_text::{EncodeOptions, Message, RenderOptions, Special, Tokenizer};
use serde_json::Value;

/// Finds the control tokens of one vocabulary.
pub(crate) struct Guard {
    finder: Option<AhoCorasick>,
    ids: Vec<Token>,
    /// Characters that cannot be the mark.
    marks_in_tokens: MarkSet,
}

/// Characters of private use: one that the messages do not have is the mark.
const MARKS: std::ops::RangeInclusive<char> = '\u{e000}'..='\u{f8ff}';

impl Guard {
    /// For this model's control tokens; without a tokenizer there are none, and
    /// no chat.
    pub(crate) fn new(codec: &Codec) -> Self {
        let Ok(tokenizer) = codec.tokenizer() else {
            return Self::of([]);
        };
        // Tokens without a text match nothing; ids fit 32 bits by their type.
        let all = (0..).take(tokenizer.vocab_size());
        let texts = all.filter(|&id: &Token| tokenizer.is_control(id));
        let texts = texts.filter_map(|id| Some((id, tokenizer.token_text(id)?.to_owned())));
        Self::of(texts)
    }

    /// For control tokens of these ids and texts.
    fn of(tokens: impl IntoIterator<Item = (Token, String)>) -> Self {
        let tokens = tokens.into_iter().filter(|(_, t)| !t.is_empty());
        let (ids, texts): (Vec<_>, Vec<_>) = tokens.unzip();
        let mut marks_in_tokens = MarkSet::new();
        texts.iter().for_each(|text| marks_in_tokens.add(text));
        let finder = AhoCorasick::builder()
            .match_kind(MatchKind::LeftmostLongest)
            .build(&texts)
            .ok();
        Self {
            finder,
            ids,
            marks_in_tokens,
        }
    }

    fn occurs(&self, text: &str) -> bool {
        self.finder.as_ref().is_some_and(|f| f.is_match(text))
    }

    /// Breaks every control token's text behind its first character. One of a
    /// single character cannot be broken and is left out.
    ///
    /// One pass: behind the mark nothing can match that begins before it, for
    /// the mark is in no token.
    fn broken(&self, text: &str, mark: char) -> String {
        let Some(finder) = &self.finder else {
            return text.to_owned();
        };
        let mut broken = String::with_capacity(text.len() + text.len() / 8);
        let mut at = 0;
        while let Some(found) = finder.find(Input::new(text).span(at..text.len())) {
            broken += &text[at..found.start()];
            let first = text[found.start()..]
                .chars()
                .next()
                .map_or(0, char::len_utf8);
            let head = &text[found.start()..found.start() + first];
            at = found.start() + first;
            // The head can be a token itself, which was in the longer one's way.
            if found.len() > first {
                match self.is_token(head) {
                    true => broken.push(mark),
                    false => broken += head,
                }
            }
            broken.push(mark);
        }
        broken += &text[at..];
        broken
    }

    /// Whether this is a control token and nothing else.
    fn is_token(&self, text: &str) -> bool {
        let found = self.finder.as_ref().and_then(|f| f.find(text));
        found.is_some_and(|m| m.len() == text.len())
    }

    /// The tokens of a text in which whole control tokens count as such.
    fn encode(
        &self,
        tokenizer: &Tokenizer,
        text: &str,
        mark: char,
        bounds: &TextBounds<'_>,
    ) -> Result<Vec<Token>, ApiError> {
        let mut tokens = Vec::new();
        let mut plain = |text: &str, end: Option<Token>| {
            let text: String = text.chars().filter(|&c| c != mark).collect();
            let options = EncodeOptions {
                special: Special::Plain,
                add_bos: false,
            };
            if !text.is_empty() {
                tokens.extend(bounds.encode(tokenizer, FIELD, &text, options)?);
            }
            tokens.extend(end);
            if tokens.len() > bounds.most {
                let found = format!("more than {}", bounds.most);
                return Err(ApiError::context(FIELD, found, bounds.most, bounds.most));
            }
            Ok(())
        };
        let mut at = 0;
        for found in self.finder.iter().flat_map(|f| f.find_iter(text)) {
            let id = self.ids[found.pattern().as_usize()];
            plain(&text[at..found.start()], Some(id))?;
            at = found.end();
        }
        plain(&text[at..], None)?;
        Ok(tokens)
    }

    /// The prompt's text and tokens for a conversation.
    pub(crate) fn chat(
        &self,
        codec: &Codec,
        mut messages: Vec<Message>,
        mut options: RenderOptions,
        bounds: &TextBounds<'_>,
    ) -> Result<(String, Vec<Token>), ApiError> {
        let tokenizer = codec.tokenizer()?;
        let template = codec.chat_template()?;
        let mut unsafe_text = false;
        let mut used = MarkSet::new();
        for_each(&mut messages, &mut options, &mut |text| {
            unsafe_text |= self.occurs(text);
            used.add(text);
        });
        let mark = MARKS.clone().find(|&c| !used.has(c) && !self.in_tokens(c));
        let mark = mark.ok_or_else(|| {
            ApiError::field(FIELD, "expected a character of private use to be left")
        })?;
        bounds.work.check()?;
        if unsafe_text {
            for_each(&mut messages, &mut options, &mut |text| {
                *text = self.broken(text, mark);
            });
            bounds.work.check()?;
        }
        let text = template.render(&messages, options).map_err(refused)?;
        drop(messages);
        bounds.work.check()?;
        let tokens = match unsafe_text {
            true => self.encode(tokenizer, &text, mark, bounds)?,
            false => {
                let options = EncodeOptions {
                    special: Special::Parse,
                    add_bos: false,
                };
                bounds.encode(tokenizer, FIELD, &text, options)?
            }
        };
        // Most templates write the start token themselves; one is enough.
        let bos = tokenizer.bos().filter(|_| tokenizer.add_bos());
        let tokens = match bos {
            Some(bos) if tokens.first() != Some(&bos) => [&[bos], &tokens[..]].concat(),
            _ => tokens,
        };
        let text = match unsafe_text {
            true => text.chars().filter(|&c| c != mark).collect(),
            false => text,
        };
        Ok((text, tokens))
    }

    /// Whether a control token has this character, which could not break it.
    fn in_tokens(&self, mark: char) -> bool {
        self.marks_in_tokens.has(mark)
    }
}

/// The field that a conversation is in.
const FIELD: &str = "messages";

/// Which of the characters of private use occur.
struct MarkSet(Vec<bool>);

impl MarkSet {
    fn new() -> Self {
        Self(vec![false; MARKS.clone().count()])
    }

    fn place(c: char) -> Option<usize> {
        let from = u32::from(c).checked_sub(u32::from(*MARKS.start()))?;
        usize::try_from(from).ok()
    }

    fn add(&mut self, text: &str) {
        // All of them begin with this byte or the next; most texts have neither.
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

/// What a template refuses is the messages' fault, what breaks it may be too.
fn refused(error: muser_text::Error) -> ApiError {
    if let muser_text::Error::NoThread { .. } = error {
        return muser_engine::Error::from(error).into();
    }
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

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MARK: char = '\u{e001}';

    /// The rule as it is said: while a token is there, the first and longest is
    /// broken.
    fn by_rule(guard: &Guard, text: &str) -> String {
        let mut broken = text.to_owned();
        while let Some(found) = guard.finder.as_ref().and_then(|f| f.find(&broken)) {
            let mut inner = broken[found.range()].chars();
            let first = inner.next().filter(|_| !inner.as_str().is_empty());
            let marked: String = first.into_iter().chain([MARK]).chain(inner).collect();
            broken.replace_range(found.range(), &marked);
        }
        broken
    }

    fn guard(tokens: &[&str]) -> Guard {
        Guard::of((0..).zip(tokens.iter().map(|t| (*t).to_owned())))
    }

    #[test]
    fn tokens_are_broken_and_nothing_else() {
        let guard = guard(&["<|eot|>", "<|", "|"]);
        assert_eq!(guard.broken("a < b", MARK), "a < b");
        assert_eq!(guard.broken("|a", MARK), format!("{MARK}a"));
        assert_eq!(
            guard.broken("x<|eot|>y", MARK),
            format!("x<{MARK}{MARK}eot{MARK}>y")
        );
        assert!(!guard.occurs(&guard.broken("<<|eot|><|<|", MARK)));
    }

    #[test]
    fn a_mark_is_in_no_token() {
        let guard = guard(&["a\u{e000}b"]);
        assert!(guard.in_tokens('\u{e000}') && !guard.in_tokens('\u{e001}'));
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

        #[test]
        fn one_pass_is_the_rule(
            tokens in prop::collection::vec("[<|é>a]{1,5}", 0..6),
            text in "[<|é>ab]{0,40}",
        ) {
            let tokens: Vec<&str> = tokens.iter().map(String::as_str).collect();
            let guard = guard(&tokens);
            let broken = guard.broken(&text, MARK);
            prop_assert_eq!(&broken, &by_rule(&guard, &text));
            prop_assert!(!guard.occurs(&broken));
        }
    }
}
