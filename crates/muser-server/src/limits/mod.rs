//! Limits what one HTTP request may take: bytes, nesting, counts, memory, time and
//! turns.
//!
//! Everything a client sends is checked here before recursive or costly code sees it.
//! [`json`] walks a body once, without recursion; [`budget`] counts the bytes of memory
//! that requests hold; [`work`] holds a request's client and deadline; [`turns`] and
//! [`gate`] let clients take turns; [`text`] bounds the tokens of texts; [`schema`]
//! bounds JSON schemas, and [`grammar`] the grammars made of them.

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
