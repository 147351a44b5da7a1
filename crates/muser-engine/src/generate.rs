//! [`generate`]: the generation loop. It takes a prompt and reports tokens and text as
//! they come.

use crate::stop::StopMatcher;
use crate::{Error, GenerateOptions, Sampler, Session, StopReason, SyncReport, Token};
use muser_ops::Backend;
use muser_text::{StreamDecoder, Tokenizer};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// A report of a running generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event<'a> {
    /// A token was chosen. An end-of-generation token is not reported.
    Token(Token),
    /// Text of the answer: whole characters, and no part of a stop string.
    Text(&'a str),
}

/// The result of a generation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Generation {
    /// The tokens chosen, without an end-of-generation token.
    pub tokens: Vec<Token>,
    /// The text without the header of the answer; empty for a model without a
    /// tokenizer.
    pub text: String,
    /// The reason of the end.
    pub reason: StopReason,
    /// How many tokens of the prompt were reused and evaluated.
    pub prompt: SyncReport,
    /// Time that the prompt took.
    pub prefill: Duration,
    /// Number of tokens evaluated after the prompt: all chosen ones but the last.
    pub decoded: usize,
    /// Time from the end of the prompt to the end of the generation.
    pub decode: Duration,
}

/// Continues `prompt` until an option, an end-of-generation token, a full context or
/// the flag `cancel` ends the generation. Calls `each` with every token and text as
/// soon as it is there.
///
/// A flag raised while the prompt is evaluated ends the generation without a
/// token. Afterwards the session holds the prompt and the answer but for its
/// last token; it has no logits if more than one token was chosen.
///
/// # Errors
/// Those of [`Session::sync`] and [`Sampler::sample`]; stop strings for a model
/// without a tokenizer.
pub fn generate<B: Backend>(
    session: &mut Session<B>,
    prompt: &[Token],
    sampler: &mut Sampler,
    options: &GenerateOptions,
    cancel: &AtomicBool,
    each: &mut dyn FnMut(Event<'_>),
) -> Result<Generation, Error> {
    let model = session.model().clone();
    let mut out = TextOut::new(model.tokenizer().ok(), options)?;
    let start = Instant::now();
    let mut generation = Generation {
        tokens: Vec::new(),
        text: String::new(),
        reason: StopReason::Cancelled,
        prompt: SyncReport::default(),
        prefill: Duration::ZERO,
        decoded: 0,
        decode: Duration::ZERO,
    };
    match session.sync_until(prompt, cancel) {
        Ok(report) => generation.prompt = report,
        Err(Error::Cancelled) => return Ok(generation),
        Err(e) => return Err(e),
    }
    generation.prefill = start.elapsed();
    let start = Instant::now();
    loop {
        if options
            .max_tokens
            .is_some_and(|n| generation.tokens.len() >= n)
        {
            generation.reason = StopReason::MaxTokens;
            break;
        }
        if cancel.load(Ordering::Relaxed) {
            break;
        }
        let token = match generation.tokens.get(generation.decoded) {
            None => sampler.sample(session.logits()?, session.tokens())?,
            Some(&last) => match session.push_and_choose(last, sampler) {
                Ok(token) => {
                    generation.decoded += 1;
                    token
                }
                Err(Error::ContextFull { needed, context }) => {
                    generation.reason = StopReason::ContextFull { needed, context };
                    break;
                }
                Err(e) => return Err(e),
            },
        };
        if model.is_end(token) {
            generation.reason = StopReason::EndOfGeneration(token);
            break;
        }
        generation.tokens.push(token);
        each(Event::Token(token));
        if let Some(stop) = out.token(token, &mut generation.text, each)? {
            generation.reason = StopReason::StopString(stop);
            break;
        }
    }
    out.finish(&generation.reason, &mut generation.text, each);
    generation.decode = start.elapsed();
    Ok(generation)
}

/// The longest header in tokens. After so many tokens without its end, the text is
/// taken for the answer.
const MAX_HEADER: usize = 32;

/// Turns tokens into text of the answer.
struct TextOut {
    decoder: Option<StreamDecoder>,
    matcher: StopMatcher,
    header: Header,
}

/// The header at the beginning of an answer.
struct Header {
    /// The token that ends it; `None` after it.
    end: Option<Token>,
    tokens: usize,
    text: String,
}

impl TextOut {
    fn new(tokenizer: Option<&Tokenizer>, options: &GenerateOptions) -> Result<Self, Error> {
        if tokenizer.is_none() && !options.stop.is_empty() {
            return Err(Error::NoTokenizer);
        }
        Ok(Self {
            decoder: tokenizer.map(|t| StreamDecoder::new(t, false)),
            matcher: StopMatcher::new(&options.stop)?,
            header: Header {
                end: options.header_end,
                tokens: 0,
                text: String::new(),
            },
        })
    }

    /// Adds the text that the token completes. Returns the stop string that ends the
    /// answer, if one does.
    fn token(
        &mut self,
        token: Token,
        all: &mut String,
        each: &mut dyn FnMut(Event<'_>),
    ) -> Result<Option<String>, Error> {
        let Some(decoder) = &mut self.decoder else {
            return Ok(None);
        };
        let text = decoder.push(token)?;
        let text = self.header.filter(token, text);
        let (text, stop) = self.matcher.push(&text);
        emit(&text, all, each);
        Ok(stop)
    }

    /// Adds the text that was held back, unless a stop string ended the answer.
    fn finish(&mut self, reason: &StopReason, all: &mut String, each: &mut dyn FnMut(Event<'_>)) {
        if matches!(reason, StopReason::StopString(_)) {
            return;
        }
        let held = self.matcher.finish();
        let decoder = self.decoder.as_mut();
        let rest = decoder.map_or_else(String::new, StreamDecoder::finish);
        let header = match reason {
            StopReason::EndOfGeneration(_) => self.header.finish(),
            StopReason::StopString(_)
            | StopReason::MaxTokens
            | StopReason::ContextFull { .. }
            | StopReason::Cancelled => self.header.cut(),
        };
        emit(&(held + &header + &rest), all, each);
    }
}

impl Header {
    /// Returns the part of a token's text that belongs to the answer.
    fn filter(&mut self, token: Token, text: String) -> String {
        let Some(end) = self.end else {
            return text;
        };
        self.tokens += 1;
        if token == end {
            self.end = None;
            self.text.clear();
            return String::new();
        }
        self.text.push_str(&text);
        if self.tokens < MAX_HEADER {
            return String::new();
        }
        self.finish()
    }

    /// Ends the header of an answer that was cut off. Returns its text if that cannot
    /// be the beginning of a header.
    fn cut(&mut self) -> String {
        let begun = self.text.trim_start();
        if begun.starts_with("to=") || "to=".starts_with(begun) {
            self.text.clear();
        }
        self.finish()
    }

    /// Ends the header and returns its text: it did not end as a header does, so it
    /// belongs to the answer.
    fn finish(&mut self) -> String {
        self.end = None;
        std::mem::take(&mut self.text)
    }
}

fn emit(text: &str, all: &mut String, each: &mut dyn FnMut(Event<'_>)) {
    if !text.is_empty() {
        all.push_str(text);
        each(Event::Text(text));
    }
}
