//! Errors of vocabularies, texts and templates.

/// An error of the tokenizer or of a chat template.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// `tokenizer.ggml.model` names another algorithm.
    #[error("tokenizer model {found:?} is not supported; known: \"gpt2\" (byte-level BPE)")]
    UnknownModel {
        /// The name in the file.
        found: String,
    },
    /// `tokenizer.ggml.pre` is missing or names a split rule that is not known.
    #[error("tokenizer.ggml.pre is {}; known split rules: {known}; a wrong rule gives wrong tokens without a sign, so none is guessed", quoted(.found))]
    UnknownSplitRule {
        /// The name in the file, if it has one.
        found: Option<String>,
        /// The names that are known, separated by commas.
        known: String,
    },
    /// The token list is empty.
    #[error("the vocabulary is empty")]
    EmptyVocabulary,
    /// More tokens than an id of 32 bits can name.
    #[error("the vocabulary has {found} tokens; ids have 32 bits")]
    VocabularyTooLarge {
        /// Length of the token list.
        found: usize,
    },
    /// Two ids have the same text.
    #[error("token {text:?} is in the vocabulary twice, as {first} and {second}")]
    DuplicateToken {
        /// The text.
        text: String,
        /// The lower id.
        first: u32,
        /// The higher id.
        second: u32,
    },
    /// The list of types and the list of tokens differ in length.
    #[error("token_type has {found} entries, the vocabulary {expected}")]
    TokenTypeCount {
        /// Number of tokens.
        expected: usize,
        /// Number of types.
        found: usize,
    },
    /// A type that GGUF does not define.
    #[error("token {id} has type {found}; types are 0 to 6")]
    UnknownTokenType {
        /// The token.
        id: u32,
        /// Its type.
        found: i32,
    },
    /// A token of type byte whose text is not `<0xHH>`.
    #[error("token {id} is of type byte, but its text is {text:?}, not <0xHH>")]
    MalformedByteToken {
        /// The token.
        id: u32,
        /// Its text.
        text: String,
    },
    /// A special id is not in the vocabulary.
    #[error("{name} is {id}, the vocabulary has {vocab_size} tokens")]
    SpecialIdOutOfRange {
        /// Which id.
        name: &'static str,
        /// Its value.
        id: u32,
        /// Number of tokens.
        vocab_size: usize,
    },
    /// A merge that cannot be applied.
    #[error("merge {index} ({merge:?}): {reason}")]
    Merge {
        /// Position in the list of merges.
        index: usize,
        /// The line as it is in the file.
        merge: String,
        /// What is wrong.
        reason: String,
    },
    /// A library refused data that had passed the checks of this crate.
    #[error("building {what}: {reason}")]
    Build {
        /// What was being built.
        what: &'static str,
        /// The library's message.
        reason: String,
    },
    /// The text has a byte for which the vocabulary has no token.
    #[error("byte 0x{byte:02x} at offset {offset} of the text: the vocabulary has no token for it")]
    MissingByteToken {
        /// The byte.
        byte: u8,
        /// Its offset in the text.
        offset: usize,
    },
    /// A start token was requested, but the vocabulary names none.
    #[error("add_bos was asked for, but the vocabulary names no bos token")]
    NoBos,
    /// The file says that texts start with a start token, but does not name it.
    #[error("add_bos_token is true: expected a bos_token_id with it, found none")]
    NoBosToAdd,
    /// An id to decode is beyond the vocabulary.
    #[error("token id {id} is not in the vocabulary of {vocab_size} tokens")]
    IdOutOfRange {
        /// The id.
        id: u32,
        /// Number of tokens.
        vocab_size: usize,
    },
    /// The merges could not be applied to a piece of text.
    #[error("encoding: {reason}")]
    Encode {
        /// The library's message.
        reason: String,
    },
    /// The text has more tokens than the caller allows. Encoding ended before they
    /// were counted.
    #[error("the text has more than {most} tokens")]
    TooManyTokens {
        /// The most tokens that it may have.
        most: usize,
    },
    /// The caller said to stop.
    #[error("encoding was stopped")]
    Stopped,
    /// The messages use every character of private use, so none is left to
    /// break up control tokens in them ([`chat::Guard`](crate::chat::Guard)).
    #[error("expected a character of private use to be left")]
    NoSentinel,
    /// No thread could be started.
    #[error("no thread to render a chat template on: {reason}")]
    NoThread {
        /// The system's message.
        reason: String,
    },
    /// A template does not parse, or failed while rendering.
    #[error("chat template{}: {reason}", at_line(.line))]
    Template {
        /// Line of the template, from 1.
        line: Option<usize>,
        /// What is wrong.
        reason: String,
    },
    /// A template called `raise_exception`, since it does not take these messages.
    #[error("chat template{} refuses the messages: {message}", at_line(.line))]
    TemplateRaised {
        /// Line of the template, from 1.
        line: Option<usize>,
        /// The template's message.
        message: String,
    },
    /// A template exceeded a bound.
    #[error("chat template{}: over the limit of {limit} {what}", at_line(.line))]
    TemplateLimit {
        /// Line of the template, from 1.
        line: Option<usize>,
        /// What is bounded.
        what: &'static str,
        /// The bound.
        limit: u64,
    },
}

fn quoted(name: &Option<String>) -> String {
    name.as_ref()
        .map_or_else(|| "missing".into(), |name| format!("{name:?}"))
}

fn at_line(line: &Option<usize>) -> String {
    line.map_or_else(String::new, |line| format!(", line {line}"))
}
