//! The description of a tokenizer as plain data, independent of the file that it comes
//! from.

use crate::{Error, Result};

/// The description of a tokenizer as a GGUF file has it under the keys
/// `tokenizer.ggml.*`.
#[derive(Debug, Clone, Default)]
pub struct TokenizerSpec {
    /// The GGUF key `tokenizer.ggml.model`: the tokenizer's algorithm. Only `gpt2`
    /// (byte-level BPE) is known.
    pub model: String,
    /// The GGUF key `tokenizer.ggml.pre`: the name of the split rule, which cuts a text
    /// into pieces before BPE merges tokens.
    pub pre: Option<String>,
    /// The GGUF key `tokenizer.ggml.tokens`: the text of each token, by id; in the
    /// byte-level alphabet for normal tokens, verbatim for control and user-defined
    /// ones.
    pub tokens: Vec<String>,
    /// The GGUF key `tokenizer.ggml.token_type`: GGUF's type number of each token
    /// ([`TokenKind`]); if missing, all tokens are normal.
    pub token_types: Option<Vec<i32>>,
    /// The GGUF key `tokenizer.ggml.merges`: the BPE merges, each as `left right`, the
    /// most important first.
    pub merges: Vec<String>,
    /// The GGUF key `tokenizer.ggml.bos_token_id`: the id of the start-of-text token.
    pub bos: Option<u32>,
    /// The GGUF key `tokenizer.ggml.eos_token_id`: the id of the end-of-text token.
    pub eos: Option<u32>,
    /// The GGUF key `tokenizer.ggml.eot_token_id`: the id of the end-of-turn token.
    pub eot: Option<u32>,
    /// The GGUF key `tokenizer.ggml.eom_token_id`: the id of the end-of-message token
    /// (a tool call follows).
    pub eom: Option<u32>,
    /// The GGUF key `tokenizer.ggml.unknown_token_id`: the id of the token for unknown
    /// text. Kept for the caller; the tokenizer never uses it, since byte-level BPE has
    /// no unknown text.
    pub unknown: Option<u32>,
    /// The GGUF key `tokenizer.ggml.padding_token_id`: the id of the padding token.
    /// Kept for the caller.
    pub padding: Option<u32>,
    /// The GGUF key `tokenizer.ggml.add_bos_token`: whether texts should start with the
    /// start token (bos). Encoding does not follow it by itself; see
    /// [`Tokenizer::add_bos`](crate::Tokenizer::add_bos).
    pub add_bos: bool,
    /// The GGUF key `tokenizer.ggml.add_eos_token`: whether training texts ended with
    /// the end-of-text token (eos). Encoding does not follow it by itself.
    pub add_eos: bool,
    /// Further token ids that end a generation, besides those of eos, eot and eom.
    pub extra_eog: Vec<u32>,
}

/// The type of a token in a vocabulary, as GGUF numbers the types.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TokenKind {
    /// Type 0 of a token in GGUF: not defined; treated as normal.
    Undefined,
    /// Type 1 of a token in GGUF: text in the byte-level alphabet.
    Normal,
    /// Type 2 of a token in GGUF: stands for text that the vocabulary lacks; treated as
    /// a control token.
    Unknown,
    /// Type 3 of a token in GGUF: a command to the model, such as the end of a turn.
    Control,
    /// Type 4 of a token in GGUF: added text that is matched verbatim before the split
    /// rule cuts the rest.
    UserDefined,
    /// Type 5 of a token in GGUF: reserved; treated as normal.
    Unused,
    /// Type 6 of a token in GGUF: one byte, written `<0xHH>`.
    Byte,
}

impl TokenKind {
    fn from_code(id: u32, code: i32) -> Result<Self> {
        Ok(match code {
            0 => Self::Undefined,
            1 => Self::Normal,
            2 => Self::Unknown,
            3 => Self::Control,
            4 => Self::UserDefined,
            5 => Self::Unused,
            6 => Self::Byte,
            found => return Err(Error::UnknownTokenType { id, found }),
        })
    }

    /// Returns whether a token of this type is a control or unknown token: hidden in
    /// output, and never made from plain text.
    pub fn is_control(self) -> bool {
        matches!(self, Self::Control | Self::Unknown)
    }
}

impl TokenizerSpec {
    /// Returns the type of every token, after checking that there are as many types as
    /// tokens and that GGUF defines each type's number.
    pub(crate) fn kinds(&self) -> Result<Vec<TokenKind>> {
        let count = self.tokens.len();
        if count == 0 {
            return Err(Error::EmptyVocabulary);
        }
        if u32::try_from(count).is_err() {
            return Err(Error::VocabularyTooLarge { found: count });
        }
        let Some(codes) = &self.token_types else {
            return Ok(vec![TokenKind::Normal; count]);
        };
        if codes.len() != count {
            return Err(Error::TokenTypeCount {
                expected: count,
                found: codes.len(),
            });
        }
        (0..)
            .zip(codes)
            .map(|(id, &code)| TokenKind::from_code(id, code))
            .collect()
    }

    /// Refuses ids of special tokens that are beyond the vocabulary, and `add_bos`
    /// without the id of a start token.
    pub(crate) fn check_ids(&self) -> Result<()> {
        let named = [
            ("bos_token_id", self.bos),
            ("eos_token_id", self.eos),
            ("eot_token_id", self.eot),
            ("eom_token_id", self.eom),
            ("unknown_token_id", self.unknown),
            ("padding_token_id", self.padding),
        ];
        if self.add_bos && self.bos.is_none() {
            return Err(Error::NoBosToAdd);
        }
        let named = named.into_iter().filter_map(|(name, id)| Some((name, id?)));
        let extra = self
            .extra_eog
            .iter()
            .map(|&id| ("an extra end-of-generation id", id));
        for (name, id) in named.chain(extra) {
            if id as usize >= self.tokens.len() {
                return Err(Error::SpecialIdOutOfRange {
                    name,
                    id,
                    vocab_size: self.tokens.len(),
                });
            }
        }
        Ok(())
    }
}
