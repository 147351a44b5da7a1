//! Takes a model's answer apart while the model writes it: into content, reasoning and
//! tool calls.

use super::{Format, Types};
use std::collections::HashMap;
use std::fmt::Debug;

/// The JSON types that each parameter of each tool takes: by the tool's name, then by
/// the parameter's name.
pub type Parameters = HashMap<String, HashMap<String, Types>>;

/// The part of a model's answer that a text belongs to: header, content, reasoning or
/// tool call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Channel {
    /// The header of a message in the answer, which is not shown to anyone.
    Header,
    /// The content of the answer, which the user is shown.
    Content,
    /// The reasoning that the model writes before it answers.
    Reasoning,
    /// A message to a tool, which has the markup of tool calls.
    Call,
}

/// What one more token adds to a model's answer: content, reasoning and parts of tool
/// calls.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Delta {
    /// Text that follows in the content of the answer.
    pub content: String,
    /// Text that follows in the reasoning before the answer.
    pub reasoning: String,
    /// The parts that follow of the answer's tool calls, in their order.
    pub calls: Vec<CallDelta>,
}

impl Delta {
    /// Returns whether nothing is added: no content, no reasoning and no part of a tool
    /// call.
    pub fn is_empty(&self) -> bool {
        self.content.is_empty() && self.reasoning.is_empty() && self.calls.is_empty()
    }
}

/// A part of a tool call, which arrives in pieces while the model writes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallDelta {
    /// The number of the tool call within the answer, from 0.
    pub index: usize,
    /// The name of the called tool; only in the first part of a tool call.
    pub name: Option<String>,
    /// The text that follows in the call's arguments, a piece of a JSON object. The
    /// pieces of a tool call that was not cut off make one object together.
    pub arguments: String,
}

/// Reads the answers of one chat format, in the steps that [`Reader`] defines.
pub(super) trait Read: Debug + Send {
    /// Advances the reader of the model's answer by one control token, as
    /// [`Reader::mark`] defines.
    fn mark(&mut self, token: &str, out: &mut Delta);

    /// Advances the reader of the model's answer by a piece of text, as
    /// [`Reader::text`] defines.
    fn text(&mut self, text: &str, out: &mut Delta);

    /// Tells the reader that the model's answer ended, complete or `cut` off, as
    /// [`Reader::finish`] defines.
    fn finish(&mut self, cut: bool, out: &mut Delta);

    /// Returns the channel (header, content, reasoning, call) of the next text, as
    /// [`Reader::channel`] defines.
    fn channel(&self) -> Channel;

    /// Returns the number of tool calls begun in the answer, as [`Reader::calls`]
    /// defines.
    fn calls(&self) -> usize;
}

/// Takes one model's answer apart while it is written: into content, reasoning and tool
/// calls.
///
/// ```
/// use muser_text::chat::{Delta, Format, Reader};
///
/// let mut reader = Reader::new(Format::Glimmer, None);
/// let mut out = Delta::default();
/// reader.text(" to=user", &mut out);
/// reader.mark("<|message|>", &mut out);
/// reader.text("Hello.", &mut out);
/// reader.finish(false, &mut out);
/// assert_eq!(out.content, "Hello.");
/// ```
#[derive(Debug)]
pub struct Reader {
    read: Box<dyn Read>,
    marks: &'static [&'static str],
}

impl Reader {
    /// Makes a reader at the beginning of an answer in this chat format. `tools` has
    /// the tools that the model may call, with their parameters; with `None`, a call is
    /// read as text.
    pub fn new(format: Format, tools: Option<Parameters>) -> Self {
        let definition = format.definition();
        Self {
            read: (definition.reader)(tools),
            marks: definition.marks,
        }
    }

    /// Returns whether this control token, given by its text, has a meaning in the chat
    /// format, so that it is for [`Reader::mark`].
    pub fn is_mark(&self, token: &str) -> bool {
        self.marks.contains(&token)
    }

    /// Advances the reader of the model's answer by one control token, given by its
    /// text in the vocabulary. A token that has no meaning in the chat format is
    /// ignored.
    pub fn mark(&mut self, token: &str, out: &mut Delta) {
        if self.is_mark(token) {
            self.read.mark(token, out);
        }
    }

    /// Advances the reader of the model's answer by the text that one token adds, or by
    /// the part of that text whose characters are complete.
    pub fn text(&mut self, text: &str, out: &mut Delta) {
        self.read.text(text, out);
    }

    /// Tells the reader that the model's answer ended, complete or `cut` off. A tool
    /// call left open by a complete answer is closed, so that its arguments are JSON;
    /// in an answer that was cut off it stays open, with what was written of its
    /// arguments.
    pub fn finish(&mut self, cut: bool, out: &mut Delta) {
        self.read.finish(cut, out);
    }

    /// Returns the channel (header, content, reasoning, call) of the next text of the
    /// answer.
    pub fn channel(&self) -> Channel {
        self.read.channel()
    }

    /// Returns the number of tool calls begun in the answer so far.
    pub fn calls(&self) -> usize {
        self.read.calls()
    }

    /// Returns whether a token that comes now is a part of the answer's content. A
    /// control token never is, in a chat format that has control tokens of its own.
    pub fn is_content(&self, is_control: bool) -> bool {
        self.channel() == Channel::Content && (self.marks.is_empty() || !is_control)
    }
}
