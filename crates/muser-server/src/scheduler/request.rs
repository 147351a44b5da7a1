//! The requests that HTTP handlers submit to the scheduler, and the events that it sends
//! back.

use crate::grammar::Grammar;
use muser_engine::{SamplingParams, Token};
use muser_text::chat::{self, Format, Parameters};
use std::sync::Arc;
use std::time::Instant;

/// The bytes that one token of an unfinished answer is estimated to take in memory,
/// including its text in JSON.
const TEXT: usize = 64;
/// The bytes that one log-probability is estimated to take in memory, including its JSON.
const LOGPROB: usize = 128;

/// How to generate the answers to a prompt: sampling, ends, log-probabilities, tools and
/// grammar.
#[derive(Clone, Debug)]
pub(crate) struct Generate {
    /// The sampler's settings; answer i to a prompt is sampled with the seed plus i.
    pub(crate) sampling: SamplingParams,
    /// The most tokens of one answer; `None` if only the context limits it.
    pub(crate) max_tokens: Option<usize>,
    /// The fewest tokens of one answer: up to then, tokens that would end it are ruled
    /// out.
    pub(crate) min_tokens: usize,
    pub(crate) stop: Vec<String>,
    /// Tokens that end an answer, in addition to the model's own end tokens.
    pub(crate) stop_tokens: Vec<Token>,
    /// How many alternatives to list with each token's log-probability; `None` if
    /// log-probabilities are not asked for.
    pub(crate) logprobs: Option<usize>,
    /// Whether the prompt's tokens, and the token that ends the answer, get
    /// log-probabilities too.
    pub(crate) score: bool,
    /// The chat format of the answer: how reasoning, content and tool calls are marked in
    /// it.
    pub(crate) format: Format,
    /// The tools that the model may call, with the types of their parameters; `None`
    /// where tool calls in an answer are plain text.
    pub(crate) tools: Option<Parameters>,
    /// Whether control tokens appear in the answer's text, in their written form.
    pub(crate) show_special: bool,
    /// The grammar that the answer has to match, from its first token on; `None` if it is
    /// free.
    pub(crate) grammar: Option<Grammar>,
    /// Whether the model's own end tokens are ruled out, so that the answer goes on.
    pub(crate) ignore_end: bool,
    /// The number of answers (choices) to generate for each prompt.
    pub(crate) n: usize,
}

/// What a request wants computed from its prompts: answers, or embeddings.
#[derive(Clone, Debug)]
pub(crate) enum Task {
    Generate(Box<Generate>),
    /// Compute each prompt's embedding: the model's state at the prompt's last token.
    Embed,
}

/// One request to the scheduler: its prompts, and what to compute from them by when.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) prompts: Vec<Vec<Token>>,
    pub(crate) task: Task,
    /// Whether the request may use states of earlier prompts from the prefix cache, and
    /// add its own.
    pub(crate) cache: bool,
    pub(crate) deadline: Instant,
}

impl Request {
    /// Returns the number of answers (choices) that the request asks for with each
    /// prompt.
    pub(crate) fn n(&self) -> usize {
        match &self.task {
            Task::Generate(g) => g.n,
            Task::Embed => 1,
        }
    }

    /// Estimates the bytes that a request's prompts and answers take at most. An answer
    /// that is sent `whole` counts in full; a streamed one counts as the events that its
    /// channel holds (`events`, and two for each answer of the request).
    pub(crate) fn memory(&self, whole: bool, events: usize, context: usize) -> u64 {
        let tokens: usize = self.prompts.iter().map(Vec::len).sum();
        let prompts = size_of::<Token>() * tokens;
        let units = self.units();
        let channel = events + 2 * units;
        let Task::Generate(g) = &self.task else {
            // An embedding and its JSON text take little beside the model's own memory.
            return (prompts + units * 16 * 1024) as u64;
        };
        let kept = match whole {
            false => channel,
            true => {
                let left = |prompt: &Vec<Token>| context.saturating_sub(prompt.len());
                let each = self.prompts.iter().map(left);
                let each = each.map(|left| g.max_tokens.map_or(left, |most| most.min(left)));
                each.sum::<usize>().saturating_mul(g.n)
            }
        };
        let token = match g.logprobs {
            None => TEXT,
            Some(top) => TEXT + LOGPROB * (top + 1),
        };
        // The prompts' tokens are scored once, and written for each choice.
        let scored = match g.score {
            true => tokens.saturating_mul(g.n).saturating_mul(token),
            false => 0,
        };
        let all = kept.saturating_mul(token).saturating_add(scored);
        prompts.saturating_add(all) as u64
    }

    /// Names the JSON fields of a request that decide how much memory its answers may
    /// take, for error messages.
    pub(crate) fn memory_of(&self) -> &'static str {
        match &self.task {
            Task::Generate(g) if g.logprobs.is_some() => "n, max_tokens and logprobs",
            Task::Generate(_) => "n and max_tokens",
            Task::Embed => "input",
        }
    }

    /// Returns how many alternatives to list for each token of the prompts; `None` if the
    /// prompts' log-probabilities are not asked for.
    pub(crate) fn scores(&self) -> Option<usize> {
        match &self.task {
            Task::Generate(g) if g.score => g.logprobs,
            Task::Generate(_) | Task::Embed => None,
        }
    }

    /// Returns the number of answers (choices) that the request asks for, over all its
    /// prompts.
    pub(crate) fn units(&self) -> usize {
        self.prompts.len().saturating_mul(self.n())
    }
}

/// The log-probability of one token, and those of the most likely alternatives.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct TokenLogProb {
    pub(crate) token: Token,
    pub(crate) logprob: f64,
    pub(crate) top: Vec<(Token, f64)>,
}

/// The log-probabilities of a prompt's tokens, each given the tokens before it.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Scored {
    /// The prompt's first token, which has no log-probability, since no token precedes
    /// it.
    pub(crate) first: Token,
    pub(crate) rest: Vec<TokenLogProb>,
}

/// What one new token adds to an answer: text and log-probabilities.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Delta {
    /// The new text of the answer, divided into content, reasoning and tool calls.
    pub(crate) text: chat::Delta,
    pub(crate) logprobs: Vec<TokenLogProb>,
    /// The log-probabilities of the prompt's tokens; sent with the first part of an
    /// answer, if asked for.
    pub(crate) prompt: Option<Arc<Scored>>,
}

impl Delta {
    /// Whether this new part of an answer is empty: no text and no log-probabilities.
    pub(crate) fn is_empty(&self) -> bool {
        self.text.is_empty() && self.logprobs.is_empty() && self.prompt.is_none()
    }
}

/// Why an answer ended, as OpenAI's `finish_reason` tells it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Finish {
    Stop,
    Length,
    ToolCalls,
}

impl Finish {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Stop => "stop",
            Self::Length => "length",
            Self::ToolCalls => "tool_calls",
        }
    }
}

/// How many tokens an answer took: in its prompt, from the prefix cache, sampled, and of
/// these in reasoning.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    /// The number of the prompt's tokens, counted with the first answer to a prompt only.
    pub(crate) prompt: usize,
    /// The number of the prompt's tokens whose state came from the prefix cache.
    pub(crate) cached: usize,
    /// The number of tokens sampled, including those that are not shown, but without the
    /// one that ended the answer.
    pub(crate) completion: usize,
    /// The number of sampled tokens that belong to the reasoning.
    pub(crate) reasoning: usize,
}

impl std::ops::AddAssign for Counts {
    fn add_assign(&mut self, other: Self) {
        self.prompt += other.prompt;
        self.cached += other.cached;
        self.completion += other.completion;
        self.reasoning += other.reasoning;
    }
}

/// An event that the scheduler sends to the HTTP handler of a request.
#[derive(Clone, Debug)]
pub(crate) enum Event {
    /// New text of one of a request's completions (a choice), and the tokens that this
    /// took so far.
    Delta {
        choice: usize,
        delta: Delta,
        counts: Counts,
    },
    /// One of a request's completions (a choice) is complete, for this reason.
    Done {
        choice: usize,
        finish: Finish,
        counts: Counts,
    },
    /// A prompt's embedding: the model's state at its last token.
    State {
        choice: usize,
        state: Vec<f32>,
        counts: Counts,
    },
}
