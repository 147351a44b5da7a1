//! Blanks the comments and literals in Rust source text, so that `tidy`'s rules can
//! look at code only.

/// Returns Rust source text with its comments, strings and characters replaced by
/// spaces; line breaks stay. An ambiguous quote, such as a lifetime's, stays as code.
pub(super) fn blank(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        let length = match c {
            '/' if rest.starts_with("//") => rest.find('\n').unwrap_or(rest.len()),
            '/' if rest.starts_with("/*") => block_comment(rest),
            '"' => string(rest),
            'r' if !continues_a_word(&out) => raw_string(rest).unwrap_or(0),
            '\'' => character(rest).unwrap_or(0),
            _ => 0,
        };
        if length == 0 {
            out.push(c);
            rest = &rest[c.len_utf8()..];
            continue;
        }
        let (gone, kept) = rest.split_at(length);
        out.extend(gone.chars().map(|c| if c == '\n' { c } else { ' ' }));
        rest = kept;
    }
    out
}

fn continues_a_word(before: &str) -> bool {
    // `br"…"` is a raw string too.
    let before = before.strip_suffix('b').unwrap_or(before);
    before.ends_with(|c: char| c.is_alphanumeric() || c == '_')
}

/// Returns the length in bytes of the block comment at the start of Rust source text,
/// nested ones included.
fn block_comment(text: &str) -> usize {
    let (mut depth, mut at) = (0, 0);
    while at < text.len() {
        let rest = &text[at..];
        if rest.starts_with("/*") {
            depth += 1;
            at += 2;
        } else if rest.starts_with("*/") {
            depth -= 1;
            at += 2;
            if depth == 0 {
                return at;
            }
        } else {
            at += rest.chars().next().map_or(1, char::len_utf8);
        }
    }
    text.len()
}

/// Returns the length in bytes of the string literal at the start of Rust source text,
/// its quotes included.
fn string(text: &str) -> usize {
    let mut escaped = false;
    for (i, c) in text.char_indices().skip(1) {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '"' => return i + 1,
            _ => {}
        }
    }
    text.len()
}

/// Returns the length in bytes of the raw string literal at the start of Rust source
/// text, if there is one.
fn raw_string(text: &str) -> Option<usize> {
    let body = text.strip_prefix('r')?;
    let quoted = body.trim_start_matches('#');
    let hashes = body.len() - quoted.len();
    let inner = quoted.strip_prefix('"')?;
    let end = format!("\"{}", "#".repeat(hashes));
    let length = inner.find(&end).map_or(inner.len(), |i| i + end.len());
    Some(1 + hashes + 1 + length)
}

/// Returns the length in bytes of the character literal at the start of Rust source
/// text; `None` for a lifetime.
fn character(text: &str) -> Option<usize> {
    let mut chars = text.char_indices().skip(1);
    let (_, first) = chars.next()?;
    if first == '\\' {
        chars.next()?;
        return chars.find(|(_, c)| *c == '\'').map(|(i, _)| i + 1);
    }
    chars.next().filter(|(_, c)| *c == '\'').map(|(i, _)| i + 1)
}

/// Returns the numbers, from 1, of the lines of a text that contain a word, not as a
/// part of a longer word.
pub(super) fn lines_with_word<'a>(
    text: &'a str,
    word: &'a str,
) -> impl Iterator<Item = usize> + 'a {
    let of_word = |c: char| c.is_alphanumeric() || c == '_';
    text.lines().enumerate().filter_map(move |(i, line)| {
        let found = line.match_indices(word).any(|(at, _)| {
            !line[..at].ends_with(of_word) && !line[at + word.len()..].starts_with(of_word)
        });
        found.then_some(i + 1)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_and_literals_go_and_lines_stay() {
        let text = "a // x\nb /* x /* x */ x\n*/ c \"x \\\" x\" d r#\"x \" x\"# e 'x' f '\\'' g";
        let code = blank(text);
        assert_eq!(code.lines().count(), text.lines().count());
        assert_eq!(code.len(), text.len());
        let words: Vec<&str> = code.split_whitespace().collect();
        assert_eq!(words, ["a", "b", "c", "d", "e", "f", "g"]);
    }

    #[test]
    fn lifetimes_and_words_ending_in_r_are_code() {
        for text in ["fn f<'a>(x: &'a str)", "for_r\u{23}tag", "'static + b"] {
            assert_eq!(blank(text), text);
        }
        assert_eq!(blank("br\"x\" y").trim_end(), "b     y");
    }

    #[test]
    fn what_never_ends_ends_with_the_text() {
        for text in ["\"x", "/* x", "r#\"x\"", "'\\"] {
            assert_eq!(blank(text).len(), text.len());
        }
    }

    #[test]
    fn words_are_whole() {
        let text = "unsafe_code\nunsafe {\nan unsafe\nmakeunsafe";
        assert_eq!(lines_with_word(text, "unsafe").collect::<Vec<_>>(), [2, 3]);
    }
}
