//! Reads an answer while the model writes it.

use super::{Format, Types};
use std::collections::HashMap;
use std::fmt::Debug;

/// The JSON types that parameters take: by tool, then by parameter.
pub type Parameters = HashMap<String, HashMap<String, Types>>;

/// The part of an answer that a text belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Channel {
    /// The header of a message, which nobody is shown.
    Header,
    /// The answer itself.
    Content,
    /// What the model thinks before it answers.
    Reasoning,
    /// A message to a tool.
    Call,
}

/// What a token adds to an answer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Delta {
    /// More of the answer itself.
    pub content: String,
    /// More of the reasoning.
    pub reasoning: String,
    /// More of the tool calls, in their order.
    pub calls: Vec<CallDelta>,
}

impl Delta {
    /// Whether it adds nothing.
    pub fn is_empty(&self) -> bool {
        self.content.is_empty() && self.reasoning.is_empty() && self.calls.is_empty()
    }
}

/// A part of a tool call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallDelta {
    /// The number of the call within the answer, from 0.
    pub index: usize,
    /// The name of the tool; only with the first part of a call.
    pub name: Option<String>,
    /// More of the arguments, a piece of a JSON object. All pieces of a call
    /// that was not cut off are one object.
    pub arguments: String,
}

/// The reader of a format: what [`Reader`] does, for one of them.
pub(super) trait Read: Debug + Send {
    /// [`Reader::mark`]
    fn mark(&mut self, token: &str, out: &mut Delta);

    /// [`Reader::text`]
    fn text(&mut self, text: &str, out: &mut Delta);

    /// [`Reader::finish`]
    fn finish(&mut self, cut: bool, out: &mut Delta);

    /// [`Reader::channel`]
    fn channel(&self) -> Channel;

    /// [`Reader::calls`]
    fn calls(&self) -> usize;
}

/// Takes one answer apart while it is written: into content, reasoning and tool
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
    /// A reader at the beginning of an answer. `tools` has the tools that the
    /// model may call; with `None`, a call is text.
    pub fn new(format: Format, tools: Option<Parameters>) -> Self {
        let definition = format.definition();
        Self {
            read: (definition.reader)(tools),
            marks: definition.marks,
        }
    }

    /// Whether the format gives a meaning to the control token with this text,
    /// which is then for [`Reader::mark`].
    pub fn is_mark(&self, token: &str) -> bool {
        self.marks.contains(&token)
    }

    /// Reads a control token, given by its text in the vocabulary. One that is
    /// no mark is ignored.
    pub fn mark(&mut self, token: &str, out: &mut Delta) {
        if self.is_mark(token) {
            self.read.mark(token, out);
        }
    }

    /// Reads the text of one token, or the part of it that is complete.
    pub fn text(&mut self, text: &str, out: &mut Delta) {
        self.read.text(text, out);
    }

    /// Ends the answer, which is complete or was `cut` off. The open call of a
    /// complete one is closed, so that its arguments are JSON; that of one that
    /// was cut off stays open, with what was written of its arguments.
    pub fn finish(&mut self, cut: bool, out: &mut Delta) {
        self.read.finish(cut, out);
    }

    /// The channel of the next text.
    pub fn channel(&self) -> Channel {
        self.read.channel()
    }

    /// The number of calls begun so far.
    pub fn calls(&self) -> usize {
        self.read.calls()
    }

    /// Whether a token that comes now is a part of the content. A control token
    /// is none in a format that has marks.
    pub fn is_content(&self, is_control: bool) -> bool {
        self.channel() == Channel::Content && (self.marks.is_empty() || !is_control)
    }
}
