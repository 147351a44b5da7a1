//! The `muser` binary: a command line for the inference engine. Parses the arguments,
//! runs one command and returns its exit code.
#![forbid(unsafe_code)]

mod answer;
mod backend;
mod cli;
mod commands;
mod embedded;
mod exit;
mod input;
mod interrupt;
mod lines;
mod load;
mod log;
mod measure;
mod output;
mod prompt;
mod receipt;
mod sampling;
mod table;
mod token_list;

use clap::Parser;
use std::process::ExitCode;

fn main() -> ExitCode {
    let cli = cli::Cli::parse();
    let result = interrupt::install().and_then(|()| commands::run(&cli));
    exit::code(result)
}
