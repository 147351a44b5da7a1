//! Exit codes of the `muser` program, the errors that choose them, and the printing of error
//! messages.

use crate::output::{note, plain};
use std::io;
use std::path::PathBuf;
use std::process::ExitCode;

/// The list of exit codes that `muser --help` prints.
pub(crate) const HELP: &str = "\
Exit codes:
  0    done
  1    failed: input, output, a full context, what the machine lacks
  2    the command line is wrong
  3    the model file cannot be read, is malformed or not supported
  129, 130, 143  hung up, interrupted, terminated";

/// An error of the command line, exit code 2: an option or argument that makes no sense.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Usage(pub String);

/// An error of the model file, exit code 3: it cannot be read, is malformed or is not
/// supported.
#[derive(Debug, thiserror::Error)]
#[error("{path} cannot be used as a model")]
pub(crate) struct BadModel {
    /// The model's name in error messages: its file's path, or words for the embedded
    /// model.
    pub(crate) path: String,
    /// The reason why the file cannot be used as a model.
    pub(crate) source: anyhow::Error,
}

/// An error that says that Ctrl-C ended the command, exit code 130.
#[derive(Debug, thiserror::Error)]
#[error("interrupted")]
pub(crate) struct Interrupted;

/// An error: the output file exists and `--force` was not given.
#[derive(Debug, thiserror::Error)]
#[error("{0} exists: --force overwrites it")]
pub(crate) struct Exists(pub PathBuf);

/// Prints a command's error, if there is one, and returns the program's exit code.
pub(crate) fn code(result: anyhow::Result<()>) -> ExitCode {
    let Err(error) = result else {
        return ExitCode::SUCCESS;
    };
    if is_broken_pipe(&error) {
        // The reader has seen enough: `muser run | head -1` is no failure.
        return ExitCode::SUCCESS;
    }
    if !error.is::<Interrupted>() {
        tell(&error);
    }
    ExitCode::from(class(&error))
}

fn class(error: &anyhow::Error) -> u8 {
    if error.is::<Interrupted>() {
        130
    } else if error.is::<BadModel>() {
        3
    } else if error.is::<Usage>() || error.downcast_ref().is_some_and(asked_for) {
        2
    } else {
        1
    }
}

/// Returns whether an engine's error counts as one of the command line, which asked for
/// what the model lacks: an option out of range, an unknown token, text without a
/// tokenizer.
fn asked_for(error: &muser_engine::Error) -> bool {
    use muser_engine::Error as Engine;
    matches!(
        error,
        Engine::Parameter { .. }
            | Engine::UnknownToken { .. }
            | Engine::NoTokenizer
            | Engine::OtherTokenizer(_)
            | Engine::NoChatTemplate
    )
}

/// Prints an error and its chain of causes to standard error, one a line, without causes
/// that repeat the line before.
fn tell(error: &anyhow::Error) {
    let mut last = String::new();
    for (i, cause) in error.chain().enumerate() {
        let text = cause
            .to_string()
            .split_whitespace()
            .collect::<Vec<_>>()
            .join(" ");
        let text = plain(&text);
        if i == 0 {
            note(format_args!("error: {text}"));
        } else if !last.contains(&text) {
            note(format_args!("  cause: {text}"));
        }
        last = text;
    }
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| {
        let io = cause.downcast_ref::<io::Error>();
        io.is_some_and(|e| e.kind() == io::ErrorKind::BrokenPipe)
    })
}
