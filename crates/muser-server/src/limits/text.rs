//! Turns a request's texts into tokens, within limits on their number, memory and time.

use super::work::Work;
use crate::error::ApiError;
use muser_engine::Token;
use muser_text::{EncodeOptions, Error, Tokenizer};

/// Bytes of memory that the tokenizer's merging takes for each byte of a piece (a word,
/// or a run of spaces).
const MERGE: u64 = 160;
/// The length in bytes of a piece of text (a word, or a run of spaces) up to which the
/// memory for merging it into tokens is not counted.
const SHORT: usize = 4096;

/// The bounds on tokenizing the texts of a request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TextBounds<'w> {
    /// The most tokens of one text: the model's context length.
    pub(crate) most: usize,
    pub(crate) work: &'w Work,
}

impl TextBounds<'_> {
    /// Encodes a text as tokens; errors name the request's field `param`.
    ///
    /// # Errors
    /// 400 for more tokens than the context has, as soon as that is known; 504
    /// when the request's time is up; what the tokenizer refuses.
    pub(crate) fn encode(
        &self,
        tokenizer: &Tokenizer,
        param: &str,
        text: &str,
        options: EncodeOptions,
    ) -> Result<Vec<Token>, ApiError> {
        self.work.check()?;
        let long = longest_run(text).min(self.most.saturating_mul(tokenizer.longest_token()));
        let memory = if long > SHORT { MERGE * long as u64 } else { 0 };
        self.work.hold(memory, param)?;
        let stop = || self.work.is_over();
        match tokenizer.encode_within(text, options, self.most, &stop) {
            Ok(tokens) => Ok(tokens),
            Err(Error::TooManyTokens { most }) => {
                let found = format!("more than {most}");
                Err(ApiError::context(param, found, self.most, self.most))
            }
            Err(Error::Stopped) => Err(ApiError::deadline()),
            Err(error) => Err(muser_engine::Error::from(error).into()),
        }
    }
}

/// Returns the length in bytes of a text's longest run of white space, or of other
/// characters. No piece that the tokenizer cuts a text into is longer than such a run
/// and one character before it.
fn longest_run(text: &str) -> usize {
    let mut longest = 0;
    let mut begin = 0;
    let mut was = None;
    for (at, c) in text.char_indices() {
        let is = c.is_whitespace();
        if was != Some(is) {
            longest = longest.max(at - begin);
            begin = at;
            was = Some(is);
        }
    }
    longest.max(text.len() - begin)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_of_spaces_or_of_anything_else() {
        for (text, longest) in [
            ("", 0),
            ("abc", 3),
            ("a bcd e", 3),
            ("a    b", 4),
            ("é é", 2),
        ] {
            assert_eq!(longest_run(text), longest, "{text:?}");
        }
    }
}
