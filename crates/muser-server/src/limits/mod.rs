//! Bounds of what clients send, checked before a library sees it.

mod grammar;
mod schema;

pub use grammar::GrammarLimits;
pub use schema::SchemaLimits;
