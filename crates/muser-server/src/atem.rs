//! A chat's answer as the model writes it, taken apart while it comes.
//!
//! ```text
//! answer   = message { <|eom|> <|start|> "assistant" message }  end of generation
//! message  = " to=" recipient <|message|> text
//! ```
//!
//! The prompt ends after `<|start|>assistant`. The recipient `user` (or none)
//! marks the answer, `self` is reasoning, anything else a tool; the text to one
//! is markup:
//!
//! ```text
//! <atem:function_calls>
//! <atem:invoke name="NAME">
//! <atem:parameter name="KEY">VALUE</atem:parameter>
//! </atem:invoke>
//! </atem:function_calls>
//! ```
//!
//! A value that is JSON other than a string is taken as it stands, everything
//! else as a string. What looks like markup and is none stays text: a model may
//! write anything.

use crate::scheduler::{CallDelta, Delta};
use serde_json::Value;
use std::collections::HashMap;

/// What the tokens between messages mean.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mark {
    /// `<|start|>`
    Start,
    /// `<|message|>`
    Message,
    /// `<|eom|>`
    End,
}

impl Mark {
    /// The mark that a control token's text is.
    pub(crate) fn of(text: &str) -> Option<Self> {
        match text {
            "<|start|>" => Some(Self::Start),
            "<|message|>" => Some(Self::Message),
            "<|eom|>" => Some(Self::End),
            _ => None,
        }
    }
}

/// Which parameters of which tools are strings, whatever their value looks
/// like: by tool, then parameter.
pub(crate) type StringParameters = HashMap<String, HashMap<String, bool>>;

/// Where in the answer a text belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Channel {
    Header,
    Content,
    Reasoning,
    Tool,
}

/// Tokens of a header after which it is taken for an answer without one.
const MAX_HEADER: usize = 32;

/// The reader of one answer.
#[derive(Clone, Debug)]
pub(crate) struct Reader {
    channel: Channel,
    /// Whether messages to tools are read as calls.
    tools: bool,
    header: String,
    header_tokens: usize,
    calls: Calls,
}

impl Reader {
    /// At the beginning of an answer, inside its header.
    pub(crate) fn new(tools: bool, strings: StringParameters) -> Self {
        Self {
            channel: Channel::Header,
            tools,
            header: String::new(),
            header_tokens: 0,
            calls: Calls::new(strings),
        }
    }

    /// Where the next text belongs.
    pub(crate) fn channel(&self) -> Channel {
        self.channel
    }

    /// Calls begun so far.
    pub(crate) fn calls(&self) -> usize {
        self.calls.count
    }

    /// A token between messages.
    pub(crate) fn mark(&mut self, mark: Mark, out: &mut Delta) {
        match (mark, self.channel) {
            (Mark::Message, Channel::Header) => {
                self.channel = self.recipient();
                self.header.clear();
            }
            (Mark::Start | Mark::End, _) => {
                self.leave(out);
                self.channel = Channel::Header;
                self.header.clear();
                self.header_tokens = 0;
            }
            // A message mark inside a message is nothing.
            (Mark::Message, _) => {}
        }
    }

    fn recipient(&self) -> Channel {
        let after = self.header.rsplit_once("to=").map(|(_, to)| to.trim());
        match after {
            None | Some("" | "user") => Channel::Content,
            Some("self") => Channel::Reasoning,
            Some(_) if self.tools => Channel::Tool,
            Some(_) => Channel::Content,
        }
    }

    /// The text of a token.
    pub(crate) fn text(&mut self, text: &str, out: &mut Delta) {
        match self.channel {
            Channel::Header => {
                self.header.push_str(text);
                self.header_tokens += 1;
                if self.header_tokens >= MAX_HEADER {
                    self.channel = Channel::Content;
                    out.content.push_str(&std::mem::take(&mut self.header));
                }
            }
            Channel::Content => out.content.push_str(text),
            Channel::Reasoning => out.reasoning.push_str(text),
            Channel::Tool => self.calls.push(text, out),
        }
    }

    fn leave(&mut self, out: &mut Delta) {
        if self.channel == Channel::Tool {
            self.calls.finish(out);
        }
    }

    /// The answer is over, complete or `cut` off. Of one that is cut off, an open
    /// call stays open, with its arguments as far as they were written.
    pub(crate) fn finish(&mut self, cut: bool, out: &mut Delta) {
        match self.channel {
            Channel::Tool if cut => self.calls.cut(out),
            Channel::Tool => self.calls.finish(out),
            Channel::Header if self.header_tokens > 0 => {
                // It never ended, so it was none; a header that a mark began is
                // not shown, nor one that could have become one.
                let header = std::mem::take(&mut self.header);
                let begun = header.trim_start();
                let hidden = header.contains("to=")
                    || header.trim() == "assistant"
                    || cut && ("to=".starts_with(begun) || "assistant to=".starts_with(begun));
                if !hidden {
                    out.content.push_str(&header);
                }
            }
            Channel::Header | Channel::Content | Channel::Reasoning => {}
        }
    }
}

/// The markup of calls, read as far as it is complete.
#[derive(Clone, Debug)]
struct Calls {
    strings: StringParameters,
    /// Text that is not decided yet.
    held: String,
    /// The open call's name; `None` between calls.
    open: Option<String>,
    /// Parameters of the open call.
    parameters: usize,
    count: usize,
}

const INVOKE: &str = "<atem:invoke name=\"";
const PARAMETER: &str = "<atem:parameter name=\"";
const PARAMETER_END: &str = "</atem:parameter>";
const INVOKE_END: &str = "</atem:invoke>";

impl Calls {
    fn new(strings: StringParameters) -> Self {
        Self {
            strings,
            held: String::new(),
            open: None,
            parameters: 0,
            count: 0,
        }
    }

    fn push(&mut self, text: &str, out: &mut Delta) {
        self.held.push_str(text);
        while self.step(out) {}
    }

    /// Reads one more piece of markup, if it is complete.
    fn step(&mut self, out: &mut Delta) -> bool {
        if self.open.is_none() {
            let Some((at, name, rest)) = opening(&self.held, INVOKE) else {
                return false;
            };
            let (name, rest) = (name.to_owned(), rest.to_owned());
            let _ = at;
            out.calls.push(CallDelta {
                index: self.count,
                name: Some(name.clone()),
                arguments: "{".to_owned(),
            });
            self.count += 1;
            (self.open, self.parameters, self.held) = (Some(name), 0, rest);
            return true;
        }
        let parameter = opening(&self.held, PARAMETER);
        let end = self.held.find(INVOKE_END);
        match (parameter, end) {
            (Some((at, key, rest)), end) if end.is_none_or(|end| at < end) => {
                let Some((value, rest)) = rest.split_once(PARAMETER_END) else {
                    return false;
                };
                let argument = self.argument(key, value);
                let rest = rest.to_owned();
                self.emit(&argument, out);
                self.parameters += 1;
                self.held = rest;
                true
            }
            // A value may hold anything, the end of a call too: only what
            // comes before the next parameter ends this one.
            (None, Some(_)) if self.held.contains(PARAMETER) => false,
            (_, Some(end)) => {
                self.held.drain(..end + INVOKE_END.len());
                self.emit("}", out);
                self.open = None;
                true
            }
            _ => false,
        }
    }

    /// `"key":value`, with a comma before it if it is not the first.
    fn argument(&self, key: &str, value: &str) -> String {
        let tool = self.open.as_ref().and_then(|name| self.strings.get(name));
        let declared = tool.and_then(|parameters| parameters.get(key));
        let parsed = serde_json::from_str::<Value>(value.trim()).ok();
        let value = match (declared, parsed) {
            (Some(true), _) | (_, None | Some(Value::String(_))) => Value::from(value),
            (_, Some(json)) => json,
        };
        let comma = if self.parameters > 0 { "," } else { "" };
        format!("{comma}{}:{value}", Value::from(key))
    }

    fn emit(&self, arguments: &str, out: &mut Delta) {
        out.calls.push(CallDelta {
            index: self.count.saturating_sub(1),
            name: None,
            arguments: arguments.to_owned(),
        });
    }

    /// The answer ends here, in the middle: what was written of a value is told
    /// and nothing is closed. Markup that is not decided is no text.
    fn cut(&mut self, out: &mut Delta) {
        if self.open.is_some() {
            if let Some((_, key, value)) = opening(&self.held, PARAMETER) {
                let argument = self.open_argument(key, value);
                self.emit(&argument, out);
            }
        } else if self.count == 0 {
            let text = self.held.trim_start();
            let markup = "<atem:function_calls>";
            if !text.starts_with("<atem:") && !markup.starts_with(text) {
                out.content.push_str(&self.held);
            }
        }
        self.held.clear();
    }

    /// [`Calls::argument`] of a value that has no end, without what may be the
    /// beginning of the markup behind it.
    fn open_argument(&self, key: &str, value: &str) -> String {
        let partial = (1..PARAMETER_END.len().min(value.len() + 1))
            .rev()
            .find(|&n| value.ends_with(&PARAMETER_END[..n]));
        let value = &value[..value.len() - partial.unwrap_or(0)];
        let tool = self.open.as_ref().and_then(|name| self.strings.get(name));
        let declared = tool.and_then(|parameters| parameters.get(key));
        let begun = value.trim_start();
        let is_json = begun.starts_with(|c: char| "{[-0123456789tfn".contains(c));
        let value = match declared {
            Some(false) => value.to_owned(),
            None if is_json || begun.is_empty() => value.to_owned(),
            Some(true) | None => {
                let mut text = Value::from(value).to_string();
                // Its closing quote: the text goes on.
                text.pop();
                text
            }
        };
        let comma = if self.parameters > 0 { "," } else { "" };
        format!("{comma}{}:{value}", Value::from(key))
    }

    /// The message is over: an open call is closed, so that what was sent is
    /// JSON, and text that is no call is text.
    fn finish(&mut self, out: &mut Delta) {
        if self.open.take().is_some() {
            self.emit("}", out);
        } else if self.count == 0 {
            out.content.push_str(&self.held);
        }
        self.held.clear();
    }
}

/// The first complete `prefix NAME">`: where it is, the name, what follows.
fn opening<'t>(text: &'t str, prefix: &str) -> Option<(usize, &'t str, &'t str)> {
    let at = text.find(prefix)?;
    let (name, rest) = text[at + prefix.len()..].split_once("\">")?;
    Some((at, name, rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads an answer in which control tokens are written out, its texts cut
    /// into pieces of `size` characters.
    fn read(answer: &str, size: usize, tools: bool) -> Delta {
        read_until(answer, size, tools, false)
    }

    fn read_until(answer: &str, size: usize, tools: bool, cut: bool) -> Delta {
        let mut reader = Reader::new(tools, strings());
        let mut out = Delta::default();
        let mut rest = answer;
        while !rest.is_empty() {
            if let Some(after) = rest.strip_prefix("<|")
                && let Some((name, after)) = after.split_once("|>")
            {
                let mark = Mark::of(&format!("<|{name}|>")).unwrap();
                reader.mark(mark, &mut out);
                rest = after;
                continue;
            }
            let end = rest.find("<|").unwrap_or(rest.len());
            let (text, after) = rest.split_at(end);
            let chars: Vec<char> = text.chars().collect();
            for piece in chars.chunks(size) {
                reader.text(&piece.iter().collect::<String>(), &mut out);
            }
            rest = after;
        }
        reader.finish(cut, &mut out);
        out
    }

    fn strings() -> StringParameters {
        let weather = HashMap::from([("city".to_owned(), true), ("days".to_owned(), false)]);
        HashMap::from([("weather".to_owned(), weather)])
    }

    /// (name, arguments) of each call.
    fn calls(out: &Delta) -> Vec<(String, Value)> {
        let mut calls: Vec<(String, String)> = Vec::new();
        for c in &out.calls {
            if let Some(name) = &c.name {
                assert_eq!(c.index, calls.len());
                calls.push((name.clone(), String::new()));
            }
            calls[c.index].1.push_str(&c.arguments);
        }
        calls
            .into_iter()
            .map(|(name, arguments)| (name, serde_json::from_str(&arguments).unwrap()))
            .collect()
    }

    const CALL: &str = " to=weather<|message|><atem:function_calls>\n\
        <atem:invoke name=\"weather\">\n\
        <atem:parameter name=\"city\">12</atem:parameter>\n\
        <atem:parameter name=\"days\">3</atem:parameter>\n\
        <atem:parameter name=\"more\">{\"a\": [1, \"x\"]}</atem:parameter>\n\
        <atem:parameter name=\"text\">say \"hi\"</atem:parameter>\n\
        </atem:invoke>\n</atem:function_calls>";

    #[test]
    fn reasoning_answer_and_calls_are_told_apart_however_they_are_cut() {
        let answer = format!(
            " to=self<|message|>Hm, <b>.<|eom|><|start|>assistant to=user<|message|>One moment.\
             <|eom|><|start|>assistant{CALL}<|eom|><|start|>assistant{CALL}"
        );
        // A header may have at most 32 tokens: pieces of one character would
        // be more.
        for size in [1, 2, 7, 100] {
            let out = read(&answer, size, true);
            assert_eq!(out.reasoning, "Hm, <b>.");
            assert_eq!(out.content, "One moment.");
            let expected = serde_json::json!({
                "city": "12", "days": 3, "more": {"a": [1, "x"]}, "text": "say \"hi\""
            });
            let call = ("weather".to_owned(), expected);
            assert_eq!(calls(&out), [call.clone(), call], "{size}");
        }
    }

    #[test]
    fn without_tools_a_message_to_one_is_text() {
        let out = read(" to=weather<|message|>x<atem:invoke name=\"a\">", 3, false);
        assert_eq!(out.content, "x<atem:invoke name=\"a\">");
        assert!(out.calls.is_empty());
    }

    #[test]
    fn an_answer_without_a_header_is_an_answer() {
        let long = "once upon a time ".repeat(9);
        assert_eq!(read(&long, 3, true).content, long);
        assert_eq!(read("Hi.", 1, true).content, "Hi.");
        assert_eq!(read("<|message|>Hi.", 1, true).content, "Hi.");
        assert_eq!(read(" to=us", 1, true).content, "");
    }

    #[test]
    fn a_call_that_is_cut_off_stays_open_and_shows_no_markup() {
        let open = |text: &str| {
            let out = read_until(text, 1, true, true);
            assert_eq!(out.content, "", "{text}");
            let arguments = out.calls.iter().map(|c| c.arguments.as_str());
            arguments.collect::<String>()
        };
        let whole = CALL.replace("<|message|>", "\u{0}");
        for end in (0..whole.len()).filter(|&n| whole.is_char_boundary(n)) {
            let text = whole[..end].replace('\u{0}', "<|message|>");
            let arguments = open(&text);
            let full = "{\"city\":\"12\",\"days\":3,\"more\":{\"a\": [1, \"x\"]},\"text\":\"say \\\"hi\\\"\"}";
            assert!(
                full.replace(' ', "")
                    .starts_with(&arguments.replace(' ', "")),
                "{text}: {arguments}"
            );
        }
        let value = "<atem:invoke name=\"weather\"><atem:parameter name=\"city\">Os</atem:para";
        assert_eq!(
            open(&format!(" to=weather<|message|>{value}")),
            "{\"city\":\"Os"
        );
        for header in [" to", " t", " to=us", "to=user", ""] {
            assert_eq!(read_until(header, 9, true, true).content, "", "{header:?}");
        }
        assert_eq!(read_until("Hi", 9, true, true).content, "Hi");
        assert_eq!(
            read_until(" to=f<|message|>just <b", 9, true, true).content,
            "just <b"
        );
    }

    #[test]
    fn broken_markup_is_closed_or_stays_text() {
        let head = " to=f<|message|><atem:function_calls><atem:invoke name=\"f\">";
        let cut = read(
            &format!("{head}<atem:parameter name=\"a\">1</atem:parameter><atem:par"),
            4,
            true,
        );
        assert_eq!(calls(&cut), [("f".to_owned(), serde_json::json!({"a": 1}))]);
        let none = read(" to=f<|message|>just text <atem:invoke", 4, true);
        assert_eq!(none.content, "just text <atem:invoke");
        // The markup's own ends inside a value.
        let value = "<atem:parameter name=\"a\">x</atem:invoke>y</atem:parameter></atem:invoke>";
        let odd = read(&format!("{head}{value}"), 1, true);
        let expected = serde_json::json!({"a": "x</atem:invoke>y"});
        assert_eq!(calls(&odd), [("f".to_owned(), expected)]);
    }
}
