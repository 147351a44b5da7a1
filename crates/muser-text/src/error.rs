//! Errors of tokenizer vocabularies, texts to encode and chat templates.

/// An error of the tokenizer or of a chat template.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// `tokenizer.ggml.model` of the file names a tokenizer algorithm that is not
    /// supported.
    #[error("tokenizer model {found:?} is not supported; known: \"gpt2\" (byte-level BPE)")]
    UnknownModel {
        /// The tokenizer algorithm that the file names.
        found: String,
    },
    /// `tokenizer.ggml.pre` of the file is missing or names a split rule that is not
    /// known.
    #[error("tokenizer.ggml.pre is {}; known split rules: {known}; a wrong rule gives wrong tokens without a sign, so none is guessed", quoted(.found))]
    UnknownSplitRule {
        /// The split rule that the file names; `None` if it names none.
        found: Option<String>,
        /// The names of the split rules that are known, separated by commas.
        known: String,
    },
    /// The tokenizer's vocabulary has no tokens.
    #[error("the vocabulary is empty")]
    EmptyVocabulary,
    /// The vocabulary has more tokens than ids of 32 bits can number.
    #[error("the vocabulary has {found} tokens; ids have 32 bits")]
    VocabularyTooLarge {
        /// The number of tokens in the vocabulary.
        found: usize,
    },
    /// Two tokens of the vocabulary have the same text.
    #[error("token {text:?} is in the vocabulary twice, as {first} and {second}")]
    DuplicateToken {
        /// The text that both tokens have.
        text: String,
        /// The lower id of the two tokens with the same text.
        first: u32,
        /// The higher id of the two tokens with the same text.
        second: u32,
    },
    /// The vocabulary's list of token types and its list of tokens differ in length.
    #[error("token_type has {found} entries, the vocabulary {expected}")]
    TokenTypeCount {
        /// The number of tokens, which the list of token types should match.
        expected: usize,
        /// The number of entries in the list of token types.
        found: usize,
    },
    /// A token has a type number that GGUF does not define.
    #[error("token {id} has type {found}; types are 0 to 6")]
    UnknownTokenType {
        /// The id of the token whose type is not defined.
        id: u32,
        /// The token's type number in the file.
        found: i32,
    },
    /// A token of type byte has a text other than `<0xHH>`.
    #[error("token {id} is of type byte, but its text is {text:?}, not <0xHH>")]
    MalformedByteToken {
        /// The id of the token of type byte.
        id: u32,
        /// The text of the token of type byte, which is not `<0xHH>`.
        text: String,
    },
    /// The id of a special token, such as bos or eos, is not in the vocabulary.
    #[error("{name} is {id}, the vocabulary has {vocab_size} tokens")]
    SpecialIdOutOfRange {
        /// Which special token's id: its metadata key, such as `bos_token_id`.
        name: &'static str,
        /// The special token's id in the file.
        id: u32,
        /// The number of tokens in the vocabulary.
        vocab_size: usize,
    },
    /// A BPE merge of the file cannot be applied.
    #[error("merge {index} ({merge:?}): {reason}")]
    Merge {
        /// The position of the refused merge in the file's list of merges, from 0.
        index: usize,
        /// The refused merge's line as it is in the file.
        merge: String,
        /// What is wrong with the merge.
        reason: String,
    },
    /// A library refused data of the tokenizer that had passed the checks of this
    /// crate.
    #[error("building {what}: {reason}")]
    Build {
        /// What was being built from the data, such as the merge table.
        what: &'static str,
        /// The library's message that says why it refused.
        reason: String,
    },
    /// The text to encode has a byte for which the vocabulary has no token.
    #[error("byte 0x{byte:02x} at offset {offset} of the text: the vocabulary has no token for it")]
    MissingByteToken {
        /// The byte of the text for which the vocabulary has no token.
        byte: u8,
        /// The byte's offset in the text to encode.
        offset: usize,
    },
    /// The caller asked for a start token (bos) before the text, but the vocabulary
    /// names none.
    #[error("add_bos was asked for, but the vocabulary names no bos token")]
    NoBos,
    /// The file says that texts begin with a start token (bos), but names no such
    /// token.
    #[error("add_bos_token is true: expected a bos_token_id with it, found none")]
    NoBosToAdd,
    /// A token id to decode is beyond the vocabulary.
    #[error("token id {id} is not in the vocabulary of {vocab_size} tokens")]
    IdOutOfRange {
        /// The token id that is beyond the vocabulary.
        id: u32,
        /// The number of tokens in the vocabulary.
        vocab_size: usize,
    },
    /// The BPE merges could not be applied to a piece of the text to encode.
    #[error("encoding: {reason}")]
    Encode {
        /// The BPE library's message.
        reason: String,
    },
    /// The text to encode has more tokens than the caller allows. Encoding ended before
    /// all of them were counted.
    #[error("the text has more than {most} tokens")]
    TooManyTokens {
        /// The most tokens that the text to encode may have.
        most: usize,
    },
    /// The caller's stop function ended the encoding of a text.
    #[error("encoding was stopped")]
    Stopped,
    /// The messages and the control tokens use every character of Unicode's private use
    /// area, so none is left to break up control tokens in the messages
    /// ([`chat::Guard`](crate::chat::Guard)).
    #[error("expected a character of private use to be left")]
    NoSentinel,
    /// The thread on which a chat template is compiled and rendered could not be
    /// started.
    #[error("no thread to render a chat template on: {reason}")]
    NoThread {
        /// The operating system's message that says why no thread was started.
        reason: String,
    },
    /// A chat template does not parse, or failed while rendering.
    #[error("chat template{}: {reason}", at_line(.line))]
    Template {
        /// Line of the chat template at which it failed, from 1; `None` if not known.
        line: Option<usize>,
        /// What is wrong with the chat template.
        reason: String,
    },
    /// A chat template called `raise_exception`, since it does not take these messages.
    #[error("chat template{} refuses the messages: {message}", at_line(.line))]
    TemplateRaised {
        /// Line of the chat template that called `raise_exception`, from 1; `None` if
        /// not known.
        line: Option<usize>,
        /// The message that the chat template gave to `raise_exception`.
        message: String,
    },
    /// A chat template exceeded a bound on its length, its steps, its values or its
    /// output.
    #[error("chat template{}: over the limit of {limit} {what}", at_line(.line))]
    TemplateLimit {
        /// Line of the chat template at which it exceeded the bound, from 1; `None` if
        /// not known.
        line: Option<usize>,
        /// What is bounded, such as `steps` or `bytes of output`.
        what: &'static str,
        /// The bound that the chat template exceeded, in the unit that `what` names.
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
