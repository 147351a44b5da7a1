//! What a request may take: bytes, depth, counts, memory, time and turns.
//!
//! Everything a client sends passes here before anything recursive or costly
//! sees it. [`json`] walks a body once, iteratively; [`budget`] counts the bytes
//! that requests hold; [`work`] knows until when, and for whom, a request is
//! worked on; [`turns`] and [`gate`] let clients take turns; [`schema`] bounds
//! schemas, [`grammar`] what is made of them.

pub(crate) mod budget;
pub(crate) mod gate;
mod grammar;
pub(crate) mod json;
mod schema;
pub(crate) mod text;
pub(crate) mod turns;
pub(crate) mod work;

pub use grammar::GrammarLimits;
pub use json::JsonLimits;
pub use schema::SchemaLimits;
