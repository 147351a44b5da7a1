//! [`generate`]: the generation loop. It takes a prompt and reports tokens and text as
//! they come.

use crate::{Error, GenerateOptions, Sampler, Session, StopReason, SyncReport, Token, Transcript};
use muser_ops::Backend;
use muser_text::chat::{Delta, Reader};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// A report of a running generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event<'a> {
    /// A token was chosen. An end-of-generation token is not reported.
    Token(Token),
    /// Text of the answer: whole characters, and no part of a stop string.
    Text(&'a str),
    /// Reasoning before the answer, which is not part of its content.
    Reasoning(&'a str),
}

/// The result of a generation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Generation {
    /// The tokens chosen, without an end-of-generation token.
    pub tokens: Vec<Token>,
    /// The content of the answer; empty for a model without a tokenizer.
    pub text: String,
    /// The reasoning before it.
    pub reasoning: String,
    /// Why it ended.
    pub reason: StopReason,
    /// How much of the prompt was evaluated.
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
    let reader = Reader::new(options.format, None);
    let mut transcript = Transcript::new(model.codec(), reader, &options.stop, false)?;
    let start = Instant::now();
    let mut generation = Generation {
        tokens: Vec::new(),
        text: String::new(),
        reasoning: String::new(),
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
        let mut delta = Delta::default();
        let stop = transcript.push(token, &mut delta)?;
        generation.add(&delta, each);
        if let Some(stop) = stop {
            generation.reason = StopReason::StopString(stop);
            break;
        }
    }
    let mut delta = Delta::default();
    let complete = matches!(generation.reason, StopReason::EndOfGeneration(_));
    transcript.finish(!complete, &mut delta);
    generation.add(&delta, each);
    generation.decode = start.elapsed();
    Ok(generation)
}

impl Generation {
    /// Adds text to the answer and reports it.
    fn add(&mut self, delta: &Delta, each: &mut dyn FnMut(Event<'_>)) {
        if !delta.reasoning.is_empty() {
            self.reasoning.push_str(&delta.reasoning);
            each(Event::Reasoning(&delta.reasoning));
        }
        if !delta.content.is_empty() {
            self.text.push_str(&delta.content);
            each(Event::Text(&delta.content));
        }
    }
}
