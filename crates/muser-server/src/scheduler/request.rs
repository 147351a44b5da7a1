//! What the scheduler is asked for, and what it answers.

use crate::atem::Parameters;
use crate::grammar::Grammar;
use muser_engine::{SamplingParams, Token};
use std::sync::Arc;
use std::time::Instant;

/// Bytes that a token of an unfinished answer takes, and once more in the text
/// of its JSON.
const TEXT: usize = 64;
/// Bytes of a log-probability, and of its JSON.
const LOGPROB: usize = 128;

/// What the text of an answer is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    /// Text as it comes.
    Plain,
    /// A chat's answer whose header the model writes: recipients, reasoning,
    /// tool calls ([`crate::atem`]).
    Messages {
        /// Whether messages to tools are calls, or plain text.
        tools: bool,
    },
}

/// How to answer.
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
    pub(crate) format: Format,
    /// Whether control tokens are shown as they are written.
    pub(crate) show_special: bool,
    /// What may be written at all, from the first token on.
    pub(crate) grammar: Option<Grammar>,
    /// What the parameters of tools take.
    pub(crate) parameters: Parameters,
    /// Goes on past the model's own end.
    pub(crate) ignore_end: bool,
    /// Choices of each prompt.
    pub(crate) n: usize,
}

/// What is wanted of the prompts.
#[derive(Clone, Debug)]
pub(crate) enum Task {
    Generate(Box<Generate>),
    /// The last token's state.
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
    /// Choices of each prompt.
    pub(crate) fn n(&self) -> usize {
        match &self.task {
            Task::Generate(g) => g.n,
            Task::Embed => 1,
        }
    }

    /// Bytes that its tokens and its answer may take: all of the answer where
    /// it is kept until it is `whole`, what a channel of `events` holds where
    /// it is sent as it is written.
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

    /// The fields that decide how much that is.
    pub(crate) fn memory_of(&self) -> &'static str {
        match &self.task {
            Task::Generate(g) if g.logprobs.is_some() => "n, max_tokens and logprobs",
            Task::Generate(_) => "n and max_tokens",
            Task::Embed => "input",
        }
    }

    /// How many alternatives of each of the prompts' tokens are wanted, if their
    /// log-probabilities are.
    pub(crate) fn scores(&self) -> Option<usize> {
        match &self.task {
            Task::Generate(g) if g.score => g.logprobs,
            Task::Generate(_) | Task::Embed => None,
        }
    }

    /// All choices together.
    pub(crate) fn units(&self) -> usize {
        self.prompts.len().saturating_mul(self.n())
    }
}

/// How likely a token was, and what else was likely.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct TokenLogProb {
    pub(crate) token: Token,
    pub(crate) logprob: f64,
    pub(crate) top: Vec<(Token, f64)>,
}

/// How likely the tokens of a prompt were, each after those before it.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Scored {
    /// The first, which nothing comes before.
    pub(crate) first: Token,
    pub(crate) rest: Vec<TokenLogProb>,
}

/// A part of a tool call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CallDelta {
    /// Which of the answer's calls.
    pub(crate) index: usize,
    /// Its name, with the first part.
    pub(crate) name: Option<String>,
    /// More of its arguments, a piece of a JSON object.
    pub(crate) arguments: String,
}

/// What a step adds to an answer.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Delta {
    pub(crate) content: String,
    pub(crate) reasoning: String,
    pub(crate) calls: Vec<CallDelta>,
    pub(crate) logprobs: Vec<TokenLogProb>,
    /// The prompt's log-probabilities, with the first part of an answer.
    pub(crate) prompt: Option<Arc<Scored>>,
}

impl Delta {
    pub(crate) fn is_empty(&self) -> bool {
        self.content.is_empty()
            && self.reasoning.is_empty()
            && self.calls.is_empty()
            && self.logprobs.is_empty()
            && self.prompt.is_none()
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

/// What an answer took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    /// Prompt tokens; of the first choice of a prompt only.
    pub(crate) prompt: usize,
    /// Of which were not evaluated again.
    pub(crate) cached: usize,
    /// Tokens sampled, hidden ones included, the one that ended it not.
    pub(crate) completion: usize,
    /// Of which are reasoning.
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

/// What the scheduler tells whoever asked.
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
