//! Describes as data how a chat format marks up an answer; the server makes grammars
//! from it.

/// How a chat format marks up a model's answer: its content, its reasoning and its tool
/// calls.
#[derive(Clone, Copy, Debug)]
pub struct Markup {
    /// The markup that stands between the prompt and the content of an answer.
    pub content: &'static [Piece],
    /// How reasoning before the answer is marked up; `None` if the chat format has
    /// none.
    pub reasoning: Option<Reasoning>,
    /// How tool calls are marked up; `None` if the chat format has none.
    pub calls: Option<Calls>,
}

/// A piece of a chat format's markup: a text, a control token or a tool's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Piece {
    /// A piece of a chat format's markup that is written as this text.
    Text(&'static str),
    /// A piece of a chat format's markup that is a control token, named by its text in
    /// the vocabulary.
    Token(&'static str),
    /// The place in the markup where the name of the called tool stands.
    Name,
}

/// The markup of reasoning in an answer. The content or call after it has its own
/// markup, as if it stood right behind the prompt.
#[derive(Clone, Copy, Debug)]
pub struct Reasoning {
    /// The markup between the prompt and the reasoning of an answer.
    pub before: &'static [Piece],
    /// The control token that ends the reasoning, by its text in the vocabulary.
    pub end: &'static str,
    /// The markup between the end of the reasoning and the content or call that
    /// follows.
    pub after: &'static [Piece],
}

/// The markup of the tool calls in an answer.
#[derive(Clone, Copy, Debug)]
pub struct Calls {
    /// The markup before the arguments of a tool call.
    pub before: &'static [Piece],
    /// How the arguments of a tool call are marked up.
    pub arguments: Arguments,
    /// The markup after the arguments of a tool call.
    pub after: &'static [Piece],
    /// The markup between two tool calls; `None` if an answer has one call only.
    pub between: Option<&'static [Piece]>,
}

/// How the arguments of a tool call are marked up.
#[derive(Clone, Copy, Debug)]
pub enum Arguments {
    /// Each argument of a tool call has markup of its own, one after the other.
    Each(Argument),
}

/// The markup of one argument of a tool call, which is written in this order: `before`,
/// the argument's name, `named`, its value, `end`, `after`.
#[derive(Clone, Copy, Debug)]
pub struct Argument {
    /// The text before the name of a tool call's argument.
    pub before: &'static str,
    /// The text between the name and the value of a tool call's argument.
    pub named: &'static str,
    /// The text that ends the value of a tool call's argument.
    pub end: &'static str,
    /// The text between the end of an argument's value and the next argument, or the
    /// end of the tool call.
    pub after: &'static str,
    /// How the value of a tool parameter that takes strings only is written. Every
    /// other value is JSON.
    pub strings: Strings,
    /// The characters (ASCII punctuation) that no argument's name may have in a tool
    /// call.
    pub not_in_names: &'static [char],
    /// The texts that no string of a parameter's list of allowed strings may have,
    /// since they would be read as markup.
    pub not_in_strings: &'static [&'static str],
}

/// How a string is written as the value of a tool call's argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Strings {
    /// A string argument of a tool call is written unescaped; the first mark that ends
    /// a value ends it.
    Verbatim,
    /// A string argument of a tool call is written as JSON, with its quotes.
    Json,
}
