//! Chat formats: how a model's conversations are written, and how its answers are read.
//!
//! ```text
//! messages ─ Guard, template ─► prompt ─► model ─► tokens ─ Reader ─► content, reasoning, calls
//! ```
//!
//! A [`Format`] is one file of this folder and one row of the table below
//! (`docs/adding-a-chat-format.md`). The command line and the server know of a chat
//! format only what this module says.

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

/// All that the code needs to know of one chat format: how to recognise it, to read
/// answers and to write grammars.
struct Definition {
    /// Returns whether a model with this tokenizer and chat template writes this chat
    /// format.
    fits: fn(&Tokenizer, &ChatTemplate) -> bool,
    /// The control tokens that structure an answer of this chat format, by their text.
    marks: &'static [&'static str],
    /// Makes the reader of one answer, given the tools that the model may call; with
    /// `None`, calls are read as text.
    reader: fn(Option<Parameters>) -> Box<dyn Read>,
    /// The chat format's markup, to which a grammar holds the model's answer.
    markup: Markup,
}

/// Declares the chat formats: one row each, in the order in which they are tried on a
/// model.
macro_rules! formats {
    ($($(#[$doc:meta])* $name:ident = $module:ident;)+) => {
        /// A chat format: how a model's conversations and answers are written.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Format {
            $($(#[$doc])* $name,)+
        }

        impl Format {
            /// All chat formats; [`Format::detect`] takes the first that fits the
            /// model.
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
    /// Muse Glimmer's chat format: messages with recipients carry the content, the
    /// reasoning and tool calls in ATEM markup. The model writes the header of each
    /// message.
    Glimmer = glimmer;
    /// The chat format without structure: everything that the model writes is content.
    Plain = plain;
}

impl Format {
    /// Finds the chat format of a model by its tokenizer and chat template:
    /// [`Format::Plain`] if no other one fits.
    pub fn detect(tokenizer: &Tokenizer, template: &ChatTemplate) -> Self {
        let fits = |format: &&Self| (format.definition().fits)(tokenizer, template);
        Self::ALL.iter().find(fits).copied().unwrap_or(Self::Plain)
    }

    /// Returns the chat format's markup, for grammars that hold an answer to it.
    pub fn markup(self) -> &'static Markup {
        &self.definition().markup
    }
}

/// Returns the header that a chat template leaves for the model to write: the text
/// between the end of a prompt and the answer, in a conversation whose answer is given.
/// `None` if the prompt does not continue into the answer.
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
