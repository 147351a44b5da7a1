//! The chat format without structure: everything that the model writes is content.
//!
//! It is the format of models whose template writes the whole header of an answer, and
//! of models whose format is not known here. Their tool calls are text.

use super::reader::{Channel, Delta, Read};
use super::{Definition, Markup};

pub(super) const FORMAT: Definition = Definition {
    fits: |_, _| true,
    marks: &[],
    reader: |_| Box::new(Plain),
    markup: Markup {
        content: &[],
        reasoning: None,
        calls: None,
    },
};

/// Reads an answer without structure, whose text is all content; it has no state.
#[derive(Debug)]
struct Plain;

impl Read for Plain {
    fn mark(&mut self, _: &str, _: &mut Delta) {}

    fn text(&mut self, text: &str, out: &mut Delta) {
        out.content.push_str(text);
    }

    fn finish(&mut self, _: bool, _: &mut Delta) {}

    fn channel(&self) -> Channel {
        Channel::Content
    }

    fn calls(&self) -> usize {
        0
    }
}
