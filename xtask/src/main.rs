//! The command `cargo xtask`: the project's own checks, and the entry to its comparison
//! with llama.cpp.
//!
//! The commands `tidy` and `math` run here. `parity`, `receipts` and `compare` are
//! commands of the program `muser-bench`, which is started for them in a release build.
#![forbid(unsafe_code)]

mod delegate;
mod math;
mod tidy;

use clap::{Args, Parser, Subcommand};
use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

/// muser's own checks, and its comparison with llama.cpp.
#[derive(Debug, Parser)]
#[command(name = "xtask", bin_name = "cargo xtask")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Check what the compiler can't: layout, dependencies between crates, unsafe, docs
    Tidy,
    /// Measure the error of exp, sigmoid, SiLU and tanh over all 2^32 inputs (minutes
    /// each)
    Math {
        /// Mathematical functions to measure; without names, all
        #[arg(value_name = "FUNCTION", value_parser = math::names())]
        functions: Vec<String>,
    },
    /// Compare the pinned lane (llama.cpp's arithmetic) with llama.cpp itself, bit for
    /// bit
    #[command(disable_help_flag = true)]
    Parity(Passed),
    /// Write the receipts in fixtures/receipts anew: records of model runs with the
    /// hashes of their logits
    #[command(disable_help_flag = true)]
    Receipts(Passed),
    /// Time llama.cpp and both lanes of muser (strict and pinned arithmetic) on the
    /// same model file, in turn
    #[command(disable_help_flag = true)]
    Compare(Passed),
}

/// Options of a command that `muser-bench` runs, which `xtask` passes on to it unread.
#[derive(Debug, Args)]
struct Passed {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, hide = true)]
    options: Vec<OsString>,
}

/// Returns the root of the repository: the folder above the crate `xtask`.
fn root() -> PathBuf {
    let here = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    here.parent().map_or(here.clone(), PathBuf::from)
}

fn main() -> ExitCode {
    let outcome = match Cli::parse().command {
        Command::Tidy => tidy::command(&root()).map(|()| ExitCode::SUCCESS),
        Command::Math { functions } => math::command(&functions).map(|()| ExitCode::SUCCESS),
        Command::Parity(passed) => delegate::run(&root(), "parity", &passed.options),
        Command::Receipts(passed) => delegate::run(&root(), "receipts", &passed.options),
        Command::Compare(passed) => delegate::run(&root(), "compare", &passed.options),
    };
    match outcome {
        Ok(code) => code,
        Err(message) => {
            eprintln!("{message}");
            ExitCode::FAILURE
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn options_of_muser_bench_are_passed_on_as_they_are() {
        let words = ["--help", "--seed", "7", "--", "x"];
        let line = [&["xtask", "parity"], &words[..]].concat();
        let Command::Parity(passed) = Cli::try_parse_from(line).unwrap().command else {
            panic!("another command than parity");
        };
        assert_eq!(passed.options, words);
    }

    #[test]
    fn unknown_words_are_refused() {
        for line in [
            &["xtask"][..],
            &["xtask", "tidied"],
            &["xtask", "tidy", "x"],
        ] {
            assert!(Cli::try_parse_from(line).is_err(), "{line:?}");
        }
        let error = Cli::try_parse_from(["xtask", "math", "sin"]).unwrap_err();
        assert!(error.to_string().contains("sin"), "{error}");
    }
}
