//! The matrix-vector family: a tile of rows of one packed matrix with one
//! vector (superblocks, groups), or with any number (floats).
//!
//! Contract: [`muser_ops::project`]. One module an arithmetic, generic over its
//! formats.

pub(crate) mod floats;
pub(crate) mod groups;
pub(crate) mod superblocks;
