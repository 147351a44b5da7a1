//! Special tokens in a text: where they are, before the split rule sees it.

use aho_corasick::{AhoCorasick, MatchKind};

use crate::{Error, Result};

/// A part of a text.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Fragment<'t> {
    /// Text for the split rule.
    Text(&'t str),
    /// A special token's id.
    Token(u32),
}

/// A set of special tokens.
///
/// The longest token takes all its places first, then the next one in what is
/// left, as llama.cpp does: a long token beats a shorter one that starts
/// before it. Tokens of one length go by their id.
#[derive(Debug)]
pub(crate) struct SpecialSet {
    /// Id and text, the longest first.
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

    /// Cuts `text` at the special tokens in it.
    pub(crate) fn partition<'t>(&self, text: &'t str) -> Vec<Fragment<'t>> {
        let mut fragments = Vec::new();
        if !text.is_empty() {
            fragments.push(Fragment::Text(text));
        }
        for (id, token) in self.present(text) {
            let mut next = Vec::with_capacity(fragments.len() + 2);
            for fragment in fragments {
                match fragment {
                    Fragment::Text(text) => cut(text, id, token, &mut next),
                    token => next.push(token),
                }
            }
            fragments = next;
        }
        fragments
    }

    /// The tokens that occur in `text`, the longest first. One pass over the
    /// text instead of one for each of some thousand tokens.
    fn present(&self, text: &str) -> impl Iterator<Item = (u32, &str)> {
        let mut seen = vec![false; self.tokens.len()];
        for found in self
            .finder
            .iter()
            .flat_map(|finder| finder.find_overlapping_iter(text))
        {
            seen[found.pattern().as_usize()] = true;
        }
        let tokens = self.tokens.iter().zip(seen).filter(|(_, seen)| *seen);
        tokens.map(|((id, text), _)| (*id, text.as_str()))
    }
}

fn cut<'t>(text: &'t str, id: u32, token: &str, out: &mut Vec<Fragment<'t>>) {
    let mut rest = text;
    while let Some((left, right)) = rest.split_once(token) {
        if !left.is_empty() {
            out.push(Fragment::Text(left));
        }
        out.push(Fragment::Token(id));
        rest = right;
    }
    if !rest.is_empty() {
        out.push(Fragment::Text(rest));
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

    #[test]
    fn nothing_to_find() {
        assert_eq!(set(&[]).partition("abc"), [Text("abc")]);
        assert_eq!(set(&[(1, "x")]).partition("abc"), [Text("abc")]);
        assert_eq!(set(&[(1, "x")]).partition(""), []);
    }
}
