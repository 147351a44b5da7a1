//! Reads the markup of calls while the model writes it.
//!
//! The value of a parameter that takes strings only is the text up to the mark
//! that ends it, whatever it looks like, and is passed on as it comes. Any other
//! value is read as JSON to its own end, so it may hold the mark in a string. What
//! is no JSON is a string as it stands; so is a value of a type that the
//! parameter does not take, if it takes strings.

use super::{INVOKE, INVOKE_END, NAME_END, PARAMETER, PARAMETER_END};
use crate::chat::{CallDelta, Delta, Parameters, Types};
use serde_json::Value;

/// The place in the markup that the next text belongs to.
#[derive(Clone, Debug)]
enum Place {
    /// Before a call or after one.
    Outside,
    /// In a call, between parameters.
    Call,
    /// In a value that is text. `begun`: its key was passed on.
    Text { key: String, begun: bool },
    /// In a value that may be JSON.
    Json {
        key: String,
        types: Types,
        scan: Scan,
    },
}

/// Reads the calls of one answer.
#[derive(Clone, Debug)]
pub(super) struct CallReader {
    parameters: Parameters,
    /// Text that is not read yet.
    held: String,
    /// Bytes of it in which no call begins.
    searched: usize,
    place: Place,
    /// The tool of the open call.
    tool: String,
    /// The number of arguments of the open call.
    arguments: usize,
    /// The number of calls begun.
    count: usize,
}

impl CallReader {
    /// A reader before the first call. `parameters` has the types of the
    /// parameters of known tools.
    pub(super) fn new(parameters: Parameters) -> Self {
        Self {
            parameters,
            held: String::new(),
            searched: 0,
            place: Place::Outside,
            tool: String::new(),
            arguments: 0,
            count: 0,
        }
    }

    /// The number of calls begun so far.
    pub(super) fn count(&self) -> usize {
        self.count
    }

    /// Reads more text.
    pub(super) fn push(&mut self, text: &str, out: &mut Delta) {
        self.held.push_str(text);
        while self.step(out) {}
    }

    /// Reads one more piece of markup if it is complete; returns whether it was.
    fn step(&mut self, out: &mut Delta) -> bool {
        match &mut self.place {
            Place::Outside => self.begin(out),
            Place::Call => self.parameter(out),
            Place::Text { .. } => self.text(out),
            Place::Json { scan, .. } => match scan.read(&self.held) {
                Scanned::Open => false,
                Scanned::Value(end) => self.argument(Some(end), out),
                Scanned::Other => self.argument(None, out),
            },
        }
    }

    /// Looks for the beginning of a call.
    fn begin(&mut self, out: &mut Delta) -> bool {
        let Some((name, end)) = opening(&self.held, INVOKE, self.searched) else {
            let from = self.held.get(self.searched..).unwrap_or_default();
            self.searched = match from.find(INVOKE) {
                Some(at) => self.searched + at,
                None => tail(&self.held, INVOKE),
            };
            return false;
        };
        let name = name.to_owned();
        out.calls.push(CallDelta {
            index: self.count,
            name: Some(name.clone()),
            arguments: "{".to_owned(),
        });
        self.count += 1;
        (self.tool, self.arguments) = (name, 0);
        self.place = Place::Call;
        self.drop(end);
        true
    }

    /// Looks for the next parameter, or the end of the call.
    fn parameter(&mut self, out: &mut Delta) -> bool {
        let end = self.held.find(INVOKE_END);
        let begin = self.held.find(PARAMETER);
        match (begin, end) {
            (Some(begin), end) if end.is_none_or(|end| begin < end) => {
                let Some((key, after)) = opening(&self.held, PARAMETER, begin) else {
                    return false;
                };
                let key = key.to_owned();
                let declared = self.parameters.get(&self.tool);
                let types = declared.and_then(|p| p.get(&key)).copied();
                self.place = match types {
                    Some(Types::STRING) => Place::Text { key, begun: false },
                    other => Place::Json {
                        key,
                        types: other.unwrap_or(Types::ALL),
                        scan: Scan::default(),
                    },
                };
                self.drop(after);
                true
            }
            (_, Some(end)) => {
                self.emit("}", out);
                self.place = Place::Outside;
                self.drop(end + INVOKE_END.len());
                true
            }
            (_, None) => false,
        }
    }

    /// Passes on the part of a text that cannot belong to the mark that ends it.
    fn text(&mut self, out: &mut Delta) -> bool {
        let end = self.held.find(PARAMETER_END);
        let certain = end.unwrap_or_else(|| tail(&self.held, PARAMETER_END));
        let piece = escaped(&self.held[..certain]);
        self.begin_text(&piece, out);
        match end {
            Some(end) => {
                self.emit("\"", out);
                self.place = Place::Call;
                self.drop(end + PARAMETER_END.len());
                true
            }
            None => {
                self.drop(certain);
                false
            }
        }
    }

    /// Passes on a piece of a string; before the first piece, its key.
    fn begin_text(&mut self, piece: &str, out: &mut Delta) {
        let Place::Text { key, begun } = &mut self.place else {
            return;
        };
        let start = match std::mem::replace(begun, true) {
            true => String::new(),
            false => {
                let comma = if self.arguments > 0 { "," } else { "" };
                self.arguments += 1;
                format!("{comma}{}:\"", Value::from(key.as_str()))
            }
        };
        if !(start.is_empty() && piece.is_empty()) {
            self.emit(&(start + piece), out);
        }
    }

    /// Passes on a value that ends at byte `end`; with `None`, one that is no
    /// JSON and ends at the mark.
    fn argument(&mut self, end: Option<usize>, out: &mut Delta) -> bool {
        let Some(end) = end.or_else(|| self.held.find(PARAMETER_END)) else {
            return false;
        };
        let (text, rest) = self.held.split_at(end);
        let Some(mark) = rest.find(PARAMETER_END) else {
            return false;
        };
        let (text, after) = (text.to_owned(), end + mark + PARAMETER_END.len());
        self.value(&text, out);
        self.place = Place::Call;
        self.drop(after);
        true
    }

    /// Passes on a whole value with its key.
    fn value(&mut self, text: &str, out: &mut Delta) {
        let Place::Json { key, types, .. } = &self.place else {
            return;
        };
        let parsed = serde_json::from_str::<Value>(text).ok();
        let fits = |v: &Value| types.has(Types::of(v)) || !types.has(Types::STRING);
        let value = match parsed.filter(fits) {
            // The text as it stands: a parsed number could lose digits.
            Some(_) => text.trim().to_owned(),
            None => Value::from(text).to_string(),
        };
        let comma = if self.arguments > 0 { "," } else { "" };
        let argument = format!("{comma}{}:{value}", Value::from(key.as_str()));
        self.arguments += 1;
        self.emit(&argument, out);
    }

    /// Drops text that was read.
    fn drop(&mut self, bytes: usize) {
        self.held.drain(..bytes);
        self.searched = 0;
    }

    /// Passes on a piece of the arguments of the open call.
    fn emit(&self, arguments: &str, out: &mut Delta) {
        out.calls.push(CallDelta {
            index: self.count.saturating_sub(1),
            name: None,
            arguments: arguments.to_owned(),
        });
    }

    /// Ends the message. An open call is closed, so that its arguments are JSON;
    /// if the answer was `cut` off, the call stays open. Text that is no call is
    /// content.
    pub(super) fn finish(&mut self, cut: bool, out: &mut Delta) {
        // JSON that never closed is a string. It ends at its mark, if that has
        // come, and after the mark another parameter or call may be open too.
        while !cut && matches!(self.place, Place::Json { .. }) {
            let end = self.held.find(PARAMETER_END).unwrap_or(self.held.len());
            let text = self.held[..end].to_owned();
            self.value(&text, out);
            self.place = Place::Call;
            self.drop(end);
            while self.step(out) {}
        }
        let held = std::mem::take(&mut self.held);
        match &self.place {
            Place::Outside => {
                let markup = cut && held.trim_start().starts_with('<');
                if self.count == 0 && !markup {
                    out.content.push_str(&held);
                }
            }
            Place::Call => {}
            Place::Text { .. } => {
                // The beginning of a mark is not passed on.
                let end = if cut {
                    tail(&held, PARAMETER_END)
                } else {
                    held.len()
                };
                let piece = escaped(&held[..end]) + if cut { "" } else { "\"" };
                self.begin_text(&piece, out);
            }
            Place::Json { key, types, .. } if cut => {
                let comma = if self.arguments > 0 { "," } else { "" };
                let held = &held[..tail(&held, PARAMETER_END)];
                let json = held.trim_start();
                let quoted = types.has(Types::STRING) && !json.starts_with(['"', '{', '[']);
                let value = match quoted && !json.is_empty() {
                    true => format!("\"{}", escaped(held)),
                    false => json.to_owned(),
                };
                if !value.is_empty() {
                    self.emit(
                        &format!("{comma}{}:{value}", Value::from(key.as_str())),
                        out,
                    );
                }
            }
            // Closed above.
            Place::Json { .. } => {}
        }
        if !matches!(self.place, Place::Outside) && !cut {
            self.emit("}", out);
        }
        self.place = Place::Outside;
        self.searched = 0;
    }
}

/// Finds the end of a JSON value by its brackets and quotes.
#[derive(Clone, Debug, Default)]
struct Scan {
    /// Bytes looked at.
    at: usize,
    /// Brackets that are open.
    depth: usize,
    /// Whether the next byte is in a string.
    string: bool,
    /// Whether a backslash stands before it.
    escape: bool,
    /// Whether it is in a number or a name.
    scalar: bool,
    /// Where the value ends.
    end: Option<usize>,
}

/// What is known of a value.
enum Scanned {
    /// Nothing yet.
    Open,
    /// It is JSON that ends at this byte, and the mark follows.
    Value(usize),
    /// It is no JSON.
    Other,
}

impl Scan {
    /// Goes on over the text that was added.
    fn read(&mut self, held: &str) -> Scanned {
        let bytes = held.as_bytes();
        while self.end.is_none() {
            let Some(&byte) = bytes.get(self.at) else {
                return Scanned::Open;
            };
            self.byte(byte);
        }
        let rest = held[self.end.unwrap_or(0)..].trim_start();
        if rest.starts_with(PARAMETER_END) {
            return Scanned::Value(self.end.unwrap_or(0));
        }
        match PARAMETER_END.starts_with(rest) {
            true => Scanned::Open,
            false => Scanned::Other,
        }
    }

    fn byte(&mut self, byte: u8) {
        let at = self.at;
        self.at += 1;
        if self.string {
            match byte {
                _ if self.escape => self.escape = false,
                b'\\' => self.escape = true,
                b'"' => {
                    self.string = false;
                    self.end = (self.depth == 0).then_some(self.at);
                }
                _ => {}
            }
            return;
        }
        if self.scalar {
            if !(byte.is_ascii_alphanumeric() || b"+-.".contains(&byte)) {
                self.end = Some(at);
            }
            return;
        }
        match byte {
            b'"' => self.string = true,
            b'{' | b'[' => self.depth += 1,
            b'}' | b']' if self.depth > 0 => {
                self.depth -= 1;
                self.end = (self.depth == 0).then_some(self.at);
            }
            b' ' | b'\n' | b'\r' | b'\t' => {}
            _ if self.depth > 0 => {}
            _ if byte.is_ascii_alphanumeric() || byte == b'-' => self.scalar = true,
            _ => self.end = Some(at),
        }
    }
}

/// Writes a text as JSON does between quotes.
fn escaped(text: &str) -> String {
    let quoted = Value::from(text).to_string();
    quoted[1..quoted.len() - 1].to_owned()
}

/// Returns where the beginning of `mark` stands at the end of the text; the
/// text's length if it does not.
fn tail(text: &str, mark: &str) -> usize {
    let at = text.len().saturating_sub(mark.len() - 1);
    let starts = (at..text.len()).filter(|&at| text.is_char_boundary(at));
    let mut open = starts.filter(|&at| mark.starts_with(&text[at..]));
    open.next().unwrap_or(text.len())
}

/// Finds the first complete `prefix NAME">` from byte `from` on. Returns the
/// name, and where the markup ends.
fn opening<'t>(text: &'t str, prefix: &str, from: usize) -> Option<(&'t str, usize)> {
    let start = from + text.get(from..)?.find(prefix)? + prefix.len();
    let length = text[start..].find(NAME_END)?;
    let name = &text[start..start + length];
    Some((name, start + length + NAME_END.len()))
}
