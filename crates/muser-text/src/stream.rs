//! Detokenises a stream into whole characters.

use crate::{Result, Tokenizer};

/// Turns tokens into text as they come.
///
/// A token may end within a character; its bytes are held back until the
/// character is complete or cannot become one. The returned texts together equal
/// [`Tokenizer::decode`] of the same ids.
#[derive(Debug, Clone)]
pub struct StreamDecoder {
    tokenizer: Tokenizer,
    show_special: bool,
    /// The beginning of a character, at most three bytes between calls.
    pending: Vec<u8>,
}

impl StreamDecoder {
    /// Creates a decoder at the start of a text. `show_special` as in [`Tokenizer::decode`].
    pub fn new(tokenizer: &Tokenizer, show_special: bool) -> Self {
        Self {
            tokenizer: tokenizer.clone(),
            show_special,
            pending: Vec::new(),
        }
    }

    /// The tokenizer whose tokens it takes.
    pub fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    /// Adds a token and returns the text that it completes, which is often empty for
    /// the parts of a rare character.
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

    /// Ends the text: returns U+FFFD if a character was not completed. The decoder
    /// can then start another text.
    pub fn finish(&mut self) -> String {
        let text = String::from_utf8_lossy(&self.pending).into_owned();
        self.pending.clear();
        text
    }
}
