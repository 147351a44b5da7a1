//! The comparator of muser's pinned lane: llama.cpp, in a process of its own.
//!
//! Three subcommands. `info` prints what this build is. `op` answers requests
//! for single operations or small graphs on given bytes. `model` answers
//! requests for the logits of whole models. Both servers read requests from
//! standard input until its end, and print one line of `info` before anything
//! else, so that no result is without its profile. See README.md for the
//! protocol.

mod call;
mod ggml;
mod graph;
mod info;
mod model;
mod nodes;
mod wire;

use std::process::ExitCode;

fn main() -> ExitCode {
    let mut args = std::env::args().skip(1);
    let result = match (args.next().as_deref(), args.next()) {
        (Some("info"), None) => info::print(),
        (Some("op"), None) => info::print().and_then(|()| graph::serve()),
        (Some("model"), None) => info::print().and_then(|()| model::serve()),
        _ => Err("usage: muser-reference info | op | model".to_owned()),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("muser-reference: {e}");
            ExitCode::FAILURE
        }
    }
}
