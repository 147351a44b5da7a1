//! The matvec family: products of a tile of rows with one vector (superblocks, groups),
//! or with any number of vectors (floats).
//!
//! Contract: [`muser_ops::project`]. Each arithmetic has a module, which is generic over
//! its formats.

pub(crate) mod floats;
pub(crate) mod groups;
pub(crate) mod superblocks;
