//! Describes, loads and runs models: a spec read from a GGUF file's metadata, checked
//! binding of weights, the one forward pass, the KV cache and the byte budget.
//!
//! [`Spec`] describes the model of a file, whatever its architecture.
//! [`Transformer::load`] checks the tensors against it and binds them to a backend.
//! [`Transformer::forward`] runs any number of tokens over a [`Cache`]. This crate
//! decides which operations run on which values; a backend computes them.
//!
//! A file whose tensors or metadata ask for something that the forward pass does not
//! compute is refused by name when it is loaded.
//!
//! ```
//! use muser_gguf::Gguf;
//! use muser_model::synth::{self, Geometry, Mix};
//! use muser_model::{Transformer, Want};
//! use muser_ops::oracle::Oracle;
//! use std::sync::Arc;
//!
//! let geometry = Geometry::named("glimmer-tiny").expect("a known name");
//! let mut file = Vec::new();
//! synth::write(&geometry, Mix::Q4KM, 1, &mut file, &mut |_, _| {})?;
//!
//! let model = Transformer::load(&Gguf::from_vec(file)?, Arc::new(Oracle))?;
//! let mut cache = model.cache(64);
//! let mut logits = Vec::new();
//! model.forward(&mut cache, &[1, 2, 3], Want::Last, &mut |i, row| {
//!     assert_eq!(i, 2);
//!     logits.extend_from_slice(row);
//! })?;
//! assert_eq!((cache.len(), logits.len()), (3, model.spec().vocab));
//! # Ok::<(), muser_model::ModelError>(())
//! ```
#![forbid(unsafe_code)]

mod arch;
mod bind;
pub mod budget;
mod cache;
mod computed;
pub mod convert;
mod error;
mod forward;
mod micro_batch;
pub mod spec;
pub mod synth;
mod tensors;
mod transformer;

pub use arch::NAMES as ARCHITECTURES;
pub use bind::Tensor;
pub use budget::Budget;
pub use cache::{Cache, Workspace};
pub use error::ModelError;
pub use forward::{BatchError, Step, Want};
/// Re-exports the crate that reads and writes GGUF files, for crates that use it
/// through this one only.
pub use muser_gguf as gguf;
pub use spec::Spec;
pub use tensors::{Role, TensorSpec, Use};
pub use transformer::Transformer;
