//! Reads text from a file or standard input: bounded, UTF-8, without a byte order mark.

use anyhow::Context as _;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

/// The most bytes that a text given to a command may have: a prompt, a document, a list
/// of tokens.
pub(crate) const MOST_TEXT: u64 = 256 << 20;
/// The most bytes of a receipt (the record of a run's logits hash that `muser parity`
/// checks), or of the JSON file of facts to keep in one.
pub(crate) const MOST_RECEIPT: u64 = 64 << 20;
/// The most bytes that a file of API keys for `muser serve` may have.
pub(crate) const MOST_KEYS: u64 = 1 << 20;

/// The byte order mark, U+FEFF, which some editors put before UTF-8 text. It is no part of
/// the text.
const MARK: char = '\u{feff}';

/// Reads a whole file as UTF-8 text; the path `-` stands for standard input.
///
/// # Errors
/// A file that cannot be read, is longer than `most` bytes (as is a device that never
/// ends), or is not UTF-8.
pub(crate) fn text(path: &Path, most: u64) -> anyhow::Result<String> {
    if path == Path::new("-") {
        return from(io::stdin().lock(), "standard input", most);
    }
    let name = path.display().to_string();
    let file = File::open(path).with_context(|| format!("{name} cannot be read"))?;
    from(file, &name, most)
}

/// Reads UTF-8 text of at most `most` bytes from a reader, which error messages call
/// `name`.
pub(crate) fn from(reader: impl Read, name: &str, most: u64) -> anyhow::Result<String> {
    let mut bytes = Vec::new();
    let mut bounded = reader.take(most.saturating_add(1));
    let read = bounded.read_to_end(&mut bytes);
    read.with_context(|| format!("{name} cannot be read"))?;
    decoded(bytes, name, most)
}

/// Decodes UTF-8 of at most `most` bytes and removes a leading byte order mark; error
/// messages call the source `name`.
pub(crate) fn decoded(bytes: Vec<u8>, name: &str, most: u64) -> anyhow::Result<String> {
    if bytes.len() as u64 > most {
        anyhow::bail!("{name}: expected at most {most} bytes, found more");
    }
    let mut text = String::from_utf8(bytes).map_err(|e| {
        let at = e.utf8_error().valid_up_to();
        anyhow::anyhow!("{name}: expected UTF-8, found another byte at offset {at}")
    })?;
    if text.starts_with(MARK) {
        text.drain(..MARK.len_utf8());
    }
    Ok(text)
}

/// Removes one line end, `\n` or `\r\n`, from the end of a text.
pub(crate) fn without_line_end(mut text: String) -> String {
    if text.ends_with('\n') {
        text.pop();
        if text.ends_with('\r') {
            text.pop();
        }
    }
    text
}

/// Removes a carriage return from the end of a line, and a byte order mark from its
/// beginning if it is the `first` line of the input.
pub(crate) fn line(text: &str, first: bool) -> &str {
    let text = text.strip_suffix('\r').unwrap_or(text);
    match first {
        true => text.strip_prefix(MARK).unwrap_or(text),
        false => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_is_dropped_once_and_the_last_line_end() {
        let text = |bytes: &[u8]| decoded(bytes.to_vec(), "x", 100).unwrap();
        assert_eq!(text(b"\xef\xbb\xbfa\r\n"), "a\r\n");
        assert_eq!(text("\u{feff}\u{feff}a".as_bytes()), "\u{feff}a");
        let ends = ["a\r\n", "a\n", "a", "a\n\n", "a\r"].map(|t| without_line_end(t.to_owned()));
        assert_eq!(ends, ["a", "a", "a", "a\n", "a\r"]);
        assert_eq!(line("\u{feff}a\r", true), "a");
        assert_eq!(line("\u{feff}a", false), "\u{feff}a");
    }

    #[test]
    fn what_has_no_end_and_what_is_no_text_is_refused() {
        let error = from(io::repeat(b'x'), "/dev/zero", 1000).unwrap_err();
        assert_eq!(
            error.to_string(),
            "/dev/zero: expected at most 1000 bytes, found more"
        );
        assert_eq!(from(&b"12345"[..], "x", 5).unwrap(), "12345");
        let error = decoded(b"ab\xff".to_vec(), "x", 9).unwrap_err().to_string();
        assert_eq!(error, "x: expected UTF-8, found another byte at offset 2");
    }
}
