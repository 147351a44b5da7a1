//! Muse Glimmer's chat format: messages with recipients, and tool calls in ATEM markup.
//!
//! ```text
//! answer   = message { <|eom|> <|start|> "assistant" message }  end of generation
//! message  = " to=" recipient <|message|> text
//! ```
//!
//! The prompt ends after `<|start|>assistant`: the model writes the header of its
//! answer itself. The recipient `user` (or none) marks content, `self`
//! reasoning, and anything else a tool; the text to a tool is markup:
//!
//! ```text
//! <atem:function_calls>
//! <atem:invoke name="NAME">
//! <atem:parameter name="KEY">VALUE</atem:parameter>
//! </atem:invoke>
//! </atem:function_calls>
//! ```
//!
//! How the value of a tool call's parameter is read depends on the types that the
//! parameter takes ([`calls`]). What looks like markup and is none stays text: a model
//! may write anything.

mod calls;

use super::reader::{Channel, Delta, Parameters, Read};
use super::{Argument, Arguments, Calls, Definition, Markup, Piece, Reasoning, Strings};
use crate::{ChatTemplate, Tokenizer};
use Piece::{Name, Text, Token};
use calls::CallReader;

const START: &str = "<|start|>";
const MESSAGE: &str = "<|message|>";
const END: &str = "<|eom|>";

/// The markup that begins a tool call; the tool's name follows.
const INVOKE: &str = "<atem:invoke name=\"";
/// The markup that ends a tool call.
const INVOKE_END: &str = "</atem:invoke>";
/// The markup that begins a parameter of a tool call; the parameter's name follows.
const PARAMETER: &str = "<atem:parameter name=\"";
/// The markup that ends the value of a tool call's parameter.
const PARAMETER_END: &str = "</atem:parameter>";
/// The markup that ends the name of a tool or of a parameter.
const NAME_END: &str = "\">";

/// The markup between two messages of an answer.
const NEXT: &[Piece] = &[Token(END), Token(START), Text("assistant")];

pub(super) const FORMAT: Definition = Definition {
    fits,
    marks: &[START, MESSAGE, END],
    reader: |tools| Box::new(Reader::new(tools)),
    markup: Markup {
        content: &[Text(" to=user"), Token(MESSAGE)],
        reasoning: Some(Reasoning {
            before: &[Text(" to=self"), Token(MESSAGE)],
            end: END,
            after: &[Token(START), Text("assistant")],
        }),
        calls: Some(Calls {
            before: &[
                Text(" to="),
                Name,
                Token(MESSAGE),
                Text("<atem:function_calls>\n"),
                Text(INVOKE),
                Name,
                Text(NAME_END),
                Text("\n"),
            ],
            arguments: Arguments::Each(Argument {
                before: PARAMETER,
                named: NAME_END,
                end: PARAMETER_END,
                after: "\n",
                strings: Strings::Verbatim,
                not_in_names: &['"', '<', '>'],
                not_in_strings: &["<atem:", "</atem:"],
            }),
            after: &[Text(INVOKE_END), Text("\n</atem:function_calls>")],
            between: Some(NEXT),
        }),
    },
};

/// Returns whether a model writes Muse Glimmer's chat format: the vocabulary has the
/// format's control tokens, and the template leaves the header of an answer for the
/// model to write.
fn fits(tokenizer: &Tokenizer, template: &ChatTemplate) -> bool {
    let is_control = |text: &&str| {
        let id = tokenizer.id_of(text);
        id.is_some_and(|id| tokenizer.is_control(id))
    };
    FORMAT.marks.iter().all(is_control)
        && super::answer_header(template).is_some_and(|header| header.ends_with(MESSAGE))
}

/// Number of texts, about one a token, after which a header that has not ended is taken
/// for an answer without a header.
const MAX_HEADER: usize = 32;

/// Reads one answer in Muse Glimmer's chat format.
#[derive(Debug)]
struct Reader {
    channel: Channel,
    /// Whether messages to tools are read as tool calls; otherwise they are content.
    tools: bool,
    header: String,
    header_tokens: usize,
    calls: CallReader,
}

impl Reader {
    /// Makes a reader that stands inside the header of the answer's first message.
    fn new(tools: Option<Parameters>) -> Self {
        Self {
            channel: Channel::Header,
            tools: tools.is_some(),
            header: String::new(),
            header_tokens: 0,
            calls: CallReader::new(tools.unwrap_or_default()),
        }
    }

    /// Returns the channel (content, reasoning or call) of the recipient that the
    /// complete header names.
    fn recipient(&self) -> Channel {
        let after = self.header.rsplit_once("to=").map(|(_, to)| to.trim());
        match after {
            None | Some("" | "user") => Channel::Content,
            Some("self") => Channel::Reasoning,
            Some(_) if self.tools => Channel::Call,
            Some(_) => Channel::Content,
        }
    }
}

impl Read for Reader {
    fn mark(&mut self, token: &str, out: &mut Delta) {
        match token {
            MESSAGE if self.channel == Channel::Header => {
                self.channel = self.recipient();
                self.header.clear();
            }
            START | END => {
                if self.channel == Channel::Call {
                    self.calls.finish(false, out);
                }
                self.channel = Channel::Header;
                self.header.clear();
                self.header_tokens = 0;
            }
            // `<|message|>` inside a message means nothing.
            _ => {}
        }
    }

    fn text(&mut self, text: &str, out: &mut Delta) {
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
            Channel::Call => self.calls.push(text, out),
        }
    }

    fn finish(&mut self, cut: bool, out: &mut Delta) {
        match self.channel {
            Channel::Call => self.calls.finish(cut, out),
            Channel::Header if self.header_tokens > 0 => {
                // The message's header never ended, so it is the answer, unless it
                // begins like a header.
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

    fn channel(&self) -> Channel {
        self.channel
    }

    fn calls(&self) -> usize {
        self.calls.count()
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Format, Reader, Types};
    use super::*;
    use serde_json::Value;
    use std::collections::HashMap;

    /// Reads an answer in which control tokens are written out as text; the text
    /// between them comes in pieces of `size` characters.
    fn read(answer: &str, size: usize, tools: bool) -> Delta {
        read_until(answer, size, tools, false)
    }

    fn read_until(answer: &str, size: usize, tools: bool, cut: bool) -> Delta {
        let mut reader = Reader::new(Format::Glimmer, tools.then(strings));
        let mut out = Delta::default();
        let mut rest = answer;
        while !rest.is_empty() {
            if let Some(after) = rest.strip_prefix("<|")
                && let Some((name, after)) = after.split_once("|>")
            {
                let mark = format!("<|{name}|>");
                assert!(reader.is_mark(&mark));
                reader.mark(&mark, &mut out);
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

    fn strings() -> Parameters {
        let zip = Types::STRING.or(Types::NULL);
        let weather = [
            ("city", Types::STRING),
            ("days", Types::INTEGER),
            ("zip", zip),
        ];
        let weather = weather.map(|(name, types)| (name.to_owned(), types));
        HashMap::from([("weather".to_owned(), HashMap::from(weather))])
    }

    /// Returns the tool's name and the arguments of each call in what was read.
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
        // A header ends before its 32nd text: those of this answer are shorter, even in
        // pieces of one character.
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
        // The markup's own closing marks inside a value.
        let value = "<atem:parameter name=\"a\">x</atem:invoke>y</atem:parameter></atem:invoke>";
        let odd = read(&format!("{head}{value}"), 1, true);
        let expected = serde_json::json!({"a": "x</atem:invoke>y"});
        assert_eq!(calls(&odd), [("f".to_owned(), expected)]);
    }

    /// Checks what becomes of a tool parameter's value whose JSON never closes, behind
    /// which the next parameter begins: as text (found by fuzzing), as JSON, and as
    /// JSON in a second call.
    #[test]
    fn what_stays_open_behind_open_json_is_closed() {
        let head = "<atem:parameter name=\"more\">{\"a\": [1, \"x</atem:parameter>";
        let more = "{\"a\": [1, \"x";
        for (text, expected) in [
            (
                "<atem:parameter name=\"city\">12</atem:par",
                serde_json::json!({"more": more, "city": "12</atem:par"}),
            ),
            (
                "<atem:parameter name=\"any\">[1, {\"b\"</atem:parameter>\
                 <atem:parameter name=\"days\">3",
                serde_json::json!({"more": more, "any": "[1, {\"b\"", "days": 3}),
            ),
        ] {
            let text = weather(&format!("{head}{text}"));
            for size in [2, 5, 200] {
                let found = calls(&read(&text, size, true));
                assert_eq!(found, [("weather".to_owned(), expected.clone())], "{size}");
            }
        }
        let second = "</atem:invoke><atem:invoke name=\"g\"><atem:parameter name=\"k\">[";
        let found = calls(&read(&weather(&format!("{head}{second}")), 3, true));
        let first = ("weather".to_owned(), serde_json::json!({"more": more}));
        let second = ("g".to_owned(), serde_json::json!({"k": "["}));
        assert_eq!(found, [first, second]);
    }

    fn weather(parameters: &str) -> String {
        format!(
            " to=weather<|message|><atem:function_calls>\n<atem:invoke name=\"weather\">\n{parameters}"
        )
    }

    #[test]
    fn a_value_is_read_to_its_own_end() {
        let end = "</atem:invoke>";
        for (value, expected) in [
            (
                "{\"k\": \"</atem:parameter>\"}",
                serde_json::json!({"k": "</atem:parameter>"}),
            ),
            ("\"a\"", serde_json::json!("a")),
            ("12345", serde_json::json!("12345")),
            ("null", serde_json::json!(null)),
            ("\"open", serde_json::json!("\"open")),
            ("{not json}", serde_json::json!("{not json}")),
            (" x < y ", serde_json::json!(" x < y ")),
        ] {
            for size in [1, 3, 200] {
                let key = if value.starts_with('{') { "any" } else { "zip" };
                let text = weather(&format!(
                    "<atem:parameter name=\"{key}\">{value}</atem:parameter>\n{end}"
                ));
                let found = calls(&read(&text, size.max(2), true));
                assert_eq!(found[0].1[key], expected, "{value} by {size}");
            }
        }
        let digits = weather(
            "<atem:parameter name=\"n\">12345678901234567890123</atem:parameter></atem:invoke>",
        );
        let out = read(&digits, 5, true);
        let all: String = out.calls.iter().map(|c| c.arguments.as_str()).collect();
        assert_eq!(all, "{\"n\":12345678901234567890123}");
    }

    /// Reads an answer that is cut off; returns its content and its tool calls'
    /// arguments.
    fn cut(answer: &str) -> (String, String) {
        let mut reader = Reader::new(Format::Glimmer, Some(strings()));
        let mut out = Delta::default();
        let (head, body) = answer.split_once("<|message|>").unwrap_or((answer, ""));
        reader.text(head, &mut out);
        if answer.contains("<|message|>") {
            reader.mark(MESSAGE, &mut out);
            for c in body.chars() {
                reader.text(&c.to_string(), &mut out);
            }
        }
        reader.finish(true, &mut out);
        let arguments = out.calls.iter().map(|c| c.arguments.as_str()).collect();
        (out.content, arguments)
    }

    #[test]
    fn what_is_cut_stays_open() {
        let nothing = (String::new(), String::new());
        assert_eq!(cut(" to"), nothing);
        assert_eq!(
            cut(" to=weather<|message|><atem:function_calls>\n<atem:inv"),
            nothing
        );
        for (text, arguments) in [
            ("", "{"),
            ("<atem:parameter name=\"ci", "{"),
            (
                "<atem:parameter name=\"city\">Os\"lo",
                "{\"city\":\"Os\\\"lo",
            ),
            (
                "<atem:parameter name=\"any\">{\"a\": [1",
                "{\"any\":{\"a\": [1",
            ),
            (
                "<atem:parameter name=\"days\">3</atem:parameter>\n",
                "{\"days\":3",
            ),
        ] {
            let (content, found) = cut(&weather(text));
            assert_eq!((content.as_str(), found.as_str()), ("", arguments));
        }
    }
}
