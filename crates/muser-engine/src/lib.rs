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
//! [`Backend`].
#![forbid(unsafe_code)]

mod batch;
mod codec;
mod error;
mod generate;
mod model;
mod sampler;
mod score;
mod session;
mod stop;
mod transcript;

pub use batch::{Advance, Batch, Refused};
pub use codec::{Codec, tokenizer_spec};
pub use error::Error;
pub use generate::{Event, Generation, generate};
pub use model::Model;
/// The file format and what computes, for crates above that depend on neither.
pub use muser_model::{Want, gguf};
pub use muser_ops::{Backend, Lane, Profile};
pub use sampler::{Sampler, SamplingParams, VERSION as SAMPLING_VERSION};
pub use score::{LogProbs, log_prob};
pub use session::{Session, SyncReport};
pub use stop::{GenerateOptions, MAX_STOP_BYTES, StopMatcher, StopReason};
pub use transcript::Transcript;

/// A token id: a row of the embedding table.
pub type Token = u32;
