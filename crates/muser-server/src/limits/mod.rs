//! What a request may take: bytes, depth, counts, memory, time and turns.
//!
//! Everything a client sends passes here before anything recursive or costly
//! sees it. [`json`] walks a body once, iteratively; [`budget`] counts the bytes
//! that requests hold; [`work`] knows until when, and for whom, a request is
//! worked on; [`turns`] and [`gate`] let clients take turns.

pub(crate) mod budget;
pub(crate) mod gate;
pub(crate) mod json;
pub(crate) mod text;
pub(crate) mod turns;
pub(crate) mod work;

pub use json::JsonLimits;
