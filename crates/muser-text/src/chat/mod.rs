//! Conversations: how a model's format writes them, and how an answer is read.
//!
//! ```text
//! messages ─ Guard, template ─► prompt ─► model ─► tokens ─ Reader ─► content, reasoning, calls
//! ```
//!
//! A [`Format`] is one file of this folder and one row of the table below
//! (`docs/adding-a-chat-format.md`). The command line and the server take all
//! they know of a format from here.

mod glimmer;
mod guard;
mod markup;
mod plain;
mod reader;
mod types;

pub use guard::{Bounds, Guard, Prompt, Unbounded};
pub use markup::{Argument, Arguments, Calls, Markup, Piece, Reasoning, Strings};
pub use reader::{CallDelta, Channel, Delta, Parameters, Reader};
pub use types::Types;

use crate::{ChatTemplate, Message, RenderOptions, Tokenizer};
use reader::Read;

/// What the file of a format defines.
struct Definition {
    /// Whether a model with this tokenizer and template writes this format.
    fits: fn(&Tokenizer, &ChatTemplate) -> bool,
    /// The control tokens that structure an answer, by their text.
    marks: &'static [&'static str],
    /// Makes the reader of one answer; with `None`, calls are read as text.
    reader: fn(Option<Parameters>) -> Box<dyn Read>,
    /// The markup that a grammar has to hold an answer to.
    markup: Markup,
}

/// Declares the formats: one row each, in the order in which they are tried.
macro_rules! formats {
    ($($(#[$doc:meta])* $name:ident = $module:ident;)+) => {
        /// How a model's conversation is written.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Format {
            $($(#[$doc])* $name,)+
        }

        impl Format {
            /// All formats; [`Format::detect`] takes the first that fits.
            pub const ALL: &[Self] = &[$(Self::$name),+];

            fn definition(self) -> &'static Definition {
                match self {
                    $(Self::$name => &$module::FORMAT,)+
                }
            }
        }
    };
}

formats! {
    /// Messages with recipients: an answer, reasoning, and tool calls in ATEM
    /// markup. The model writes the header of each message.
    Glimmer = glimmer;
    /// No structure: everything that the model writes is content.
    Plain = plain;
}

impl Format {
    /// Finds the format of a model by its tokenizer and chat template:
    /// [`Format::Plain`] if no other one fits.
    pub fn detect(tokenizer: &Tokenizer, template: &ChatTemplate) -> Self {
        let fits = |format: &&Self| (format.definition().fits)(tokenizer, template);
        Self::ALL.iter().find(fits).copied().unwrap_or(Self::Plain)
    }

    /// The format's markup, for grammars that hold an answer to it.
    pub fn markup(self) -> &'static Markup {
        &self.definition().markup
    }
}

/// Returns what a template leaves for the model to write before its answer: the
/// text between the end of a prompt and an answer that is given. `None` if the
/// prompt does not continue into the answer.
fn answer_header(template: &ChatTemplate) -> Option<String> {
    const ANSWER: &str = "\u{e000}";
    let message = |role: &str, content: &str| Message {
        role: role.to_owned(),
        content: content.to_owned(),
        ..Message::default()
    };
    let render = |messages: &[Message], add_generation_prompt| {
        let options = RenderOptions {
            add_generation_prompt,
            ..RenderOptions::default()
        };
        template.render(messages, options).ok()
    };
    let mut messages = vec![message("user", "a")];
    let prompt = render(&messages, true)?;
    messages.push(message("assistant", ANSWER));
    let given = render(&messages, false)?;
    let (before, _) = given.split_once(ANSWER)?;
    before.strip_prefix(&*prompt).map(str::to_owned)
}
