//! Rewrites a JSON schema's `pattern` as a regular expression over the text that the
//! model writes.
//!
//! The pattern is read by `regex-syntax`, in the meaning that JSON schema gives it: it
//! may match anywhere in the string, and `\d` and `\w` are ASCII only. The result has
//! only classes, literals and repetitions, over characters as they are or as JSON
//! escapes them between quotes.

use llguidance::regex_to_lark;
use regex_syntax::ast::parse::ParserBuilder as AstBuilder;
use regex_syntax::hir::translate::TranslatorBuilder;
use regex_syntax::hir::{Class, ClassUnicode, ClassUnicodeRange, Hir, HirKind, Look};
use std::fmt::Write as _;

/// The deepest nesting of groups and classes in a schema's pattern (a regular
/// expression).
const MOST_NESTED: u32 = 32;
/// The most alternatives that a schema's pattern (a regular expression) may have once
/// it is split by where `^` and `$` bind it to the ends of the text.
const MOST_BRANCHES: usize = 64;
/// The reason for refusing a pattern with `^` or `$` inside it.
const INSIDE: &str = "^ and $ can be decoded at the ends of the pattern only";

/// How a string's characters are written in the answer: as JSON or unescaped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Writing {
    /// The string is escaped as JSON; the quotes around it are not part of the
    /// expression.
    Json,
    /// The string is written unescaped, each character as itself.
    Plain,
}

impl Writing {
    /// Returns the regular expression of one character of any text. In JSON, control
    /// characters appear as their short escapes (`\n`) only.
    pub(super) fn any(self) -> &'static str {
        match self {
            Self::Json => r#"([^"\\\x00-\x1F]|\\["\\bfnrt])"#,
            Self::Plain => "(?s:.)",
        }
    }
}

/// Returns the regular expression that matches, from start to end, the texts in which a
/// schema's pattern matches anywhere. `most` bounds the pattern's steps with its
/// repetitions written out.
///
/// # Errors
/// What cannot be read or decoded, with the reason.
pub(super) fn expression(pattern: &str, writing: Writing, most: u64) -> Result<String, String> {
    let hir = read(pattern)?;
    let steps = steps(&hir);
    if steps > most {
        return Err(format!(
            "expected a pattern of at most {most} steps with its repetitions written out, found \
             {steps}"
        ));
    }
    let branches = branches_of(&hir)?;
    let any = writing.any();
    let mut texts = Vec::new();
    for branch in branches {
        let mut text = String::new();
        if !branch.starts {
            let _ = write!(text, "{any}*");
        }
        for part in &branch.parts {
            write(part, writing, &mut text)?;
        }
        if !branch.ends {
            let _ = write!(text, "{any}*");
        }
        texts.push(text);
    }
    Ok(format!("({})", texts.join("|")))
}

/// Returns the regular expression of the unescaped texts that a pattern matches from
/// their start to their end.
///
/// # Errors
/// As [`expression`].
pub(super) fn whole(pattern: &str, most: u64) -> Result<String, String> {
    expression(&format!("^(?:{pattern})$"), Writing::Plain, most)
}

fn read(pattern: &str) -> Result<Hir, String> {
    let pattern = regex_to_lark(pattern, "dw");
    let mut parser = AstBuilder::new();
    let parser = parser.nest_limit(MOST_NESTED);
    let ast = parser.build().parse(&pattern).map_err(|e| {
        let at = e.span().start.offset;
        format!("{} (at byte {at})", e.kind())
    })?;
    let mut translator = TranslatorBuilder::new();
    let hir = translator
        .utf8(true)
        .crlf(true)
        .build()
        .translate(&pattern, &ast);
    hir.map_err(|e| e.kind().to_string())
}

/// Counts the steps of a pattern (classes, anchors and bytes of literals) with its
/// repetitions written out.
fn steps(hir: &Hir) -> u64 {
    match hir.kind() {
        HirKind::Empty | HirKind::Look(_) => 1,
        HirKind::Literal(text) => text.0.len() as u64,
        HirKind::Class(_) => 1,
        HirKind::Capture(capture) => steps(&capture.sub),
        HirKind::Repetition(r) => {
            let times = u64::from(r.max.unwrap_or_else(|| r.min.saturating_add(1)));
            steps(&r.sub).saturating_mul(times.max(1))
        }
        HirKind::Concat(all) | HirKind::Alternation(all) => {
            all.iter().map(steps).fold(0, u64::saturating_add)
        }
    }
}

/// One alternative of a schema's pattern (a regular expression), with whether `^` and
/// `$` bind it to the ends of the text.
#[derive(Clone, Default)]
struct Branch<'h> {
    /// Whether this alternative of a pattern is bound to the start of the text by `^`.
    starts: bool,
    /// Whether this alternative of a pattern is bound to the end of the text by `$`.
    ends: bool,
    parts: Vec<&'h Hir>,
}

/// Splits a pattern into alternatives by how `^` and `$` bind them to the ends of the
/// text; the two may stand inside groups at either end.
fn branches_of(hir: &Hir) -> Result<Vec<Branch<'_>>, String> {
    let whole = |hir| {
        vec![Branch {
            parts: vec![hir],
            ..Branch::default()
        }]
    };
    if hir.properties().look_set().is_empty() {
        return Ok(whole(hir));
    }
    match hir.kind() {
        HirKind::Alternation(all) => {
            let mut branches = Vec::new();
            for one in all {
                branches.append(&mut branches_of(one)?);
            }
            Ok(branches)
        }
        HirKind::Capture(capture) => branches_of(&capture.sub),
        HirKind::Look(Look::Start) => Ok(vec![Branch {
            starts: true,
            ..Branch::default()
        }]),
        HirKind::Look(Look::End) => Ok(vec![Branch {
            ends: true,
            ..Branch::default()
        }]),
        HirKind::Concat(all) => {
            let mut branches = vec![Branch::default()];
            for part in all {
                branches = joined(&branches, &branches_of(part)?)?;
            }
            Ok(branches)
        }
        HirKind::Empty
        | HirKind::Literal(_)
        | HirKind::Class(_)
        | HirKind::Look(_)
        | HirKind::Repetition(_) => Ok(whole(hir)),
    }
}

/// Concatenates each alternative of one part of a pattern (a regular expression) with
/// each alternative of the part after it.
fn joined<'h>(before: &[Branch<'h>], after: &[Branch<'h>]) -> Result<Vec<Branch<'h>>, String> {
    if before.len().saturating_mul(after.len()) > MOST_BRANCHES {
        return Err(format!(
            "expected at most {MOST_BRANCHES} ways to be bound to the ends"
        ));
    }
    let mut all = Vec::new();
    for (a, b) in before
        .iter()
        .flat_map(|a| after.iter().map(move |b| (a, b)))
    {
        let inside = (a.ends && !b.parts.is_empty()) || (b.starts && !a.parts.is_empty());
        if inside {
            return Err(INSIDE.to_owned());
        }
        let mut parts = a.parts.clone();
        parts.extend(&b.parts);
        all.push(Branch {
            starts: a.starts || b.starts,
            ends: a.ends || b.ends,
            parts,
        });
    }
    Ok(all)
}

/// Writes a parsed pattern as a regular expression. Recurses as deep as the pattern is
/// nested, which [`MOST_NESTED`] bounds.
fn write(hir: &Hir, writing: Writing, out: &mut String) -> Result<(), String> {
    match hir.kind() {
        HirKind::Empty => {}
        HirKind::Literal(text) => {
            let text = std::str::from_utf8(&text.0).map_err(|_| "expected UTF-8".to_owned())?;
            text.chars().for_each(|c| letter(c, writing, out));
        }
        HirKind::Class(Class::Unicode(class)) => write_class(class, writing, out),
        HirKind::Class(Class::Bytes(class)) => {
            let class = class.to_unicode_class();
            let class = class.ok_or("expected UTF-8, found a class of bytes")?;
            write_class(&class, writing, out);
        }
        HirKind::Look(Look::Start | Look::End) => {
            return Err(INSIDE.to_owned());
        }
        HirKind::Look(_) => return Err("word boundaries cannot be decoded".to_owned()),
        HirKind::Capture(capture) => write(&capture.sub, writing, out)?,
        HirKind::Repetition(r) => {
            out.push('(');
            write(&r.sub, writing, out)?;
            out.push(')');
            let _ = match r.max {
                Some(max) => write!(out, "{{{},{max}}}", r.min),
                None => write!(out, "{{{},}}", r.min),
            };
        }
        HirKind::Concat(all) => {
            for part in all {
                write(part, writing, out)?;
            }
        }
        HirKind::Alternation(all) => {
            for (i, part) in all.iter().enumerate() {
                out.push(if i == 0 { '(' } else { '|' });
                write(part, writing, out)?;
            }
            out.push(')');
        }
    }
    Ok(())
}

/// Writes the regular expression of one character, escaped as JSON if the text is JSON.
pub(super) fn letter(c: char, writing: Writing, out: &mut String) {
    if writing == Writing::Json
        && let Some(escape) = escape(c)
    {
        for c in escape.chars() {
            plain(c, out);
        }
        return;
    }
    plain(c, out);
}

/// Writes a character as a regular expression that matches the character itself.
fn plain(c: char, out: &mut String) {
    match c.is_ascii_alphanumeric() {
        true => out.push(c),
        false => {
            let _ = write!(out, "\\x{{{:x}}}", u32::from(c));
        }
    }
}

/// Returns JSON's escape of a character that may not stand in a string as it is; `None`
/// for any other.
fn escape(c: char) -> Option<String> {
    Some(match c {
        '"' => "\\\"".to_owned(),
        '\\' => "\\\\".to_owned(),
        '\n' => "\\n".to_owned(),
        '\r' => "\\r".to_owned(),
        '\t' => "\\t".to_owned(),
        '\u{8}' => "\\b".to_owned(),
        '\u{c}' => "\\f".to_owned(),
        c if c < ' ' => format!("\\u{:04x}", u32::from(c)),
        _ => return None,
    })
}

fn write_class(class: &ClassUnicode, writing: Writing, out: &mut String) {
    let ranges = |class: &ClassUnicode, out: &mut String| {
        out.push('[');
        for range in class.ranges() {
            plain(range.start(), out);
            out.push('-');
            plain(range.end(), out);
        }
        out.push(']');
    };
    if class.ranges().is_empty() {
        // An empty class matches no character.
        out.push_str("[^\\x00-\\x{10FFFF}]");
        return;
    }
    if writing == Writing::Plain {
        ranges(class, out);
        return;
    }
    let range = ClassUnicodeRange::new;
    let special = [range('\0', '\u{1f}'), range('"', '"'), range('\\', '\\')];
    let special = ClassUnicode::new(special);
    let (mut free, mut escaped) = (class.clone(), class.clone());
    free.difference(&special);
    escaped.intersect(&special);
    out.push('(');
    let mut first = true;
    let mut bar = |out: &mut String| {
        if !std::mem::replace(&mut first, false) {
            out.push('|');
        }
    };
    if !free.ranges().is_empty() {
        bar(out);
        ranges(&free, out);
    }
    // Control characters without a short escape are written only if the class has
    // nothing else.
    let letters = |r: &ClassUnicodeRange| r.start()..=r.end();
    let named = |c: &char| *c >= ' ' || "\n\r\t\u{8}\u{c}".contains(*c);
    let some =
        !free.ranges().is_empty() || escaped.ranges().iter().flat_map(letters).any(|c| named(&c));
    for c in escaped.ranges().iter().flat_map(letters) {
        if named(&c) || !some {
            bar(out);
            letter(c, Writing::Json, out);
        }
    }
    out.push(')');
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(pattern: &str) -> String {
        expression(pattern, Writing::Plain, 10_000).unwrap()
    }

    fn refused(pattern: &str) -> String {
        expression(pattern, Writing::Json, 10_000).unwrap_err()
    }

    #[test]
    fn anchors_bind_the_ends() {
        assert_eq!(of("^ab$"), "(ab)");
        assert_eq!(of("a"), "((?s:.)*a(?s:.)*)");
        assert_eq!(of("^a|b$"), "(a(?s:.)*|(?s:.)*b)");
        assert_eq!(of("(^a|b)c"), "(ac(?s:.)*|(?s:.)*bc(?s:.)*)");
        assert_eq!(of("^(ab|cd)$|^x"), "((ab|cd)|x(?s:.)*)");
        assert_eq!(of("^(ab|cd)$"), "((ab|cd))");
        assert_eq!(of("^\\d{2,3}$"), "(([0-9]){2,3})");
    }

    #[test]
    fn quotes_and_controls_are_written_as_json_does() {
        let json = expression("^[\"a\n]/$", Writing::Json, 99).unwrap();
        assert_eq!(json, r"(([a-a]|\x{5c}n|\x{5c}\x{22})\x{2f})");
        let control = expression("^\u{1}$", Writing::Json, 99).unwrap();
        assert_eq!(control, r"(\x{5c}u0001)");
    }

    #[test]
    fn refusals_say_why() {
        assert_eq!(refused("^(hello$"), "unclosed group (at byte 1)");
        assert!(refused("(?!a)b").contains("look-around"));
        assert!(refused("a$b").contains("ends of the pattern only"));
        assert!(refused("\\bword").contains("word boundaries"));
        assert!(refused("^((a{100}){100}){100}$").contains("found 1000"));
        let nested = "(".repeat(100) + "a" + &")".repeat(100);
        assert!(refused(&nested).contains("nest"));
    }
}
