//! [`generate`], the generation loop, which takes a prompt and reports the answer's
//! tokens and text as they come.

use crate::{Error, GenerateOptions, Sampler, Session, StopReason, SyncReport, Token, Transcript};
use muser_ops::Backend;
use muser_text::chat::{Delta, Reader};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// What the generation loop reports while it runs: a token, or a text of the answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event<'a> {
    /// A token of the answer was chosen. An end-of-generation token is not reported.
    Token(Token),
    /// A text of the answer's content: whole characters, and no part of a stop string.
    Text(&'a str),
    /// A text of the reasoning before the answer, which is not part of its content.
    Reasoning(&'a str),
}

/// The result of a generation: the answer, why it ended, and how long it took.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Generation {
    /// The tokens of the answer, without an end-of-generation token.
    pub tokens: Vec<Token>,
    /// The content of the answer; empty for a model without a tokenizer.
    pub text: String,
    /// The reasoning before the answer's content.
    pub reasoning: String,
    /// Why the generation ended.
    pub reason: StopReason,
    /// How many of the prompt's tokens were evaluated, and how many reused from the
    /// cache.
    pub prompt: SyncReport,
    /// Time that the evaluation of the prompt took.
    pub prefill: Duration,
    /// Number of tokens evaluated after the prompt: all chosen ones but the last, which
    /// may be an end-of-generation token.
    pub decoded: usize,
    /// Time from the end of the prompt's evaluation to the end of the generation.
    pub decode: Duration,
}

/// Generates an answer to `prompt` until an option, an end-of-generation token, a full
/// context or the flag `cancel` ends it. Calls `each` with every token and text as soon
/// as it is there.
///
/// A cancel flag raised while the prompt is evaluated ends the generation without a
/// token. Otherwise the session holds the prompt and all chosen tokens but the last
/// afterwards; it has no logits if more than one token was chosen.
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
    /// Adds the reasoning and content of `delta` (what one more token brings) to the
    /// answer, and reports them to `each`.
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
