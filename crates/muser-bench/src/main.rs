//! The command line of `muser-bench`, which compares muser with llama.cpp. `cargo xtask
//! parity`, `receipts` and `compare` run it in a release build.
#![forbid(unsafe_code)]

use clap::{Parser, Subcommand};
use muser_bench::{compare, parity, root};
use std::process::ExitCode;

/// Compares muser with llama.cpp: whether both compute the same bits, and which is
/// faster.
#[derive(Debug, Parser)]
#[command(name = "muser-bench", bin_name = "cargo xtask", version, about)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Compare the pinned lane (llama.cpp's arithmetic) with llama.cpp itself, bit for
    /// bit
    Parity(parity::Options),
    /// Write the receipts in fixtures/receipts anew: records of model runs with the
    /// hashes of their logits
    Receipts,
    /// Time llama.cpp and both lanes of muser (strict and pinned arithmetic) on the
    /// same model file, in turn
    Compare(compare::Options),
    /// Answer requests as muser's side of the comparison with llama.cpp; `compare`
    /// starts this process to time how long opening a model takes
    #[command(name = compare::SERVE, hide = true)]
    Serve(compare::Serve),
}

fn main() -> ExitCode {
    let outcome = match Cli::parse().command {
        Command::Parity(options) => parity::run(&root(), &options),
        Command::Receipts => parity::receipts::run(&root()),
        Command::Compare(options) => compare::run(&root(), &options),
        Command::Serve(options) => compare::serve(&options),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("{message}");
            ExitCode::FAILURE
        }
    }
}
