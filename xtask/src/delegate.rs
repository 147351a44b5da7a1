//! Starts `muser-bench` in a release build.
//!
//! A program of its own, so that `cargo xtask tidy` does not wait for the engine
//! to be compiled.

use std::ffi::OsString;
use std::path::Path;
use std::process::{Command, ExitCode};

/// Runs a command of `muser-bench` and returns its exit code. Its output goes
/// where this program's goes.
///
/// # Errors
/// Cargo does not start, or a signal ended the program.
pub(crate) fn run(root: &Path, command: &str, options: &[OsString]) -> Result<ExitCode, String> {
    let mut cargo = Command::new(crate::tidy::cargo());
    cargo.args(["run", "--release", "--quiet", "--package", "muser-bench"]);
    // The root by its path: relative file names stay the caller's.
    cargo.arg("--manifest-path").arg(root.join("Cargo.toml"));
    cargo.args(["--", command]).args(options);
    let status = cargo.status().map_err(|e| format!("cargo: {e}"))?;
    match status.code().and_then(|code| u8::try_from(code).ok()) {
        Some(code) => Ok(ExitCode::from(code)),
        None => Err(format!("muser-bench {command}: {status}")),
    }
}
