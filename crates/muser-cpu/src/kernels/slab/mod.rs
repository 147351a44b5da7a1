//! The slab kernels: products of weight rows with any number of activation vectors. A
//! slab is a few rows, 16 or 8, transposed so that each vector element holds one row's
//! weights. Each arithmetic has a module, which is generic over its weight formats.

pub(crate) mod groups;
pub(crate) mod superblocks;
