//! Prepares the model's vocabulary for the grammar library, and compiles grammars over
//! it, in the server and in worker processes.

use llguidance::api::{ParserLimits, TopLevelGrammar};
use llguidance::toktrie::{TokEnv, TokRxInfo, TokTrie, TokenizerEnv};
use llguidance::{Matcher, ParserFactory};
use muser_engine::Token;
use muser_text::Tokenizer;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

/// How many token masks a worker computes on trial, with random tokens in between: a
/// grammar too costly for an answer is refused before the answer begins.
const PROBES: usize = 24;

/// The bytes of all tokens of a model, and which tokens end an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Vocabulary {
    ends: Vec<Token>,
    words: Vec<Vec<u8>>,
}

/// The grammar library's view of the tokenizer, made of its own trie of tokens: token
/// masks need no real tokenizer.
struct Trie(TokTrie);

impl TokenizerEnv for Trie {
    fn tok_trie(&self) -> &TokTrie {
        &self.0
    }

    fn tokenize_bytes(&self, bytes: &[u8]) -> Vec<Token> {
        self.0.greedy_tokenize(bytes)
    }
}

impl Vocabulary {
    #[cfg(test)]
    pub(super) fn new(ends: Vec<Token>, words: Vec<Vec<u8>>) -> Self {
        Self { ends, words }
    }

    /// Reads the vocabulary of a tokenizer; `None` if no token of it ends an answer.
    pub(super) fn of(tokenizer: &Tokenizer) -> Option<Self> {
        let size = u32::try_from(tokenizer.vocab_size()).ok()?;
        let ends: Vec<Token> = tokenizer.eog().iter().collect();
        if ends.is_empty() {
            return None;
        }
        let word = |id: Token| {
            let bytes = tokenizer.token_bytes(id).unwrap_or_default();
            match tokenizer.is_control(id) {
                true => [&[TokTrie::SPECIAL_TOKEN_MARKER], bytes].concat(),
                false => bytes.to_vec(),
            }
        };
        let words = (0..size).map(word).collect();
        Some(Self { ends, words })
    }

    /// Encodes the vocabulary as the bytes that a worker process reads.
    pub(super) fn to_bytes(&self) -> Vec<u8> {
        let mut out = Vec::new();
        let count = |n: usize| u32::try_from(n).unwrap_or(u32::MAX).to_le_bytes();
        out.extend(count(self.ends.len()));
        for end in &self.ends {
            out.extend(end.to_le_bytes());
        }
        for word in &self.words {
            out.extend(count(word.len()));
            out.extend(word);
        }
        out
    }

    /// Decodes the vocabulary that a server sent to its worker process; `None` if the
    /// bytes are cut off.
    pub(super) fn from_bytes(mut bytes: &[u8]) -> Option<Self> {
        let number = |bytes: &mut &[u8]| {
            let (head, rest) = bytes.split_first_chunk::<4>()?;
            *bytes = rest;
            Some(u32::from_le_bytes(*head))
        };
        let mut ends = Vec::new();
        for _ in 0..number(&mut bytes)? {
            ends.push(number(&mut bytes)?);
        }
        let mut words = Vec::new();
        while !bytes.is_empty() {
            let length = usize::try_from(number(&mut bytes)?).ok()?;
            let (word, rest) = bytes.split_at_checked(length)?;
            words.push(word.to_vec());
            bytes = rest;
        }
        Some(Self { ends, words })
    }

    /// Creates the grammar library's factory, which compiles grammars over this
    /// vocabulary.
    ///
    /// # Errors
    /// The library cannot take it: a token of 64 KiB, which a file may have.
    pub(super) fn factory(&self) -> Result<ParserFactory, String> {
        let size = u32::try_from(self.words.len()).unwrap_or(u32::MAX);
        let end = self.ends.first().copied().unwrap_or_default();
        let made = llguidance::panic_utils::catch_unwind(AssertUnwindSafe(|| {
            let trie = TokTrie::from(&TokRxInfo::new(size, end), &self.words);
            let env: TokEnv = Arc::new(Trie(trie.with_eos_tokens(&self.ends)));
            ParserFactory::new_simple(&env)
        }));
        let mut factory = made.map_err(|e| first_line(&e.to_string()))?;
        factory.quiet();
        *factory.limits_mut() = ParserLimits {
            verbose_errors: false,
            // Bounds the cost of one token mask to tens of milliseconds.
            step_lexer_fuel: 500_000,
            max_items_in_row: 4000,
            ..ParserLimits::default()
        };
        Ok(factory)
    }
}

/// Compiles a grammar's text into a matcher, which computes token masks.
///
/// # Errors
/// The library's reason.
pub(super) fn compile(factory: &ParserFactory, lark: &str) -> Result<Matcher, String> {
    let grammar = TopLevelGrammar::from_lark(lark.to_owned());
    let matcher = Matcher::new(factory.create_parser(grammar));
    match matcher.get_error() {
        None => Ok(matcher.into_cancellable()),
        Some(e) => Err(first_line(&e)),
    }
}

/// Compiles a grammar and tries it: computes token masks and consumes random allowed
/// tokens, [`PROBES`] times at most.
///
/// # Errors
/// Why it cannot be decoded.
pub(super) fn probe(factory: &ParserFactory, lark: &str) -> Result<(), String> {
    let mut matcher = compile(factory, lark)?;
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    for _ in 0..PROBES {
        if matcher.is_stopped() {
            break;
        }
        let mask = matcher.compute_mask_or_eos();
        let mask = mask.map_err(|e| first_line(&e.to_string()))?;
        let allowed = mask.num_set();
        if allowed == 0 {
            return Err("no token can come next".to_owned());
        }
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        let which = (state >> 33) as usize % allowed;
        let Some(token) = mask.iter().nth(which) else {
            break;
        };
        let pushed = matcher.consume_token(token);
        pushed.map_err(|e| first_line(&e.to_string()))?;
    }
    Ok(())
}

/// Returns the first line of an error that is not empty, cut at 300 characters: the
/// grammar library appends its state to its errors.
pub(super) fn first_line(text: &str) -> String {
    let mut lines = text.lines().map(str::trim).filter(|l| !l.is_empty());
    let line = lines.next().unwrap_or("no reason was given");
    line.chars().take(300).collect()
}
