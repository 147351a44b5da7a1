//! What the operations of a forward pass mean, to the bit.
//!
//! Each operation is a descriptor, a contract in its module's documentation,
//! and a scalar function that *is* the contract: the oracle. Backends
//! implement [`Backend`]; [`oracle::Oracle`] does so with the oracle functions
//! alone, slowly, and the crate `muser-conformance` runs any other backend
//! against it, bit for bit.
//!
//! There are two arithmetics. The modules here are the lane [`Lane::Strict`],
//! version 1, of `docs/numerics.md`: the same bits for any thread count, batch
//! width, split of the prompt, reuse of the cache and instruction set. The
//! modules of [`pinned`] are the lane [`Lane::Pinned`]: llama.cpp's own bits.
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
pub mod profile;
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
