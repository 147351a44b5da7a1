//! A format's markup as data, from which the server makes grammars.

/// How a format writes an answer.
#[derive(Clone, Copy, Debug)]
pub struct Markup {
    /// What stands between the prompt and content.
    pub content: &'static [Piece],
    /// How reasoning before the answer is written; `None` if the format has none.
    pub reasoning: Option<Reasoning>,
    /// How tool calls are written; `None` if the format has none.
    pub calls: Option<Calls>,
}

/// A piece of markup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Piece {
    /// A text.
    Text(&'static str),
    /// A control token, by its text in the vocabulary.
    Token(&'static str),
    /// The name of the tool that is called.
    Name,
}

/// The markup of reasoning. The answer follows with its own markup, as if it
/// stood behind the prompt.
#[derive(Clone, Copy, Debug)]
pub struct Reasoning {
    /// What stands before the reasoning.
    pub before: &'static [Piece],
    /// The control token that ends it.
    pub end: &'static str,
    /// What stands between `end` and the answer.
    pub after: &'static [Piece],
}

/// The markup of tool calls.
#[derive(Clone, Copy, Debug)]
pub struct Calls {
    /// What stands before the arguments of a call.
    pub before: &'static [Piece],
    /// How the arguments are written.
    pub arguments: Arguments,
    /// What stands after them.
    pub after: &'static [Piece],
    /// What stands between two calls; `None` if an answer has one call only.
    pub between: Option<&'static [Piece]>,
}

/// How a call's arguments are written.
#[derive(Clone, Copy, Debug)]
pub enum Arguments {
    /// Each argument in markup of its own, one after the other.
    Each(Argument),
}

/// The markup of one argument: `before`, its name, `named`, its value, `end`,
/// `after`.
#[derive(Clone, Copy, Debug)]
pub struct Argument {
    /// What stands before the name.
    pub before: &'static str,
    /// What stands between the name and the value.
    pub named: &'static str,
    /// What ends the value.
    pub end: &'static str,
    /// What stands after the end of the value.
    pub after: &'static str,
    /// How the value of a parameter that takes strings only is written. Every
    /// other value is JSON.
    pub strings: Strings,
    /// Characters that no name may have, ASCII punctuation.
    pub not_in_names: &'static [char],
    /// Texts that no listed string may have, since they would be read as markup.
    pub not_in_strings: &'static [&'static str],
}

/// How a string is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Strings {
    /// As it stands, up to the first mark that ends the value.
    Verbatim,
    /// As JSON, with its quotes.
    Json,
}
