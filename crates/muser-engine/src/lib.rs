//! The engine: a [`Model`] that sessions share, a [`Session`] that takes whole
//! token prefixes, a [`Sampler`] and the [`generate`] loop.
//!
//! ```text
//! Gguf + backend -> Model ─┬─ Session ── sync(tokens) -> logits -> Sampler -> token
//!                          └─ Session …
//! ```
//!
//! Nothing above this crate names a tensor or a KV page, and nothing in it
//! knows what computes: everything is generic over
//! [`Backend`](muser_ops::Backend).
#![forbid(unsafe_code)]

mod error;
mod generate;
mod model;
mod sampler;
mod score;
mod session;
mod stop;

pub use error::Error;
pub use generate::{Event, Generation, generate};
pub use model::{Model, tokenizer_spec};
pub use sampler::{Sampler, SamplingParams};
pub use score::log_prob;
pub use session::{Session, SyncReport};
pub use stop::{GenerateOptions, MAX_STOP_BYTES, StopReason};

/// A token id: a row of the embedding table.
pub type Token = u32;
