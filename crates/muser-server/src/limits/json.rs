//! A JSON text, walked once before it is parsed.
//!
//! The parser recurses and allocates by what the text says. This walk does
//! neither: a stack of bounded depth, one look at each byte. It is no parser:
//! where the text is no JSON it stops and leaves the refusal to the parser, which
//! stops at the same byte or before. Strings end where the parser's end, so the
//! two never disagree about what lies inside one.

use super::work::Work;
use crate::error::ApiError;
use serde_json::Value;
use std::ops::Range;

/// Bounds of a JSON body. Beyond one a request gets 400 with the place, the
/// bound and what was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JsonLimits {
    /// Objects and arrays within each other.
    pub depth: usize,
    /// Values and names together.
    pub nodes: usize,
    /// Bytes of a string, as written.
    pub string_bytes: usize,
    /// Bytes of a name, as written.
    pub name_bytes: usize,
    /// Characters of a number.
    pub number_bytes: usize,
    /// Messages of a conversation.
    pub messages: usize,
    /// Tools.
    pub tools: usize,
}

impl Default for JsonLimits {
    fn default() -> Self {
        Self {
            depth: 100,
            nodes: 1 << 20,
            string_bytes: 4 << 20,
            name_bytes: 1024,
            number_bytes: 128,
            messages: 4096,
            tools: 512,
        }
    }
}

/// Bytes of a parsed value, and with the room that a growing array has in
/// reserve.
const VALUE: u64 = 2 * size_of::<Value>() as u64;
/// Bytes of an array: the parser begins with room for four, and the allocator
/// has its own.
const ARRAY: u64 = 2 * VALUE + 32;
/// Bytes of an object: its table and its first entries.
const OBJECT: u64 = ARRAY + 192;
/// Bytes of an entry of an object, beside its value and the letters of its name.
const ENTRY: u64 = 128;
/// Bytes between two looks at the clock.
const STRIDE: usize = 64 << 10;
/// Bytes of a name shown in a refusal.
const SHOWN: usize = 64;

/// A container that the walk is in.
enum Open {
    Array {
        index: usize,
    },
    /// With the place of the name last read, and whether one comes next.
    Object {
        name: Range<usize>,
        name_next: bool,
    },
}

struct Walk<'t> {
    text: &'t [u8],
    limits: &'t JsonLimits,
    stack: Vec<Open>,
    nodes: usize,
    cost: u64,
}

/// Walks a body; how many bytes its values will take once they are parsed.
///
/// # Errors
/// A bound is passed; the request's time is up.
pub(crate) fn check(text: &[u8], limits: &JsonLimits, work: &Work) -> Result<u64, ApiError> {
    let mut walk = Walk {
        text,
        limits,
        stack: Vec::new(),
        nodes: 0,
        cost: 0,
    };
    let mut at = 0;
    let mut look = 0;
    while at < text.len() {
        if at >= look {
            work.check()?;
            look = at + STRIDE;
        }
        match walk.step(at)? {
            Some(next) => at = next,
            None => break,
        }
    }
    Ok(walk.cost)
}

impl Walk<'_> {
    /// Reads what begins at this byte; where the next begins, or `None` where
    /// the text is no JSON.
    fn step(&mut self, at: usize) -> Result<Option<usize>, ApiError> {
        match self.text[at] {
            b' ' | b'\t' | b'\r' | b'\n' => {}
            b'"' => return self.string(at),
            b'[' => {
                self.node(ARRAY)?;
                self.open(Open::Array { index: 0 })?;
            }
            b'{' => {
                self.node(OBJECT)?;
                self.open(Open::Object {
                    name: 0..0,
                    name_next: true,
                })?;
            }
            b']' | b'}' => {
                if self.stack.pop().is_none() {
                    return Ok(None);
                }
            }
            b',' => return self.comma().map(|()| Some(at + 1)),
            b':' => match self.stack.last_mut() {
                Some(Open::Object { name_next, .. }) => *name_next = false,
                Some(Open::Array { .. }) | None => return Ok(None),
            },
            _ => return self.literal(at),
        }
        Ok(Some(at + 1))
    }

    fn comma(&mut self) -> Result<(), ApiError> {
        let depth = self.stack.len();
        let count = match self.stack.last_mut() {
            Some(Open::Array { index }) => {
                *index += 1;
                *index + 1
            }
            Some(Open::Object { name_next, .. }) => {
                *name_next = true;
                return Ok(());
            }
            None => return Ok(()),
        };
        let Some(Open::Object { name, .. }) = self.stack.first().filter(|_| depth == 2) else {
            return Ok(());
        };
        let (what, most) = match &self.text[name.clone()] {
            b"messages" => ("messages", self.limits.messages),
            b"tools" => ("tools", self.limits.tools),
            _ => return Ok(()),
        };
        if count > most {
            let reason = format!("expected at most {most} {what}, found {count} or more");
            return Err(ApiError::field(what, reason).code(CODE));
        }
        Ok(())
    }

    fn open(&mut self, open: Open) -> Result<(), ApiError> {
        if self.stack.len() >= self.limits.depth {
            let (most, found) = (self.limits.depth, self.stack.len() + 1);
            return Err(self.over("levels of nesting", most, found));
        }
        self.stack.push(open);
        Ok(())
    }

    /// Counts a value or a name.
    fn node(&mut self, cost: u64) -> Result<(), ApiError> {
        self.nodes += 1;
        self.cost = self.cost.saturating_add(cost + VALUE);
        if self.nodes > self.limits.nodes {
            return Err(self.over("values in the request", self.limits.nodes, self.nodes));
        }
        Ok(())
    }

    fn string(&mut self, at: usize) -> Result<Option<usize>, ApiError> {
        let mut end = at + 1;
        loop {
            match self.text.get(end) {
                None => break,
                Some(b'"') => break,
                Some(b'\\') => end += 2,
                Some(_) => end += 1,
            }
        }
        // A string that does not end is as long as what there is of it.
        let end = end.min(self.text.len());
        let length = end - at - 1;
        let is_name = match self.stack.last_mut() {
            Some(Open::Object { name, name_next }) if *name_next => {
                *name = at + 1..end;
                true
            }
            Some(Open::Object { .. } | Open::Array { .. }) | None => false,
        };
        let (what, most) = match is_name {
            true => ("bytes of a name", self.limits.name_bytes),
            false => ("bytes of a string", self.limits.string_bytes),
        };
        if length > most {
            return Err(self.over(what, most, length));
        }
        let entry = if is_name { ENTRY } else { 0 };
        self.node(entry + length as u64 + 16)?;
        Ok((end < self.text.len()).then_some(end + 1))
    }

    /// A number, or one of the three words.
    fn literal(&mut self, at: usize) -> Result<Option<usize>, ApiError> {
        let ends = |b: &u8| {
            matches!(
                b,
                b',' | b':' | b']' | b'}' | b'[' | b'{' | b'"' | b' ' | b'\t' | b'\r' | b'\n'
            )
        };
        let length = self.text[at..].iter().position(ends);
        let length = length.unwrap_or(self.text.len() - at);
        if length > self.limits.number_bytes {
            return Err(self.over("characters of a number", self.limits.number_bytes, length));
        }
        self.node(0)?;
        Ok(Some(at + length))
    }

    fn over(&self, what: &str, most: usize, found: usize) -> ApiError {
        let reason = format!("expected at most {most} {what}, found {found}");
        let place = self.place();
        match place.as_str() {
            "" => ApiError::invalid(format!("the body: {reason}")),
            _ => ApiError::field(place, reason),
        }
        .code(CODE)
    }

    /// Where the walk is, such as `messages[3].content`; the beginning of it
    /// where it is long.
    fn place(&self) -> String {
        let mut place = String::new();
        for open in &self.stack {
            if place.len() > 4 * SHOWN {
                place.push('…');
                break;
            }
            match open {
                Open::Array { index } => place += &format!("[{index}]"),
                Open::Object { name, .. } if name.is_empty() => {}
                Open::Object { name, .. } => {
                    let shown = &self.text[name.clone()];
                    let cut = &shown[..shown.len().min(SHOWN)];
                    if !place.is_empty() {
                        place.push('.');
                    }
                    place += &String::from_utf8_lossy(cut);
                    if cut.len() < shown.len() {
                        place.push('…');
                    }
                }
            }
        }
        place
    }
}

/// The code of a refusal by a bound.
pub(crate) const CODE: &str = "limit_exceeded";

#[cfg(test)]
mod tests {
    use super::*;

    fn walk(text: &str, limits: &JsonLimits) -> Result<u64, ApiError> {
        check(text.as_bytes(), limits, &Work::unbounded())
    }

    fn small() -> JsonLimits {
        JsonLimits {
            depth: 4,
            nodes: 12,
            string_bytes: 8,
            name_bytes: 8,
            number_bytes: 6,
            messages: 2,
            tools: 1,
        }
    }

    #[test]
    fn each_bound_is_named_with_its_place_and_what_was_found() {
        for (text, param, message) in [
            (
                r#"{"a":[[[[1]]]]}"#,
                Some("a[0][0][0]"),
                "a[0][0][0]: expected at most 4 levels of nesting, found 5",
            ),
            (
                "[[[[[",
                Some("[0][0][0][0]"),
                "[0][0][0][0]: expected at most 4 levels of nesting, found 5",
            ),
            (
                r#"{"a":[1,2,3,4,5,6,7,8,9,10]}"#,
                Some("a[9]"),
                "a[9]: expected at most 12 values in the request, found 13",
            ),
            (
                r#"{"a":{"b":"123456789"}}"#,
                Some("a.b"),
                "a.b: expected at most 8 bytes of a string, found 9",
            ),
            (
                r#"{"a":1,"123456789":1}"#,
                Some("123456789"),
                "123456789: expected at most 8 bytes of a name, found 9",
            ),
            (
                r#"{"a":1234567}"#,
                Some("a"),
                "a: expected at most 6 characters of a number, found 7",
            ),
            (
                r#"{"messages":[1,2,3]}"#,
                Some("messages"),
                "messages: expected at most 2 messages, found 3 or more",
            ),
            (
                r#"{"tools":[{},{}]}"#,
                Some("tools"),
                "tools: expected at most 1 tools, found 2 or more",
            ),
            (
                r#""unended string"#,
                None,
                "the body: expected at most 8 bytes of a string, found 14",
            ),
        ] {
            let error = walk(text, &small()).unwrap_err();
            assert_eq!(error.message, message, "{text}");
            assert_eq!(error.param.as_deref(), param, "{text}");
            assert_eq!(error.code, Some("limit_exceeded"));
        }
    }

    #[test]
    fn what_is_within_the_bounds_passes() {
        for text in [
            r#"{"a":[[[1]]]}"#,
            r#"{"a\"]}":"\\\"[[[" }"#,
            r#"{"x":{"messages":[1,2,3]}}"#,
            "",
            "]",
            "{,:",
            "nul",
            "\"\\",
        ] {
            walk(text, &small()).unwrap();
        }
    }

    /// The guess is about memory: it may not be below what the parser takes.
    #[test]
    fn the_cost_is_at_least_the_size_of_the_values() {
        let cost = |text: &str| walk(text, &JsonLimits::default()).unwrap();
        let value = size_of::<Value>() as u64;
        assert!(cost("[1,1,1,1]") >= 5 * value);
        // An array of one has room for four.
        assert!(cost("[[1],[1]]") >= 4 * value + 2 * 4 * value);
        assert!(cost(r#"{"name":"value"}"#) >= 2 * value + 104);
    }
}
