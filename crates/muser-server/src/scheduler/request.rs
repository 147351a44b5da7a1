//! Requests to the scheduler, and its events.

use crate::grammar::Grammar;
use muser_engine::{SamplingParams, Token};
use muser_text::chat::{self, Format, Parameters};
use std::sync::Arc;
use std::time::Instant;

/// Bytes that a token of an unfinished answer takes, and its JSON text takes once
/// more.
const TEXT: usize = 64;
/// Bytes of a log-probability, and of its JSON.
const LOGPROB: usize = 128;

/// How to generate an answer.
#[derive(Clone, Debug)]
pub(crate) struct Generate {
    /// The sampler's settings; choice i samples with seed + i.
    pub(crate) sampling: SamplingParams,
    /// The most tokens of a choice; `None` fills the context.
    pub(crate) max_tokens: Option<usize>,
    /// Tokens before which no token ends a choice.
    pub(crate) min_tokens: usize,
    pub(crate) stop: Vec<String>,
    /// Tokens that end a choice as the model's own ends do.
    pub(crate) stop_tokens: Vec<Token>,
    /// Whether log-probabilities are wanted, and how many alternatives.
    pub(crate) logprobs: Option<usize>,
    /// Whether those of the prompt are wanted too, and that of the end.
    pub(crate) score: bool,
    /// How the answer is written.
    pub(crate) format: Format,
    /// The tools that may be called, with the types of their parameters; `None`
    /// where calls are text.
    pub(crate) tools: Option<Parameters>,
    /// Whether control tokens are shown as they are written.
    pub(crate) show_special: bool,
    /// The grammar that the answer has to fit, from the first token on.
    pub(crate) grammar: Option<Grammar>,
    /// Whether to go on past the model's own end.
    pub(crate) ignore_end: bool,
    /// The number of choices of each prompt.
    pub(crate) n: usize,
}

/// What to compute from the prompts.
#[derive(Clone, Debug)]
pub(crate) enum Task {
    Generate(Box<Generate>),
    /// The state of the last token.
    Embed,
}

/// One request.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) prompts: Vec<Vec<Token>>,
    pub(crate) task: Task,
    /// Whether the prefix cache may be used and extended.
    pub(crate) cache: bool,
    pub(crate) deadline: Instant,
}

impl Request {
    /// The number of choices of each prompt.
    pub(crate) fn n(&self) -> usize {
        match &self.task {
            Task::Generate(g) => g.n,
            Task::Embed => 1,
        }
    }

    /// Bytes that its tokens and its answer may take: all of an answer that is
    /// kept until it is `whole`; of an answer that is sent as it is written, what
    /// a channel of `events` holds.
    pub(crate) fn memory(&self, whole: bool, events: usize, context: usize) -> u64 {
        let tokens: usize = self.prompts.iter().map(Vec::len).sum();
        let prompts = size_of::<Token>() * tokens;
        let units = self.units();
        let channel = events + 2 * units;
        let Task::Generate(g) = &self.task else {
            // States and their text come to a few numbers beside the model's own.
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

    /// The fields that decide how much [`Request::memory`] is.
    pub(crate) fn memory_of(&self) -> &'static str {
        match &self.task {
            Task::Generate(g) if g.logprobs.is_some() => "n, max_tokens and logprobs",
            Task::Generate(_) => "n and max_tokens",
            Task::Embed => "input",
        }
    }

    /// How many alternatives to list for each token of the prompts; `None` if their
    /// log-probabilities are not asked for.
    pub(crate) fn scores(&self) -> Option<usize> {
        match &self.task {
            Task::Generate(g) if g.score => g.logprobs,
            Task::Generate(_) | Task::Embed => None,
        }
    }

    /// The number of choices of all prompts together.
    pub(crate) fn units(&self) -> usize {
        self.prompts.len().saturating_mul(self.n())
    }
}

/// The log-probability of a token, and the most likely alternatives.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct TokenLogProb {
    pub(crate) token: Token,
    pub(crate) logprob: f64,
    pub(crate) top: Vec<(Token, f64)>,
}

/// The log-probabilities of a prompt's tokens, each after those before it.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Scored {
    /// The first token, which has none.
    pub(crate) first: Token,
    pub(crate) rest: Vec<TokenLogProb>,
}

/// What a step adds to an answer.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Delta {
    /// Content, reasoning and calls.
    pub(crate) text: chat::Delta,
    pub(crate) logprobs: Vec<TokenLogProb>,
    /// The log-probabilities of the prompt, with the first part of an answer.
    pub(crate) prompt: Option<Arc<Scored>>,
}

impl Delta {
    /// Whether it adds nothing.
    pub(crate) fn is_empty(&self) -> bool {
        self.text.is_empty() && self.logprobs.is_empty() && self.prompt.is_none()
    }
}

/// Why an answer ended, in OpenAI's words.
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

/// Tokens that an answer took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    /// Prompt tokens; of the first choice of a prompt only.
    pub(crate) prompt: usize,
    /// Prompt tokens that came from the prefix cache.
    pub(crate) cached: usize,
    /// Tokens sampled, hidden ones included, but not the one that ended the answer.
    pub(crate) completion: usize,
    /// Sampled tokens of the reasoning.
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

/// What the scheduler sends to the handler of a request.
#[derive(Clone, Debug)]
pub(crate) enum Event {
    /// More of a choice, and what it took so far.
    Delta {
        choice: usize,
        delta: Delta,
        counts: Counts,
    },
    /// A choice is complete.
    Done {
        choice: usize,
        finish: Finish,
        counts: Counts,
    },
    /// A prompt's state.
    State {
        choice: usize,
        state: Vec<f32>,
        counts: Counts,
    },
}
