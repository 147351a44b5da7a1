//! The matvec kernels: products of a tile of weight rows with one activation vector
//! (superblocks of 256 weights, groups of 32), or with any number of vectors (float
//! weights).
//!
//! Contract (the scalar functions that define the bits): [`muser_ops::project`]. Each
//! arithmetic has a module, which is generic over its formats.

pub(crate) mod floats;
pub(crate) mod groups;
pub(crate) mod superblocks;
