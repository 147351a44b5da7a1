//! Muse Glimmer: its configuration, checked weight binding, the one forward
//! pass, the KV cache and the byte budget.
//!
//! [`Config`] is what a file says about itself; [`Transformer::load`] binds its
//! tensors, each checked against that; [`Transformer::forward`] runs any number
//! of tokens over a [`Cache`]. The arithmetic is the backend's: this crate says
//! which operation reads what.
//!
//! What cannot be computed faithfully is refused by name at load: a file whose
//! tensors disagree with its configuration never gives a number.
#![forbid(unsafe_code)]

mod bind;
mod cache;
mod config;
mod error;
mod forward;
mod tensors;
mod transformer;

pub use bind::Tensor;
pub use cache::Cache;
pub use config::{ARCH, Config, POST_NORM_EPS};
pub use error::ModelError;
pub use forward::{MAX_BATCH, Want};
pub use tensors::Role;
pub use transformer::Transformer;
/// The file format, for crates above that open files but depend on none below.
pub use muser_gguf as gguf;
