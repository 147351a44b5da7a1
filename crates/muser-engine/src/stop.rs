//! What ends a generation: its options, the reasons of an end, and the search for stop
//! strings in a stream of text.

use crate::{Error, Token};
use muser_text::chat::Format;

/// The most bytes that a stop string may have. It bounds the text that is held back
/// because a stop string may begin there.
pub const MAX_STOP_BYTES: usize = 1024;

/// The options of a generation: the chat format of the answer, and what ends it besides
/// the model's end-of-generation tokens and a full context.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GenerateOptions {
    /// The most tokens to generate; `None` sets no limit.
    pub max_tokens: Option<usize>,
    /// The stop strings: texts that end the generation when they appear in the answer's
    /// content. They, and what follows, are not part of the answer.
    pub stop: Vec<String>,
    /// The chat format in which the answer is written:
    /// [`Model::format`](crate::Model::format) after the prompt of a conversation,
    /// [`Format::Plain`] after any other one.
    pub format: Format,
}

impl Default for GenerateOptions {
    /// Returns options without a limit of tokens and without stop strings, by which
    /// everything that the model writes is content.
    fn default() -> Self {
        Self {
            max_tokens: None,
            stop: Vec::new(),
            format: Format::Plain,
        }
    }
}

/// Why a generation ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StopReason {
    /// The generation ended because the model chose this end-of-generation token.
    EndOfGeneration(Token),
    /// The generation ended because this stop string appeared in the answer's content.
    StopString(String),
    /// The generation ended because the answer has as many tokens as
    /// [`GenerateOptions::max_tokens`] allows.
    MaxTokens,
    /// The generation ended because the session has no position left for the next
    /// token.
    ContextFull {
        /// Number of positions that the session's tokens need together with the next one.
        needed: usize,
        /// Number of positions that the session has (its context).
        context: usize,
    },
    /// The generation ended because the caller raised its cancel flag.
    Cancelled,
}

impl StopReason {
    /// Returns the name of the reason in records of runs: `end`, `stop`, `length`,
    /// `context`, `cancelled`.
    pub fn name(&self) -> &'static str {
        match self {
            Self::EndOfGeneration(_) => "end",
            Self::StopString(_) => "stop",
            Self::MaxTokens => "length",
            Self::ContextFull { .. } => "context",
            Self::Cancelled => "cancelled",
        }
    }
}

/// Finds the first stop string in a text that comes in pieces. Holds back the end of
/// the text as long as a stop string may begin there.
#[derive(Clone, Debug)]
pub struct StopMatcher {
    strings: Vec<String>,
    held: String,
}

impl StopMatcher {
    /// Makes a matcher that looks for these stop strings in a text from its beginning.
    ///
    /// # Errors
    /// A string that is empty or longer than [`MAX_STOP_BYTES`].
    pub fn new(strings: &[String]) -> Result<Self, Error> {
        for s in strings {
            if s.is_empty() || s.len() > MAX_STOP_BYTES {
                return Err(Error::Parameter {
                    name: "stop",
                    expected: format!("1 to {MAX_STOP_BYTES} bytes"),
                    found: format!("{} bytes", s.len()),
                });
            }
        }
        Ok(Self {
            strings: strings.to_vec(),
            held: String::new(),
        })
    }

    /// Appends a piece of the text. Returns the text that can be shown, and the stop
    /// string that ended the text, if one did: the one that is complete first, and of
    /// those the longest. The result does not depend on where the pieces are cut.
    pub fn push(&mut self, text: &str) -> (String, Option<String>) {
        if self.strings.is_empty() {
            return (text.to_owned(), None);
        }
        self.held.push_str(text);
        let found = self
            .strings
            .iter()
            .filter_map(|s| Some((self.held.find(s.as_str())?, s)))
            .min_by_key(|(at, s)| (at + s.len(), *at));
        if let Some((at, stop)) = found {
            let stop = stop.clone();
            let mut shown = std::mem::take(&mut self.held);
            shown.truncate(at);
            return (shown, Some(stop));
        }
        let keep = self.held.len() - self.possible_start();
        let rest = self.held.split_off(keep);
        (std::mem::replace(&mut self.held, rest), None)
    }

    /// Returns the text that was held back, after the last piece of a text without a
    /// stop string.
    pub fn finish(&mut self) -> String {
        std::mem::take(&mut self.held)
    }

    /// Returns the number of bytes at the end of the held text with which a stop string
    /// may begin.
    fn possible_start(&self) -> usize {
        let held = self.held.as_bytes();
        let longest = |s: &String| {
            let most = held.len().min(s.len() - 1);
            (1..=most)
                .rev()
                .find(|&n| s.as_bytes().starts_with(&held[held.len() - n..]))
        };
        self.strings.iter().filter_map(longest).max().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn run(stops: &[&str], pieces: &[&str]) -> (Vec<String>, Option<String>, String) {
        let stops: Vec<String> = stops.iter().map(|s| s.to_string()).collect();
        let mut m = StopMatcher::new(&stops).unwrap();
        let mut shown = Vec::new();
        for piece in pieces {
            let (text, stop) = m.push(piece);
            shown.push(text);
            if stop.is_some() {
                return (shown, stop, m.finish());
            }
        }
        (shown, None, m.finish())
    }

    #[test]
    fn a_stop_string_across_pieces_is_found_and_not_shown() {
        let (shown, stop, rest) = run(&["\n\nUser:"], &["Hi.\n", "\nUs", "er: x"]);
        assert_eq!(shown, ["Hi.", "", ""]);
        assert_eq!((stop.as_deref(), rest.as_str()), (Some("\n\nUser:"), ""));
    }

    #[test]
    fn a_false_start_is_let_go() {
        let (shown, stop, rest) = run(&["abc"], &["xab", "d", "ab"]);
        assert_eq!(shown, ["x", "abd", ""]);
        assert_eq!((stop, rest.as_str()), (None, "ab"));
    }

    #[test]
    fn the_first_to_be_complete_wins_then_the_longest() {
        assert_eq!(
            run(&["cd", "bcde", "abcd"], &["abcde"]).1.as_deref(),
            Some("abcd")
        );
        assert_eq!(run(&["é"], &["caf", "é!"]).0, ["caf", ""]);
    }

    #[test]
    fn empty_and_overlong_strings_are_refused() {
        let error = |s: String| StopMatcher::new(&[s]).unwrap_err().to_string();
        assert_eq!(
            error(String::new()),
            "stop: expected 1 to 1024 bytes, found 0 bytes"
        );
        assert_eq!(
            error("x".repeat(1025)),
            "stop: expected 1 to 1024 bytes, found 1025 bytes"
        );
    }

    proptest! {
        /// Checks that however the text is cut into pieces, the text before the first
        /// stop string is shown, or all of the text if it has none.
        #[test]
        fn the_cut_does_not_matter(
            text in "[abé]{0,20}",
            stops in prop::collection::vec("[abé]{1,4}", 0..3),
            sizes in prop::collection::vec(1usize..4, 20),
        ) {
            let chars: Vec<char> = text.chars().collect();
            let mut pieces = Vec::new();
            let mut at = 0;
            for n in sizes {
                let end = (at + n).min(chars.len());
                pieces.push(chars[at..end].iter().collect::<String>());
                at = end;
            }
            let stops: Vec<&str> = stops.iter().map(String::as_str).collect();
            let pieces: Vec<&str> = pieces.iter().map(String::as_str).collect();
            let (shown, _, rest) = run(&stops, &pieces);
            let shown = shown.concat() + &rest;
            let first = (0..=text.len())
                .filter(|&n| text.is_char_boundary(n))
                .find_map(|n| {
                    let ends = |s: &&&str| text[..n].ends_with(**s);
                    stops.iter().filter(ends).map(|s| n - s.len()).min()
                });
            prop_assert_eq!(shown, &text[..first.unwrap_or(text.len())]);
        }
    }
}
