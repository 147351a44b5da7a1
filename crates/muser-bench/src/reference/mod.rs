//! Builds the comparator `muser-reference`, which holds llama.cpp, and talks to it as a
//! process.

mod build;
mod process;

pub(crate) use build::{build, check};
pub(crate) use process::{Data, Process};
