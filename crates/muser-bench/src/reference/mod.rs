//! The comparator, `muser-reference`: how it is built and talked to.

mod build;
mod process;

pub(crate) use build::{build, check};
pub(crate) use process::{Data, Process};
