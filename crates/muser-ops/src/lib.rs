//! The operations of a language model's forward pass, defined to the bit.
//!
//! Each operation has a descriptor, a contract in its module's documentation, and a
//! scalar function that defines the result: the oracle function. Backends, which compute
//! the operations on some hardware, implement [`Backend`]. [`oracle::Oracle`] is a slow
//! backend made of the oracle functions alone; the crate `muser-conformance` compares
//! every other backend with it, bit for bit.
//!
//! There are two arithmetics, called lanes. The modules of this crate define
//! [`Lane::Strict`], version 1, of `docs/numerics.md`: the same bits for any thread
//! count, batch width, split of the prompt, reuse of the cache and instruction set.
//! The modules of [`pinned`] define [`Lane::Pinned`]: the bits of llama.cpp.
#![forbid(unsafe_code)]

pub mod attention;
mod backend;
pub mod choose;
pub mod elementwise;
pub mod embed;
mod error;
pub mod hook;
mod lane;
pub mod math;
pub mod norm;
pub mod null;
pub mod oracle;
pub mod pinned;
mod plan;
pub mod profiler;
pub mod project;
pub mod reduce;
pub mod rope;
mod weight;

pub use attention::{Attention, KvLayout};
pub use backend::{Backend, BackendInfo, Recording, Sizes, Stage};
pub use choose::{Choice, ChoiceError, Sampler, SamplingParams};
pub use error::OpError;
pub use lane::{Lane, Profile, UnknownProfile};
pub use plan::{Plan, Run, Span, Subset};
pub use rope::{RopeFrequencies, RopeSpec, RopeTable};
pub use weight::{Matrix, MatrixInfo, Weight, check_set};
