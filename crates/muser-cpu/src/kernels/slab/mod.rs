//! The slab family: products of rows with any number of vectors. Rows are transposed, so
//! that each vector element is one row. Each arithmetic has a module, which is generic
//! over its formats.

pub(crate) mod groups;
pub(crate) mod superblocks;
