//! The generation loop: prompt in, tokens and text out as they come.

use crate::stop::StopMatcher;
use crate::{Error, GenerateOptions, Sampler, Session, StopReason, SyncReport, Token};
use muser_ops::Backend;
use muser_text::{StreamDecoder, Tokenizer};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// What a generation reports while it runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event<'a> {
    /// A token was chosen. The one that ends the generation is not reported.
    Token(Token),
    /// Text that is final: whole characters, no part of a stop string.
    Text(&'a str),
}

/// What a generation came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Generation {
    /// The tokens chosen, without the one that ended it.
    pub tokens: Vec<Token>,
    /// The text, without the answer's header; empty for a model without a
    /// tokenizer.
    pub text: String,
    /// Why it ended.
    pub reason: StopReason,
    /// What became of the prompt.
    pub prompt: SyncReport,
    /// Time until the prompt was evaluated.
    pub prefill: Duration,
    /// Tokens that went through the model after the prompt: all chosen ones
    /// but the last.
    pub decoded: usize,
    /// Time from there to the end.
    pub decode: Duration,
}

/// Continues `prompt` until an option, the model's own end, a full context or the
/// flag ends it; `each` hears of every token and text at once.
///
/// A flag raised while the prompt is evaluated ends the generation without a
/// token. Afterwards the session holds the prompt and the answer but for its
/// last token; it has no logits if more than one token was chosen.
///
/// # Errors
/// A prompt that is empty, unknown or too long; whatever
/// [`Sampler::sample`] refuses. Stop strings need a tokenizer.
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

/// The longest header in tokens: what goes on beyond is the answer itself.
const MAX_HEADER: usize = 32;

/// From tokens to text that may be shown.
struct TextOut {
    decoder: Option<StreamDecoder>,
    matcher: StopMatcher,
    header: Header,
}

/// Where an answer stands in its header.
struct Header {
    /// The token to come; `None` once the header is over.
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

    /// Adds what the token completes; the stop string that ends it, if one does.
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

    /// The text that was held back, unless it belongs to a stop string.
    fn finish(&mut self, reason: &StopReason, all: &mut String, each: &mut dyn FnMut(Event<'_>)) {
        if matches!(reason, StopReason::StopString(_)) {
            return;
        }
        let held = self.matcher.finish();
        let decoder = self.decoder.as_mut();
        let rest = decoder.map_or_else(String::new, StreamDecoder::finish);
        let header = match reason {
            StopReason::EndOfGeneration(_) => self.header.finish(),
            // Cut off: it may have become one.
            _ => self.header.cut(),
        };
        emit(&(held + &header + &rest), all, each);
    }
}

impl Header {
    /// What of a token's text belongs to the answer.
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

    /// What was taken for a header and could not have become one.
    fn cut(&mut self) -> String {
        let begun = self.text.trim_start();
        if begun.starts_with("to=") || "to=".starts_with(begun) {
            self.text.clear();
        }
        self.finish()
    }

    /// What was taken for a header and is none: it never ended.
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
