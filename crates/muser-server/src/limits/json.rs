//! Checks a JSON body against limits in one walk before it is parsed.
//!
//! The parser recurses and allocates as the text demands. This walk does not: its stack
//! is bounded, and it looks at each byte once. It does not validate: where the text is
//! no JSON it stops, and the parser, which stops at the same byte or before, refuses
//! the text. Both end strings at the same byte, so they never disagree about what is
//! inside one.

use super::work::Work;
use crate::error::ApiError;
use serde_json::Value;
use std::ops::Range;

/// Limits of a request's JSON body. A request beyond one of them gets status 400 with
/// the place, the limit and what was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JsonLimits {
    /// The deepest nesting of objects and arrays in a request's JSON body.
    pub depth: usize,
    /// The most values and member names, counted together, in a request's JSON body.
    pub nodes: usize,
    /// The most bytes of one string in a request's JSON body, escapes as written.
    pub string_bytes: usize,
    /// The most bytes of one member name in a request's JSON body, escapes as written.
    pub name_bytes: usize,
    /// The most characters of one number in a request's JSON body.
    pub number_bytes: usize,
    /// The most messages of a chat request.
    pub messages: usize,
    /// The most tools of a chat request.
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

/// Bytes counted for one parsed JSON value: twice its size, since a growing array
/// reserves room.
const VALUE: u64 = 2 * size_of::<Value>() as u64;
/// Bytes counted for a parsed JSON array beside its values: the parser reserves room
/// for four at first, and the allocator needs some.
const ARRAY: u64 = 2 * VALUE + 32;
/// Bytes counted for a parsed JSON object beside its members: its table, with room for
/// the first ones.
const OBJECT: u64 = ARRAY + 192;
/// Bytes counted for a member of a parsed JSON object, beside its value and the bytes
/// of its name.
const ENTRY: u64 = 128;
/// Bytes of a JSON body between two checks of the request's deadline.
const STRIDE: usize = 64 << 10;
/// The most bytes of a member name that an error message shows.
const SHOWN: usize = 64;

/// An array or object that the walk over a JSON body is inside of.
enum Open {
    Array {
        index: usize,
    },
    /// A JSON object, with the range of the member name last read, and whether the next
    /// string is a name.
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

/// Checks a request's JSON body against its limits; returns an upper estimate of the
/// bytes that its values will take once parsed.
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
    /// Checks the JSON token that begins at this byte; returns where the next one
    /// begins, or `None` if the text is no JSON.
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

    /// Counts one value or member name of the JSON body, and the memory that it will
    /// take.
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
        // A string without a closing quote ends with the text.
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

    /// Checks a JSON number, or `true`, `false` or `null`, against the limits of a
    /// request's body.
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

    /// Returns the path in the JSON body that the walk has reached, such as
    /// `messages[3].content`, cut short if it is long.
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

/// The error code of a request that exceeds one of the limits of JSON bodies.
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

    /// Checks that the estimate of a parsed body's memory, which is held to a limit, is
    /// not below what the parsed values take.
    #[test]
    fn the_cost_is_at_least_the_size_of_the_values() {
        let cost = |text: &str| walk(text, &JsonLimits::default()).unwrap();
        let value = size_of::<Value>() as u64;
        assert!(cost("[1,1,1,1]") >= 5 * value);
        // An array with one value has room for four.
        assert!(cost("[[1],[1]]") >= 4 * value + 2 * 4 * value);
        assert!(cost(r#"{"name":"value"}"#) >= 2 * value + 104);
    }
}
