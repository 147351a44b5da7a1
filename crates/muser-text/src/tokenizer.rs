//! Byte-level BPE, which turns text into token ids and back.

use std::collections::HashMap;
use std::sync::Arc;

use tokenizers::Model as _;
use tokenizers::models::bpe::{BPE, Merges, Vocab};

use crate::bytes::{char_of, push_decoded};
use crate::special::{Fragment, SpecialSet};
use crate::split::SplitRule;
use crate::{Error, Result, TokenKind, TokenizerSpec};

/// What the text of a special token, such as `<|eot|>`, means where it occurs in a text
/// to encode.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Special {
    /// Encodes the text of a control token as plain text: a user who writes `<|eot|>`
    /// gets the letters, never the control token. User-defined tokens are text and are
    /// matched all the same.
    #[default]
    Plain,
    /// Encodes the text of a special token, such as `<|eot|>`, as the token itself: for
    /// prompts that a template or an operator wrote.
    Parse,
}

/// Number of bytes of text that the tokenizer encodes between two calls of the caller's
/// `stop` function, which may end the encoding.
const STRIDE: usize = 64 << 10;

/// How the tokenizer encodes a text: what special tokens in it mean, and whether a
/// start token (bos) comes first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct EncodeOptions {
    /// What the text of a special token, such as `<|eot|>`, means in the text to
    /// encode.
    pub special: Special,
    /// Whether the tokens start with the start token (bos), even if the text itself
    /// starts with one. [`Tokenizer::add_bos`] says whether the model's file asks for
    /// it.
    pub add_bos: bool,
}

/// The ids of the tokens that end a generation: end of text (eos), of a turn (eot) and
/// of a message (eom) if the file names them, and those that
/// [`TokenizerSpec::extra_eog`] adds.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct EndOfGeneration(Vec<u32>);

impl EndOfGeneration {
    fn of(spec: &TokenizerSpec) -> Self {
        let named = [spec.eos, spec.eot, spec.eom];
        let mut ids: Vec<u32> = named.into_iter().flatten().collect();
        ids.extend(&spec.extra_eog);
        ids.sort_unstable();
        ids.dedup();
        Self(ids)
    }

    /// Returns whether the token `id` ends a generation.
    pub fn contains(&self, id: u32) -> bool {
        self.0.binary_search(&id).is_ok()
    }

    /// Returns the ids of the tokens that end a generation, ascending.
    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        self.0.iter().copied()
    }
}

/// A tokenizer (byte-level BPE) with its vocabulary. Cloning is cheap; clones share the
/// vocabulary.
#[derive(Debug, Clone)]
pub struct Tokenizer(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    bpe: BPE,
    split: SplitRule,
    /// The special tokens that encoding finds in a text when it parses special tokens:
    /// control, unknown and user-defined ones.
    parsed: SpecialSet,
    /// The special tokens that encoding finds in every text, also in plain text: the
    /// user-defined ones.
    plain: SpecialSet,
    /// For each byte value, whether the vocabulary has a token for it.
    has_byte: [bool; 256],
    tokens: Vec<String>,
    kinds: Vec<TokenKind>,
    /// The vocabulary's token ids in the order of their texts, so that the token of a
    /// text is found by binary search without a copy of the texts.
    by_text: Vec<u32>,
    /// The bytes of all tokens of the vocabulary, one token after the other; `ends`
    /// says where each one ends.
    bytes: Vec<u8>,
    ends: Vec<usize>,
    /// Length in bytes of the vocabulary's longest token, at least 1.
    longest: usize,
    eog: EndOfGeneration,
    bos: Option<u32>,
    eos: Option<u32>,
    eot: Option<u32>,
    eom: Option<u32>,
    unknown: Option<u32>,
    padding: Option<u32>,
    add_bos: bool,
    add_eos: bool,
}

impl Tokenizer {
    /// Checks a tokenizer's description and builds the tokenizer from it.
    ///
    /// # Errors
    /// Anything in the description that is unknown, out of range, a duplicate, or
    /// in contradiction to the rest, by its name.
    pub fn new(spec: TokenizerSpec) -> Result<Self> {
        if spec.model != "gpt2" {
            return Err(Error::UnknownModel { found: spec.model });
        }
        let split = SplitRule::by_name(spec.pre.as_deref())?;
        let kinds = spec.kinds()?;
        spec.check_ids()?;
        let by_text = sorted_by_text(&spec.tokens)?;
        let bpe = build_bpe(&spec, &kinds)?;
        let has_byte = std::array::from_fn(|byte| {
            bpe.token_to_id(char_of(byte as u8).encode_utf8(&mut [0; 4]))
                .is_some()
        });
        let (bytes, ends) = decode_all(&spec.tokens, &kinds)?;

        let of_kind = |wanted: fn(TokenKind) -> bool| {
            let tokens = (0..).zip(spec.tokens.iter().zip(&kinds));
            SpecialSet::new(
                tokens
                    .filter(move |(_, (_, kind))| wanted(**kind))
                    .map(|(id, (text, _))| (id, text.clone())),
            )
        };
        let parsed = of_kind(|kind| kind.is_control() || kind == TokenKind::UserDefined)?;
        let plain = of_kind(|kind| kind == TokenKind::UserDefined)?;

        Ok(Self(Arc::new(Inner {
            bpe,
            split,
            parsed,
            plain,
            has_byte,
            longest: longest(&ends).max(1),
            eog: EndOfGeneration::of(&spec),
            tokens: spec.tokens,
            kinds,
            by_text,
            bytes,
            ends,
            bos: spec.bos,
            eos: spec.eos,
            eot: spec.eot,
            eom: spec.eom,
            unknown: spec.unknown,
            padding: spec.padding,
            add_bos: spec.add_bos,
            add_eos: spec.add_eos,
        })))
    }

    /// Encodes `text` as token ids. No end-of-text token (eos) is added, even if the
    /// file asks for one ([`Tokenizer::add_eos`]), since a prompt is to be continued.
    ///
    /// # Errors
    /// A byte without a token (it is never dropped), or `add_bos` with a vocabulary
    /// that names no bos.
    pub fn encode(&self, text: &str, opts: EncodeOptions) -> Result<Vec<u32>> {
        self.encode_within(text, opts, usize::MAX, &|| false)
    }

    /// Encodes `text` as token ids like [`Tokenizer::encode`], but refuses a text of
    /// more than `most` tokens, and gives up when `stop` returns true. A text that is
    /// too long for `most` tokens in any case is refused without being read.
    ///
    /// # Errors
    /// As [`Tokenizer::encode`]; [`Error::TooManyTokens`], [`Error::Stopped`].
    pub fn encode_within(
        &self,
        text: &str,
        opts: EncodeOptions,
        most: usize,
        stop: &dyn Fn() -> bool,
    ) -> Result<Vec<u32>> {
        let too_many = || Error::TooManyTokens { most };
        if text.len() > most.saturating_mul(self.0.longest) {
            return Err(too_many());
        }
        let mut ids = Vec::with_capacity((text.len() / 4 + 2).min(most.saturating_add(1)));
        if opts.add_bos {
            ids.push(self.0.bos.ok_or(Error::NoBos)?);
        }
        let special = match opts.special {
            Special::Parse => &self.0.parsed,
            Special::Plain => &self.0.plain,
        };
        let mut piece_text = String::new();
        let mut since = 0;
        for fragment in special.partition(text) {
            if ids.len() > most {
                return Err(too_many());
            }
            let fragment = match fragment {
                Fragment::Token(id) => {
                    ids.push(id);
                    continue;
                }
                Fragment::Text(fragment) => fragment,
            };
            self.check_bytes(text, fragment)?;
            for piece in self.0.split.pieces(fragment) {
                if ids.len() > most {
                    return Err(too_many());
                }
                since += piece.len();
                if since >= STRIDE {
                    since = 0;
                    if stop() {
                        return Err(Error::Stopped);
                    }
                }
                piece_text.clear();
                piece_text.extend(piece.bytes().map(char_of));
                let tokens = self
                    .0
                    .bpe
                    .tokenize(&piece_text)
                    .map_err(|error| Error::Encode {
                        reason: error.to_string(),
                    })?;
                ids.extend(tokens.iter().map(|token| token.id));
            }
        }
        if ids.len() > most {
            return Err(too_many());
        }
        Ok(ids)
    }

    /// Refuses a text with a byte for which the vocabulary has no token: applying the
    /// merges would skip such a byte in silence.
    fn check_bytes(&self, text: &str, fragment: &str) -> Result<()> {
        let Some(at) = fragment
            .bytes()
            .position(|byte| !self.0.has_byte[usize::from(byte)])
        else {
            return Ok(());
        };
        Err(Error::MissingByteToken {
            byte: fragment.as_bytes()[at],
            offset: fragment.as_ptr() as usize - text.as_ptr() as usize + at,
        })
    }

    /// Decodes token ids to a text. Bytes that are not UTF-8 become U+FFFD. Control and
    /// unknown tokens appear only with `show_special`, as the vocabulary writes them.
    ///
    /// # Errors
    /// An id beyond the vocabulary.
    pub fn decode(&self, ids: &[u32], show_special: bool) -> Result<String> {
        let mut bytes = Vec::with_capacity(ids.len().saturating_mul(4));
        for &id in ids {
            bytes.extend_from_slice(self.visible_bytes(id, show_special)?);
        }
        Ok(String::from_utf8(bytes)
            .unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned()))
    }

    /// Returns the bytes that the token `id` adds to a decoded text: none for a control
    /// token unless `show_special` is set.
    pub(crate) fn visible_bytes(&self, id: u32, show_special: bool) -> Result<&[u8]> {
        let bytes = self.token_bytes(id).ok_or(Error::IdOutOfRange {
            id,
            vocab_size: self.vocab_size(),
        })?;
        Ok(if self.is_control(id) && !show_special {
            &[]
        } else {
            bytes
        })
    }

    /// Returns the bytes that the token `id` stands for, not always whole characters;
    /// for a control token, its text in the vocabulary. `None` for an id beyond the
    /// vocabulary.
    pub fn token_bytes(&self, id: u32) -> Option<&[u8]> {
        let index = usize::try_from(id).ok()?;
        let end = *self.0.ends.get(index)?;
        let start = index.checked_sub(1).map_or(0, |before| self.0.ends[before]);
        Some(&self.0.bytes[start..end])
    }

    /// Returns the text of the token `id` as the vocabulary writes it: in the
    /// byte-level alphabet, or verbatim for a control or user-defined token.
    pub fn token_text(&self, id: u32) -> Option<&str> {
        self.0
            .tokens
            .get(usize::try_from(id).ok()?)
            .map(String::as_str)
    }

    /// Returns the type of the token `id` (normal, control, byte, …); `None` for an id
    /// beyond the vocabulary.
    pub fn token_kind(&self, id: u32) -> Option<TokenKind> {
        self.0.kinds.get(usize::try_from(id).ok()?).copied()
    }

    /// Returns whether the token `id` is a control or unknown token, which decoding
    /// hides unless asked to show it.
    pub fn is_control(&self, id: u32) -> bool {
        self.token_kind(id).is_some_and(TokenKind::is_control)
    }

    /// Returns the id of the token whose text in the vocabulary is `text`.
    pub fn id_of(&self, text: &str) -> Option<u32> {
        let tokens = &self.0.tokens;
        let by_text = &self.0.by_text;
        let place = by_text.binary_search_by(|&id| tokens[id as usize].as_str().cmp(text));
        place.ok().map(|place| by_text[place])
    }

    /// Returns the length in bytes of the vocabulary's longest token.
    pub fn longest_token(&self) -> usize {
        self.0.longest
    }

    /// Returns the number of tokens in the vocabulary.
    pub fn vocab_size(&self) -> usize {
        self.0.tokens.len()
    }

    /// Returns the ids of the tokens that end a generation.
    pub fn eog(&self) -> &EndOfGeneration {
        &self.0.eog
    }

    /// Returns the id of the start-of-text token (bos), if the model's file names one.
    pub fn bos(&self) -> Option<u32> {
        self.0.bos
    }

    /// Returns the id of the end-of-text token (eos), if the model's file names one.
    pub fn eos(&self) -> Option<u32> {
        self.0.eos
    }

    /// Returns the id of the end-of-turn token (eot), if the model's file names one.
    pub fn eot(&self) -> Option<u32> {
        self.0.eot
    }

    /// Returns the id of the end-of-message token (eom), if the model's file names one.
    pub fn eom(&self) -> Option<u32> {
        self.0.eom
    }

    /// Returns the id of the token for unknown text, if the model's file names one.
    pub fn unknown(&self) -> Option<u32> {
        self.0.unknown
    }

    /// Returns the id of the padding token, if the model's file names one.
    pub fn padding(&self) -> Option<u32> {
        self.0.padding
    }

    /// Returns whether the model's file asks that texts start with the start token
    /// (bos).
    pub fn add_bos(&self) -> bool {
        self.0.add_bos
    }

    /// Returns whether the model's file asks that texts end with the end-of-text token
    /// (eos).
    pub fn add_eos(&self) -> bool {
        self.0.add_eos
    }
}

/// Returns the longest token's length in bytes, given where each token ends in the
/// bytes of all tokens.
fn longest(ends: &[usize]) -> usize {
    let starts = std::iter::once(&0).chain(ends);
    let lengths = starts.zip(ends).map(|(start, end)| end - start);
    lengths.max().unwrap_or(0)
}

fn id_of_index(index: usize) -> u32 {
    u32::try_from(index).expect("the number of tokens fits 32 bits: checked with the types")
}

/// Returns the token ids in the order of the tokens' texts; refuses a text that occurs
/// twice. Empty texts are left out: files pad with them, and nobody looks one up.
fn sorted_by_text(tokens: &[String]) -> Result<Vec<u32>> {
    let filled = (0..tokens.len()).filter(|&index| !tokens[index].is_empty());
    let mut ids: Vec<u32> = filled.map(id_of_index).collect();
    ids.sort_unstable_by_key(|&id| (tokens[id as usize].as_str(), id));
    for pair in ids.windows(2) {
        if tokens[pair[0] as usize] == tokens[pair[1] as usize] {
            return Err(Error::DuplicateToken {
                text: tokens[pair[0] as usize].clone(),
                first: pair[0],
                second: pair[1],
            });
        }
    }
    Ok(ids)
}

/// Builds the BPE merge table over all tokens except control and unknown ones, so that
/// neither a text nor a merge can make one of those.
fn build_bpe(spec: &TokenizerSpec, kinds: &[TokenKind]) -> Result<BPE> {
    let mut vocab = Vocab::with_capacity(spec.tokens.len());
    for (index, (text, kind)) in spec.tokens.iter().zip(kinds).enumerate() {
        if !kind.is_control() && !text.is_empty() {
            vocab.insert(text.clone(), id_of_index(index));
        }
    }
    let merges = split_merges(&spec.merges, &vocab)?;
    BPE::builder()
        .vocab_and_merges(vocab, merges)
        .build()
        .map_err(|error| Error::Build {
            what: "the merge table",
            reason: error.to_string(),
        })
}

fn split_merges(merges: &[String], vocab: &Vocab) -> Result<Merges> {
    let mut seen = HashMap::with_capacity(merges.len());
    let mut joined = String::new();
    let mut pairs = Merges::with_capacity(merges.len());
    for (index, merge) in merges.iter().enumerate() {
        let refuse = |reason: String| Error::Merge {
            index,
            merge: merge.clone(),
            reason,
        };
        let id = |text: &str| {
            let missing = || {
                refuse(format!(
                    "{text:?} is not among the tokens that text can become"
                ))
            };
            vocab.get(text).copied().ok_or_else(missing)
        };
        let (left, right) = merge
            .split_once(' ')
            .filter(|(left, right)| !left.is_empty() && !right.is_empty())
            .ok_or_else(|| refuse("expected two tokens with a space between them".into()))?;
        joined.clear();
        joined.push_str(left);
        joined.push_str(right);
        let pair = (id(left)?, id(right)?);
        id(&joined)?;
        if let Some(first) = seen.insert(pair, index) {
            return Err(refuse(format!("the same as merge {first}")));
        }
        pairs.push((left.to_owned(), right.to_owned()));
    }
    Ok(pairs)
}

/// Returns the bytes of all tokens, one token after the other, and where each token
/// ends.
fn decode_all(tokens: &[String], kinds: &[TokenKind]) -> Result<(Vec<u8>, Vec<usize>)> {
    let mut bytes = Vec::with_capacity(tokens.iter().map(String::len).sum());
    let mut ends = Vec::with_capacity(tokens.len());
    for (index, (text, kind)) in tokens.iter().zip(kinds).enumerate() {
        match kind {
            TokenKind::Control | TokenKind::Unknown | TokenKind::UserDefined => {
                bytes.extend_from_slice(text.as_bytes());
            }
            TokenKind::Byte => {
                bytes.push(byte_token(text).ok_or_else(|| Error::MalformedByteToken {
                    id: id_of_index(index),
                    text: text.clone(),
                })?)
            }
            TokenKind::Normal | TokenKind::Undefined | TokenKind::Unused => {
                push_decoded(text, &mut bytes);
            }
        }
        ends.push(bytes.len());
    }
    Ok((bytes, ends))
}

/// Returns the byte that a byte token's text, `<0xHH>`, stands for; `None` for any
/// other text.
fn byte_token(text: &str) -> Option<u8> {
    let digits = text.strip_prefix("<0x")?.strip_suffix('>')?;
    let hex = digits.len() == 2 && digits.bytes().all(|digit| digit.is_ascii_hexdigit());
    hex.then(|| u8::from_str_radix(digits, 16).ok())?
}
