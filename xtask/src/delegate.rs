//! Starts the program `muser-bench`, which compares muser with llama.cpp, in a release
//! build.
//!
//! It is a program of its own, so that `cargo xtask tidy` does not wait for the engine
//! to be compiled.

use std::ffi::OsString;
use std::path::Path;
use std::process::{Command, ExitCode};

/// Runs a command of the program `muser-bench` and returns its exit code. Its output
/// goes where this program's goes.
///
/// # Errors
/// Cargo does not start, or a signal ended the program.
pub(crate) fn run(root: &Path, command: &str, options: &[OsString]) -> Result<ExitCode, String> {
    let mut cargo = Command::new(crate::tidy::cargo());
    cargo.args(["run", "--release", "--quiet", "--package", "muser-bench"]);
    // The workspace is named by its path instead of entered, so that relative file
    // names stay the caller's.
    cargo.arg("--manifest-path").arg(root.join("Cargo.toml"));
    cargo.args(["--", command]).args(options);
    let status = cargo.status().map_err(|e| format!("cargo: {e}"))?;
    match status.code().and_then(|code| u8::try_from(code).ok()) {
        Some(code) => Ok(ExitCode::from(code)),
        None => Err(format!("muser-bench {command}: {status}")),
    }
}
