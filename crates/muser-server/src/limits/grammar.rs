//! What constrained decoding may take.

use std::time::Duration;

/// What compiling a grammar, and decoding under one, may take.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GrammarLimits {
    /// Processes that compile grammars, at least one.
    pub workers: usize,
    /// CPU time for one grammar: compiling it and computing its first masks. On the
    /// clock, five times as much.
    pub time: Duration,
    /// Address space of a worker in bytes.
    pub memory: u64,
    /// Stack in bytes of the thread that compiles; the server's own thread for
    /// it has twice that.
    pub stack: usize,
    /// For one mask: which tokens may come next.
    pub mask_time: Duration,
    /// Tokens of reasoning before a constrained answer; half of `max_tokens`
    /// where that is less.
    pub reasoning: usize,
    /// Grammars that are kept for requests with the same schema.
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
