//! The comparator: llama.cpp in a process of its own, with which muser's pinned lane
//! (llama.cpp's arithmetic) is compared bit for bit.
//!
//! It has four subcommands. `info` prints what this build of llama.cpp is. `op` answers
//! requests for single operations or small graphs on given bytes. `model` answers
//! requests for the logits of whole models. `bench` times calls of a model. The last
//! three are servers: they read requests from standard input until its end, and print
//! one line of `info` before anything else, so that no result is without its profile
//! (the build of llama.cpp that gave it). README.md describes the protocol.

mod bench;
mod call;
mod ggml;
mod graph;
mod info;
mod model;
mod nodes;
mod wire;

use std::process::ExitCode;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let result = match args[..] {
        ["info"] => info::print(),
        ["op"] => info::print().and_then(|()| graph::serve()),
        ["model"] => info::print().and_then(|()| model::serve()),
        ["bench", ref options @ ..] => info::print().and_then(|()| bench::serve(options)),
        _ => Err("usage: muser-reference info | op | model | bench OPTIONS".to_owned()),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("muser-reference: {e}");
            ExitCode::FAILURE
        }
    }
}
