//! Limits what constrained decoding may take: processes, time, memory and tokens.

use std::time::Duration;

/// Limits of compiling a grammar and of decoding under one: processes, time, memory,
/// tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GrammarLimits {
    /// How many worker processes compile grammars on trial; at least one.
    pub workers: usize,
    /// The most CPU time that compiling one grammar and computing its first token masks
    /// may take. On the clock it may take five times as much.
    pub time: Duration,
    /// The most bytes of address space of a worker process, which compiles grammars.
    pub memory: u64,
    /// Bytes of stack of the worker's thread that compiles grammars; the server's own
    /// thread for that has twice as many.
    pub stack: usize,
    /// The longest time that an answer waits for one token mask (the tokens that its
    /// grammar allows next).
    pub mask_time: Duration,
    /// The most tokens of reasoning before a constrained answer; half of `max_tokens`
    /// if that is less.
    pub reasoning: usize,
    /// How many compiled grammars are cached for later requests with the same schema.
    pub kept: usize,
}

impl Default for GrammarLimits {
    fn default() -> Self {
        Self {
            workers: 2,
            time: Duration::from_secs(2),
            memory: 1 << 30,
            stack: 16 << 20,
            mask_time: Duration::from_secs(5),
            reasoning: 1024,
            kept: 64,
        }
    }
}
