//! A tokenizer's description, as plain data.

use crate::{Error, Result};

/// A tokenizer as a GGUF file describes it (`tokenizer.ggml.*`).
#[derive(Debug, Clone, Default)]
pub struct TokenizerSpec {
    /// `model`: the algorithm. Only `gpt2` (byte-level BPE) is known.
    pub model: String,
    /// `pre`: the name of the split rule.
    pub pre: Option<String>,
    /// `tokens`: the text of each id, in the byte-level alphabet for normal
    /// tokens, verbatim for control and user-defined ones.
    pub tokens: Vec<String>,
    /// `token_type`: a type for each token ([`TokenKind`]); all normal if missing.
    pub token_types: Option<Vec<i32>>,
    /// `merges`: `left right`, the most important first.
    pub merges: Vec<String>,
    /// `bos_token_id`: start of a text.
    pub bos: Option<u32>,
    /// `eos_token_id`: end of a text.
    pub eos: Option<u32>,
    /// `eot_token_id`: end of a turn.
    pub eot: Option<u32>,
    /// `eom_token_id`: end of a message (a tool call follows).
    pub eom: Option<u32>,
    /// `unknown_token_id`. Kept for the caller; bytes are never unknown.
    pub unknown: Option<u32>,
    /// `padding_token_id`. Kept for the caller.
    pub padding: Option<u32>,
    /// `add_bos_token`: whether texts should start with `bos`. Encoding does not
    /// follow it by itself; see [`Tokenizer::add_bos`](crate::Tokenizer::add_bos).
    pub add_bos: bool,
    /// `add_eos_token`: whether training texts ended with `eos`. Encoding does not
    /// follow it either.
    pub add_eos: bool,
    /// Further ids that end a generation.
    pub extra_eog: Vec<u32>,
}

/// The type of a token, as GGUF numbers them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TokenKind {
    /// 0: not defined; treated as normal.
    Undefined,
    /// 1: text in the byte-level alphabet.
    Normal,
    /// 2: stands for text that the vocabulary lacks; treated as control.
    Unknown,
    /// 3: a command to the model, such as the end of a turn.
    Control,
    /// 4: added text that is matched verbatim before the split.
    UserDefined,
    /// 5: reserved; treated as normal.
    Unused,
    /// 6: one byte, written `<0xHH>`.
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

    /// Whether the token is a control or unknown token: hidden in output, and never
    /// made from plain text.
    pub fn is_control(self) -> bool {
        matches!(self, Self::Control | Self::Unknown)
    }
}

impl TokenizerSpec {
    /// Returns the type of every token after checking their number and codes.
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

    /// Refuses special ids beyond the vocabulary, and `add_bos` without a start
    /// token.
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
