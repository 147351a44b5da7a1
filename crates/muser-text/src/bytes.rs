//! The byte-level alphabet of GPT-2 vocabularies: one printable character for each
//! byte.
//!
//! Vocabularies of byte-level BPE are lists of strings, so every byte is
//! written as a character: the printable ones of Latin-1 as themselves, the
//! other 68 as U+0100, U+0101, … in the order of their values (GPT-2's
//! `bytes_to_unicode`). A space is `Ġ`, a newline `Ċ`.

/// One past the highest code point of the byte-level alphabet, which has a character
/// for each byte.
const ALPHABET_END: usize = 0x100 + 68;

const fn is_printable(byte: u8) -> bool {
    matches!(byte, 0x21..=0x7E | 0xA1..=0xAC | 0xAE..=0xFF)
}

const CODES: [u16; 256] = {
    let mut codes = [0; 256];
    let (mut byte, mut next) = (0, 0x100);
    while byte < 256 {
        if is_printable(byte as u8) {
            codes[byte] = byte as u16;
        } else {
            codes[byte] = next;
            next += 1;
        }
        byte += 1;
    }
    codes
};

/// The byte that each code point of the byte-level alphabet stands for; 256 for a code
/// point that is not in the alphabet.
const BYTES: [u16; ALPHABET_END] = {
    let mut bytes = [256; ALPHABET_END];
    let mut byte = 0;
    while byte < 256 {
        bytes[CODES[byte] as usize] = byte as u16;
        byte += 1;
    }
    bytes
};

/// Returns the character that stands for `byte` in the byte-level alphabet of GPT-2
/// vocabularies.
pub(crate) fn char_of(byte: u8) -> char {
    // Every code of the alphabet is below 0x144, far from the surrogates.
    char::from_u32(u32::from(CODES[usize::from(byte)])).unwrap_or(char::REPLACEMENT_CHARACTER)
}

/// Returns the byte that `c` stands for in the byte-level alphabet of GPT-2
/// vocabularies; `None` if `c` is not in the alphabet.
pub(crate) fn byte_of(c: char) -> Option<u8> {
    let code = BYTES.get(c as usize)?;
    u8::try_from(*code).ok()
}

/// Appends the bytes that a token's text, written in the byte-level alphabet, stands
/// for. A character outside the alphabet, which a file may have, is kept as its own
/// UTF-8.
pub(crate) fn push_decoded(text: &str, out: &mut Vec<u8>) {
    for c in text.chars() {
        match byte_of(c) {
            Some(byte) => out.push(byte),
            None => out.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn alphabet_is_a_bijection() {
        for byte in 0..=255 {
            assert_eq!(byte_of(char_of(byte)), Some(byte));
        }
        let known = (0..0x1000).filter_map(char::from_u32).filter_map(byte_of);
        assert_eq!(known.count(), 256);
    }

    #[test]
    fn known_points() {
        assert_eq!(char_of(b' '), 'Ġ');
        assert_eq!(char_of(b'\n'), 'Ċ');
        assert_eq!(char_of(b'\t'), 'ĉ');
        assert_eq!(char_of(0xAD), 'Ń');
        assert_eq!(char_of(b'~'), '~');
        assert_eq!(byte_of(' '), None);
        assert_eq!(byte_of('\u{144}'), None);
    }

    #[test]
    fn foreign_characters_stay() {
        let mut out = Vec::new();
        push_decoded("Ġ漢 a", &mut out);
        assert_eq!(out, " 漢 a".as_bytes());
    }
}
