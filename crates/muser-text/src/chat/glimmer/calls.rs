//! Reads tool calls in ATEM markup (Muse Glimmer's) while the model writes them.
//!
//! The value of a parameter that takes strings only is the text up to the mark that
//! ends a value, whatever the text looks like, and is passed on as it comes. Any other
//! value is read as JSON to its own end, so it may hold that mark in a string. What is
//! no JSON is a string as it stands; so is a value of a type that the parameter does
//! not take, if it takes strings.

use super::{INVOKE, INVOKE_END, NAME_END, PARAMETER, PARAMETER_END};
use crate::chat::{CallDelta, Delta, Parameters, Types};
use serde_json::Value;

/// Where in the markup of tool calls the next text of the model's answer belongs:
/// outside the calls, in a call, or in a parameter's value.
#[derive(Clone, Debug)]
enum Place {
    /// The next text is outside the tool calls: before the first, between two, or after
    /// the last.
    Outside,
    /// The next text is inside a tool call, but outside its parameters.
    Call,
    /// The next text is inside a tool parameter's value that is text up to its closing
    /// mark. `begun`: whether the parameter's name was passed on.
    Text { key: String, begun: bool },
    /// The next text is inside a tool parameter's value that may be JSON.
    Json {
        key: String,
        types: Types,
        scan: Scan,
    },
}

/// Reads the tool calls of one answer from their markup, and passes on their arguments
/// as JSON.
#[derive(Clone, Debug)]
pub(super) struct CallReader {
    parameters: Parameters,
    /// The text of the tool calls' markup that came, but is not read yet.
    held: String,
    /// Number of bytes at the start of `held` (the unread text) in which no tool call
    /// begins.
    searched: usize,
    place: Place,
    /// The name of the tool in the tool call that is being read.
    tool: String,
    /// The number of arguments read so far of the tool call that is being read.
    arguments: usize,
    /// The number of tool calls begun in the answer.
    count: usize,
}

impl CallReader {
    /// Makes a reader of an answer's tool calls, which stands before the first one.
    /// `parameters` has the types that the parameters of known tools take.
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

    /// Returns the number of tool calls begun in the answer so far.
    pub(super) fn count(&self) -> usize {
        self.count
    }

    /// Reads more text of the tool calls' markup, and adds to `out` the parts of calls
    /// that no later text can change.
    pub(super) fn push(&mut self, text: &str, out: &mut Delta) {
        self.held.push_str(text);
        while self.step(out) {}
    }

    /// Reads the next piece of the tool calls' markup if all of it has come; returns
    /// whether it has.
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

    /// Finds the beginning of a tool call in the unread text and reads it; returns
    /// whether it has come as a whole.
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

    /// Reads the beginning of the next parameter of a tool call, or the end of the
    /// call; returns whether it has come as a whole.
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

    /// Passes on what has come of a string parameter's value, and holds back an end
    /// that may be the beginning of the value's closing mark. Returns whether the value
    /// is complete.
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

    /// Passes on a piece of a string parameter's value; before the first piece, the
    /// parameter's name.
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

    /// Passes on the value of a tool call's parameter: JSON that ends at byte `end`,
    /// or, with `None`, a value that is no JSON and ends at its closing mark. Returns
    /// whether the mark has come.
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

    /// Passes on a parameter's whole value with its name, as JSON; text that is no JSON
    /// of the parameter's types becomes a string.
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

    /// Drops the first `bytes` bytes of the unread text of the tool calls' markup,
    /// which have been read.
    fn drop(&mut self, bytes: usize) {
        self.held.drain(..bytes);
        self.searched = 0;
    }

    /// Passes on a piece of the arguments of the tool call that is being read.
    fn emit(&self, arguments: &str, out: &mut Delta) {
        out.calls.push(CallDelta {
            index: self.count.saturating_sub(1),
            name: None,
            arguments: arguments.to_owned(),
        });
    }

    /// Ends the message with tool calls. An open call is closed, so that its arguments
    /// are JSON; if the answer was `cut` off, the call stays open. Text without any
    /// call is content.
    pub(super) fn finish(&mut self, cut: bool, out: &mut Delta) {
        // A value whose JSON never closed is a string. It ends at its closing mark, if
        // that has come, and after the mark another parameter or call may be open too.
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
                // What may be the beginning of the closing mark is not passed on.
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
            // Such a value was closed by the loop above.
            Place::Json { .. } => {}
        }
        if !matches!(self.place, Place::Outside) && !cut {
            self.emit("}", out);
        }
        self.place = Place::Outside;
        self.searched = 0;
    }
}

/// Finds where a JSON value ends by its brackets and quotes, in text that comes in
/// pieces.
#[derive(Clone, Debug, Default)]
struct Scan {
    /// Number of bytes of the JSON text looked at so far.
    at: usize,
    /// Number of brackets that are open in the JSON text so far.
    depth: usize,
    /// Whether the next byte of the JSON text is inside a string.
    string: bool,
    /// Whether the byte before the next one is a backslash that escapes it, in a JSON
    /// string.
    escape: bool,
    /// Whether the next byte of the JSON text is inside a number or a name such as
    /// `true`.
    scalar: bool,
    /// The byte at which the JSON value ends, once it was found.
    end: Option<usize>,
}

/// What a scan has found out so far about the value of a tool call's parameter: whether
/// it is JSON, and where it ends.
enum Scanned {
    /// Not enough text has come to say whether the parameter's value is JSON.
    Open,
    /// The parameter's value is JSON that ends at this byte, and its closing mark
    /// follows.
    Value(usize),
    /// The parameter's value is no JSON.
    Other,
}

impl Scan {
    /// Continues the scan of a parameter's value over the text that was added; returns
    /// whether the value is JSON.
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

/// Returns a text escaped as in a JSON string, without the quotes.
fn escaped(text: &str) -> String {
    let quoted = Value::from(text).to_string();
    quoted[1..quoted.len() - 1].to_owned()
}

/// Returns the byte at which an incomplete `mark` begins at the end of the text; the
/// text's length if none does.
fn tail(text: &str, mark: &str) -> usize {
    let at = text.len().saturating_sub(mark.len() - 1);
    let starts = (at..text.len()).filter(|&at| text.is_char_boundary(at));
    let mut open = starts.filter(|&at| mark.starts_with(&text[at..]));
    open.next().unwrap_or(text.len())
}

/// Finds the first complete opening markup `prefix NAME">` from byte `from` on. Returns
/// the name, and where the markup ends.
fn opening<'t>(text: &'t str, prefix: &str, from: usize) -> Option<(&'t str, usize)> {
    let start = from + text.get(from..)?.find(prefix)? + prefix.len();
    let length = text[start..].find(NAME_END)?;
    let name = &text[start..start + length];
    Some((name, start + length + NAME_END.len()))
}
