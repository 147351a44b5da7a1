//! The command line of the comparison with llama.cpp. `cargo xtask parity`,
//! `receipts` and `compare` run it, built for release.
#![forbid(unsafe_code)]

use clap::{Parser, Subcommand};
use muser_bench::{compare, parity, root};
use std::process::ExitCode;

/// muser against llama.cpp: bits and speed.
#[derive(Debug, Parser)]
#[command(name = "muser-bench", bin_name = "cargo xtask", version, about)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Compare the pinned lane with llama.cpp, bit for bit
    Parity(parity::Options),
    /// Write the receipts in fixtures/receipts anew
    Receipts,
    /// Time llama.cpp and both lanes on the same file, in turn
    Compare(compare::Options),
    /// Answer as our side of compare, which starts this to time opening
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
