//! The slab family: rows of one packed matrix with any number of vectors, a
//! vector lane a row. One module an arithmetic, generic over its formats.

pub(crate) mod groups;
pub(crate) mod superblocks;
