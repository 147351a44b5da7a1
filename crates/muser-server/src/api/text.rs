//! Renders tokens as texts, and finds where each begins in an answer's text.

use muser_engine::Token;
use muser_text::Tokenizer;

/// Renders a token as text. A token that is not whole UTF-8 characters is written as its
/// bytes, as OpenAI does; otherwise all of them would be the same U+FFFD.
pub(crate) fn of_token(tokenizer: &Tokenizer, token: Token) -> String {
    let bytes = tokenizer.token_bytes(token).unwrap_or_default();
    match std::str::from_utf8(bytes) {
        Ok(text) => text.to_owned(),
        Err(_) => escaped(bytes),
    }
}

/// Writes a token's bytes in hexadecimal, such as `bytes:\xe6\x97`.
fn escaped(bytes: &[u8]) -> String {
    let each = bytes.iter().map(|byte| format!("\\x{byte:02x}"));
    format!("bytes:{}", each.collect::<String>())
}

/// Finds, token by token, at which character of a text each of its tokens begins.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Offsets {
    /// The number of complete characters of the text so far.
    characters: usize,
    /// The bytes of the text's last character if it is still incomplete.
    pending: Vec<u8>,
}

impl Offsets {
    /// Adds a token's bytes to the text and returns at which character the token begins:
    /// at the one that it continues, or else after all characters so far, including an
    /// incomplete one (U+FFFD in the text).
    pub(crate) fn push(&mut self, bytes: &[u8]) -> usize {
        let before = self.pending.len();
        self.pending.extend_from_slice(bytes);
        let all = std::mem::take(&mut self.pending);
        let (mut at, mut offset) = (0, self.characters);
        for chunk in all.utf8_chunks() {
            for c in chunk.valid().chars() {
                at += c.len_utf8();
                self.characters += 1;
                offset += usize::from(at <= before);
            }
            let invalid = chunk.invalid();
            at += invalid.len();
            let unfinished = at == all.len() && could_go_on(invalid);
            if unfinished {
                self.pending = invalid.to_vec();
            } else if !invalid.is_empty() {
                self.characters += 1;
                offset += usize::from(at <= before);
            }
        }
        offset
    }
}

/// Whether these bytes are the beginning of a UTF-8 character that further bytes could
/// complete.
fn could_go_on(bytes: &[u8]) -> bool {
    std::str::from_utf8(bytes).is_err_and(|e| e.error_len().is_none())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offsets(tokens: &[&[u8]]) -> Vec<usize> {
        let mut offsets = Offsets::default();
        tokens.iter().map(|t| offsets.push(t)).collect()
    }

    #[test]
    fn parts_of_a_character_begin_where_it_does() {
        let day = "日".as_bytes();
        let parts: Vec<&[u8]> = day.chunks(1).collect();
        let all = [&parts[..], &parts, &parts[..2]].concat();
        assert_eq!(offsets(&all), [0, 0, 0, 1, 1, 1, 2, 2]);
        assert_eq!(
            offsets(&[b"a", &day[..2], &day[2..], b"bc", b"d"]),
            [0, 1, 1, 2, 4]
        );
        // Bytes that never become a character are one U+FFFD; the next token
        // begins after it.
        assert_eq!(offsets(&[&day[..2], b"a", b"b"]), [0, 1, 2]);
        assert_eq!(offsets(&[b"\xff", b"\xff", b"", b"a"]), [0, 1, 2, 2]);
        assert_eq!(offsets(&["é!".as_bytes(), b"", b"x"]), [0, 2, 2]);
    }

    #[test]
    fn bytes_are_written_as_such() {
        assert_eq!(escaped(b"\xe6\x97"), "bytes:\\xe6\\x97");
    }
}
