//! Reads lists of numbers, such as token ids, from the command line: `1,2,3` or `@FILE`.

use crate::exit::Usage;
use crate::input;
use anyhow::Context as _;
use std::path::Path;

/// Reads a list of numbers from an option's value, or from the file that it names after an
/// `@`: decimal, with commas, white space or both between them. Errors name the `option`.
pub(crate) fn read(option: &str, list: &str) -> anyhow::Result<Vec<u32>> {
    match list.strip_prefix('@') {
        None => parse(option, list),
        Some(path) => {
            let text = input::text(Path::new(path), input::MOST_TEXT);
            let text = text.with_context(|| format!("{option}: {path} cannot be used"))?;
            parse(option, &text).with_context(|| format!("{path} is no list of numbers"))
        }
    }
}

/// Parses a list of decimal numbers below 2^32, with commas, white space or both between
/// them. Errors name the `option`.
pub(crate) fn parse(option: &str, list: &str) -> anyhow::Result<Vec<u32>> {
    let wrong = |found: &str| {
        let what = format!("{option}: expected numbers below 2^32, found {found}");
        anyhow::Error::from(Usage(what))
    };
    let mut numbers = Vec::new();
    let parts: Vec<&str> = list.split(',').collect();
    for (i, part) in parts.iter().enumerate() {
        // Only the last part may be empty: a comma may end the list, and an empty list has
        // no number.
        if part.trim().is_empty() && i + 1 < parts.len() {
            let side = if i == 0 {
                "nothing before the first comma"
            } else {
                "nothing between two commas"
            };
            return Err(wrong(side));
        }
        for word in part.split_whitespace() {
            numbers.push(word.parse().map_err(|_| wrong(&format!("{word:?}")))?);
        }
    }
    Ok(numbers)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commas_spaces_and_lines() {
        let parse = |list| parse("--tokens", list);
        assert_eq!(parse("1,2, 3\n4,").unwrap(), [1, 2, 3, 4]);
        assert_eq!(parse("1 2\n").unwrap(), [1, 2]);
        assert_eq!(parse("").unwrap(), [0u32; 0]);
        let refused = [
            ("1,-2", "found \"-2\""),
            ("1;2", "found \"1;2\""),
            ("4294967296", "found \"4294967296\""),
            ("x", "found \"x\""),
            ("1,,2", "found nothing between two commas"),
            ("1,2, ,", "found nothing between two commas"),
            (",1", "found nothing before the first comma"),
        ];
        for (list, found) in refused {
            let error = parse(list).unwrap_err().to_string();
            assert_eq!(
                error,
                format!("--tokens: expected numbers below 2^32, {found}"),
                "{list}"
            );
        }
    }
}
