//! Lists of numbers on the command line: `1,2,3` or `@FILE`.

use crate::exit::Usage;
use anyhow::Context as _;

/// A list written out, or in the file after an `@`: decimal numbers with
/// commas, white space or both between them.
pub(crate) fn read(list: &str) -> anyhow::Result<Vec<u32>> {
    match list.strip_prefix('@') {
        None => parse(list),
        Some(path) => {
            let text = std::fs::read_to_string(path);
            let text = text.with_context(|| format!("{path} cannot be read"))?;
            parse(&text).with_context(|| format!("{path} is no list of numbers"))
        }
    }
}

/// A list written out.
pub(crate) fn parse(list: &str) -> anyhow::Result<Vec<u32>> {
    let separator = |c: char| c == ',' || c.is_whitespace();
    let words = list.split(separator).filter(|word| !word.is_empty());
    let number = |word: &str| {
        let wrong = || Usage(format!("expected numbers below 2^32, found {word:?}"));
        word.parse().map_err(|_| wrong().into())
    };
    words.map(number).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commas_spaces_and_lines() {
        assert_eq!(parse("1,2, 3\n4,").unwrap(), [1, 2, 3, 4]);
        assert_eq!(parse("").unwrap(), [0u32; 0]);
        for wrong in ["1,-2", "1;2", "4294967296", "x"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}
