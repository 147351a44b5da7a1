//! Split rules of BPE tokenizers: how a text is cut into the pieces within which tokens
//! merge.

use regex::Regex;

use crate::{Error, Result};

/// The names of split rules that `tokenizer.ggml.pre` may have, with the regular
/// expression of each.
const RULES: [(&str, &str); 2] = [("gpt-4o", O200K), ("llama4", O200K)];

/// The split rule of `o200k_base` (tiktoken, `tiktoken_ext/openai_public.py`), which
/// Llama 4 took over unchanged, as a regular expression. It matches words with at most
/// one leading character that is no letter, digit or line end, split where lower case
/// turns to upper, with an English contraction; up to three digits; punctuation with
/// the line ends behind it; white space with line ends; white space.
///
/// The original ends in `\s+(?!\S)|\s+`. The look-ahead would need a backtracking
/// engine, whose time depends on the text, so [`SplitRule::pieces`] shortens the run of
/// white space instead.
///
/// llama.cpp writes the rule for an engine without these Unicode classes: it takes
/// every letter outside ASCII as upper and lower case at once, and marks (`\p{M}`) as
/// punctuation. Models were trained with the original, so decomposed accents and words
/// in mixed non-ASCII case get other token ids here than in llama.cpp.
const O200K: &str = concat!(
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"|\p{N}{1,3}",
    r"| ?[^\s\p{L}\p{N}]+[\r\n/]*",
    r"|\s*[\r\n]+",
    r"|\s+",
);

/// A compiled split rule: cuts a text into the pieces within which BPE merges tokens.
#[derive(Debug)]
pub(crate) struct SplitRule(Regex);

impl SplitRule {
    /// Returns the split rule with this name in `tokenizer.ggml.pre`; refuses a name
    /// that is not known, or none.
    pub(crate) fn by_name(name: Option<&str>) -> Result<Self> {
        let rule = RULES.iter().find(|(known, _)| Some(*known) == name);
        let (_, pattern) = rule.ok_or_else(|| Error::UnknownSplitRule {
            found: name.map(String::from),
            known: RULES.map(|(known, _)| known).join(", "),
        })?;
        let regex = Regex::new(pattern).map_err(|error| Error::Build {
            what: "the split rule",
            reason: error.to_string(),
        })?;
        Ok(Self(regex))
    }

    /// Cuts `text` into the pieces within which BPE merges tokens. The pieces join to
    /// `text` again.
    pub(crate) fn pieces<'t>(&self, text: &'t str) -> impl Iterator<Item = &'t str> {
        let mut at = 0;
        std::iter::from_fn(move || {
            let rest = text.get(at..).filter(|rest| !rest.is_empty())?;
            let end = match self.0.find_at(text, at) {
                // The split rule's patterns match at every position. If one did not,
                // the text that it skipped would be a piece of its own.
                Some(found) if found.start() > at => found.start(),
                Some(found) if found.end() > at => shortened(text, found),
                _ => at + rest.len(),
            };
            let piece = &text[at..end];
            at = end;
            Some(piece)
        })
    }
}

/// Applies the split rule's `\s+(?!\S)`: a run of white space before a word leaves its
/// last character to the word. Returns where the piece ends. Only the last alternative
/// of the rule matches white space without a line end, and it takes the whole run, so a
/// word or the end of the text follows.
fn shortened(text: &str, found: regex::Match<'_>) -> usize {
    let piece = found.as_str();
    let mut chars = piece.char_indices();
    let last = chars.next_back();
    let is_blank = |c: char| c.is_whitespace() && c != '\r' && c != '\n';
    let run = found.end() < text.len() && piece.chars().all(is_blank);
    match last {
        Some((offset, _)) if run && offset > 0 => found.start() + offset,
        _ => found.end(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
    use tokenizers::{
        OffsetReferential, OffsetType, PreTokenizedString, PreTokenizer, SplitDelimiterBehavior,
    };

    fn pieces(text: &str) -> Vec<&str> {
        let rule = SplitRule::by_name(Some("llama4")).unwrap();
        rule.pieces(text).collect()
    }

    /// Returns the original split pattern of `o200k_base` with its look-ahead, compiled
    /// for a backtracking engine, for comparison.
    fn original() -> Split {
        let pattern = O200K.replace(r"|\s+", r"|\s+(?!\S)|\s+");
        assert!(pattern.ends_with(r"|\s*[\r\n]+|\s+(?!\S)|\s+"));
        let pattern = SplitPattern::Regex(pattern);
        Split::new(pattern, SplitDelimiterBehavior::Isolated, false).unwrap()
    }

    fn by(split: &Split, text: &str) -> Vec<String> {
        let mut string = PreTokenizedString::from(text);
        split.pre_tokenize(&mut string).unwrap();
        let splits = string.get_splits(OffsetReferential::Original, OffsetType::Byte);
        splits
            .into_iter()
            .map(|(piece, ..)| piece.to_owned())
            .collect()
    }

    #[test]
    fn words_and_space() {
        assert_eq!(pieces("Hello world"), ["Hello", " world"]);
        assert_eq!(
            pieces("camelCase HTTPServer"),
            ["camel", "Case", " HTTPServer"]
        );
        assert_eq!(pieces("it's WE'LL"), ["it's", " WE'LL"]);
        assert_eq!(pieces("12345"), ["123", "45"]);
        assert_eq!(pieces("a   b"), ["a", "  ", " b"]);
        assert_eq!(pieces("a\u{a0}\u{a0}b"), ["a", "\u{a0}", "\u{a0}b"]);
        assert_eq!(pieces("a \n  b  "), ["a", " \n", " ", " b", "  "]);
        assert_eq!(pieces("x);\n/y"), ["x", ");\n/", "y"]);
        assert_eq!(pieces(""), [""; 0]);
    }

    #[test]
    fn unknown_rules_are_refused_by_name() {
        let error = SplitRule::by_name(Some("default")).unwrap_err().to_string();
        assert!(
            error.contains("\"default\"") && error.contains("gpt-4o, llama4"),
            "{error}"
        );
        let error = SplitRule::by_name(None).unwrap_err().to_string();
        assert!(
            error.contains("missing") && error.contains("gpt-4o, llama4"),
            "{error}"
        );
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 1000, ..ProptestConfig::default() })]

        #[test]
        fn equals_the_original_pattern(text in "([ \t\r\n\u{85}\u{a0}\u{2028}]{0,4}|[aAbZ'sSldREveſ]{0,4}|\\PC|[0-9٣Ⅷ]{0,4}|[/.,!]{0,3}|[éÉǅʰ漢\u{301}]{0,3}){0,8}") {
            thread_local!(static ORIGINAL: Split = original());
            prop_assert_eq!(pieces(&text), ORIGINAL.with(|split| by(split, &text)));
        }
    }
}
