//! Turns a stream of tokens into text of whole characters.

use crate::{Result, Tokenizer};

/// Turns a model's tokens into text as they come, in whole characters.
///
/// A token may end within a character; its bytes are held back until the
/// character is complete or cannot become one. The returned texts together equal
/// [`Tokenizer::decode`] of the same ids.
#[derive(Debug, Clone)]
pub struct StreamDecoder {
    tokenizer: Tokenizer,
    show_special: bool,
    /// The bytes of a character that is not complete yet, at most three between calls.
    pending: Vec<u8>,
}

impl StreamDecoder {
    /// Creates a decoder of tokens at the start of a text. `show_special` says whether
    /// control tokens appear in the text, as in [`Tokenizer::decode`].
    pub fn new(tokenizer: &Tokenizer, show_special: bool) -> Self {
        Self {
            tokenizer: tokenizer.clone(),
            show_special,
            pending: Vec::new(),
        }
    }

    /// Returns the tokenizer whose tokens this decoder turns into text.
    pub fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    /// Decodes one more token of a stream and returns the text that it completes, which
    /// is often empty for the parts of a rare character.
    ///
    /// # Errors
    /// An id beyond the vocabulary; the bytes that were held back stay so.
    pub fn push(&mut self, id: u32) -> Result<String> {
        let bytes = self.tokenizer.visible_bytes(id, self.show_special)?;
        self.pending.extend_from_slice(bytes);
        let mut text = String::new();
        let mut rest = self.pending.as_slice();
        while !rest.is_empty() {
            let error = match std::str::from_utf8(rest) {
                Ok(valid) => {
                    text.push_str(valid);
                    rest = &[];
                    break;
                }
                Err(error) => error,
            };
            let (valid, after) = rest.split_at(error.valid_up_to());
            text.push_str(&String::from_utf8_lossy(valid));
            rest = after;
            let Some(invalid) = error.error_len() else {
                break;
            };
            text.push(char::REPLACEMENT_CHARACTER);
            rest = &rest[invalid..];
        }
        let done = self.pending.len() - rest.len();
        self.pending.drain(..done);
        Ok(text)
    }

    /// Ends the text: returns U+FFFD if its last character was not completed, and
    /// nothing otherwise. The decoder can then start another text.
    pub fn finish(&mut self) -> String {
        let text = String::from_utf8_lossy(&self.pending).into_owned();
        self.pending.clear();
        text
    }
}
