//! The inference engine: a loaded [`Model`] that sessions share, a [`Session`] that
//! evaluates token sequences given as whole prefixes, and the [`generate`] loop.
//!
//! ```text
//! Gguf + backend -> Model ─┬─ Session ── sync(tokens) -> logits -> Sampler -> token
//!                          └─ Session …
//! ```
//!
//! Code that uses this crate names no tensor and no page of the KV cache. The crate is
//! generic over the [`Backend`] that computes.
#![forbid(unsafe_code)]

mod batch;
mod codec;
mod error;
mod generate;
mod model;
mod score;
mod session;
mod stop;
mod transcript;

pub use batch::{Advance, Batch, Draw, Drawn, Refused};
pub use codec::{Codec, tokenizer_spec};
pub use error::Error;
pub use generate::{Event, Generation, generate};
pub use model::Model;
/// The GGUF file format, and the outputs that a forward pass can be asked for: for
/// crates that do not depend on `muser-gguf` or `muser-model`.
pub use muser_model::{Want, gguf};
pub use muser_ops::choose::VERSION as SAMPLING_VERSION;
pub use muser_ops::{Backend, ChoiceError, Lane, Profile, Sampler, SamplingParams};
pub use score::{LogProbs, log_prob};
pub use session::{Session, SyncReport};
pub use stop::{GenerateOptions, MAX_STOP_BYTES, StopMatcher, StopReason};
pub use transcript::Transcript;

/// A token id: the index of a row of the embedding table.
pub type Token = u32;
