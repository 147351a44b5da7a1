//! Kernels that only the pinned lane (llama.cpp's arithmetic) has.
//!
//! Its other kernels are outside this folder: one that differs from the strict lane's in a
//! sum or a function only is named `…_pinned` and is in the same file, and the slab
//! kernels compute both lanes, with a parameter for the rule of links.

pub(crate) mod attention;
pub(crate) mod float;
pub(crate) mod narrow;
