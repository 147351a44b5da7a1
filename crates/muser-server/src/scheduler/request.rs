//! What the scheduler is asked for, and what it answers.

use crate::atem::Parameters;
use crate::grammar::Grammar;
use muser_engine::{SamplingParams, Token};
use std::time::Instant;

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
    pub(crate) stop: Vec<String>,
    /// Whether log-probabilities are wanted, and how many alternatives.
    pub(crate) logprobs: Option<usize>,
    pub(crate) format: Format,
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
}

impl Delta {
    pub(crate) fn is_empty(&self) -> bool {
        self.content.is_empty()
            && self.reasoning.is_empty()
            && self.calls.is_empty()
            && self.logprobs.is_empty()
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
    /// More of a choice.
    Delta { choice: usize, delta: Delta },
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
