//! Finds the special tokens in a text, which the tokenizer does before it splits the
//! rest into pieces.

use aho_corasick::{AhoCorasick, MatchKind};

use crate::{Error, Result};

/// A part of a text to encode: a special token, or the text between two special tokens.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Fragment<'t> {
    /// Text without a special token, which the split rule cuts into pieces.
    Text(&'t str),
    /// The id of a special token whose text was found.
    Token(u32),
}

/// A set of special tokens, which finds their texts in a text to encode.
///
/// The longest token takes all its places first, then the next one in what is left, as
/// llama.cpp does: a long token beats a shorter one that starts before it. Tokens of
/// the same length take their places in the order of their ids.
#[derive(Debug)]
pub(crate) struct SpecialSet {
    /// Id and text of each special token, the longest text first.
    tokens: Vec<(u32, String)>,
    finder: Option<AhoCorasick>,
}

impl SpecialSet {
    pub(crate) fn new(tokens: impl Iterator<Item = (u32, String)>) -> Result<Self> {
        let mut tokens: Vec<_> = tokens.filter(|(_, text)| !text.is_empty()).collect();
        tokens.sort_by_key(|(id, text)| (std::cmp::Reverse(text.len()), *id));
        if tokens.is_empty() {
            return Ok(Self {
                tokens,
                finder: None,
            });
        }
        let finder = AhoCorasick::builder()
            .match_kind(MatchKind::Standard)
            .build(tokens.iter().map(|(_, text)| text))
            .map_err(|error| Error::Build {
                what: "the search for special tokens",
                reason: error.to_string(),
            })?;
        Ok(Self {
            tokens,
            finder: Some(finder),
        })
    }

    /// Cuts `text` at the special tokens in it, in time that grows linearly with the
    /// text.
    pub(crate) fn partition<'t>(&self, text: &'t str) -> Vec<Fragment<'t>> {
        let mut fragments = Vec::new();
        let mut at = 0;
        for (start, end, id) in self.places(text) {
            if start > at {
                fragments.push(Fragment::Text(&text[at..start]));
            }
            fragments.push(Fragment::Token(id));
            at = end;
        }
        if at < text.len() {
            fragments.push(Fragment::Text(&text[at..]));
        }
        fragments
    }

    /// Returns the start, end and id of each special token found in the text, in the
    /// order of their places.
    fn places(&self, text: &str) -> Vec<(usize, usize, u32)> {
        let finder = self.finder.iter();
        let mut found: Vec<_> = finder
            .flat_map(|finder| finder.find_overlapping_iter(text))
            .map(|m| (m.pattern().as_usize(), m.start(), m.end()))
            .collect();
        // The search numbers the tokens from the longest to the shortest.
        found.sort_unstable();
        // Tokens that already have their place are at least as long as the next one, so
        // one that overlaps it covers its first or last byte.
        let mut taken = vec![false; if found.is_empty() { 0 } else { text.len() }];
        found.retain(|&(_, start, end)| {
            let free = !taken[start] && !taken[end - 1];
            if free {
                taken[start..end].fill(true);
            }
            free
        });
        found.sort_unstable_by_key(|&(_, start, _)| start);
        let id = |pattern: usize| self.tokens[pattern].0;
        found
            .into_iter()
            .map(|(p, start, end)| (start, end, id(p)))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::Fragment::{Text, Token};
    use super::*;

    fn set(tokens: &[(u32, &str)]) -> SpecialSet {
        SpecialSet::new(tokens.iter().map(|(id, text)| (*id, (*text).to_owned()))).unwrap()
    }

    #[test]
    fn longest_wins_even_from_behind() {
        let set = set(&[(1, "abc"), (2, "bcde"), (3, "")]);
        assert_eq!(set.partition("abcde"), [Text("a"), Token(2)]);
        assert_eq!(
            set.partition("abcabcdeabc"),
            [Token(1), Text("a"), Token(2), Token(1)]
        );
    }

    #[test]
    fn ties_go_by_id_and_runs_from_the_left() {
        assert_eq!(
            set(&[(5, "bc"), (4, "ab")]).partition("abc"),
            [Token(4), Text("c")]
        );
        let runs = set(&[(1, "  "), (2, "   ")]);
        assert_eq!(
            runs.partition("x     y"),
            [Text("x"), Token(2), Token(1), Text("y")]
        );
    }

    /// Cuts a text at its special tokens by the plain rule, for comparison: the longest
    /// token takes its places first, the next one looks in the rest of the text.
    fn by_rule<'t>(set: &SpecialSet, text: &'t str) -> Vec<Fragment<'t>> {
        let mut fragments = vec![Text(text)];
        for (id, token) in &set.tokens {
            let mut next = Vec::new();
            for fragment in fragments {
                let Text(mut rest) = fragment else {
                    next.push(fragment);
                    continue;
                };
                while let Some((left, right)) = rest.split_once(token.as_str()) {
                    next.extend([Text(left), Token(*id)]);
                    rest = right;
                }
                next.push(Text(rest));
            }
            fragments = next;
        }
        fragments.retain(|f| *f != Text(""));
        fragments
    }

    proptest::proptest! {
        #[test]
        fn places_are_those_of_the_rule(
            tokens in proptest::collection::vec("[abé]{1,4}", 0..6),
            text in "[abcé]{0,40}",
        ) {
            let ids = (0..).zip(tokens.into_iter());
            let set = SpecialSet::new(ids).unwrap();
            proptest::prop_assert_eq!(set.partition(&text), by_rule(&set, &text));
        }
    }

    #[test]
    fn nothing_to_find() {
        assert_eq!(set(&[]).partition("abc"), [Text("abc")]);
        assert_eq!(set(&[(1, "x")]).partition("abc"), [Text("abc")]);
        assert_eq!(set(&[(1, "x")]).partition(""), []);
    }
}
