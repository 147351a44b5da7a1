//! Exit codes and error messages.

use crate::output::{note, plain};
use std::io;
use std::path::PathBuf;
use std::process::ExitCode;

/// The help's text about exit codes.
pub(crate) const HELP: &str = "\
Exit codes:
  0    done
  1    failed: input, output, a full context, what the machine lacks
  2    the command line is wrong
  3    the model file cannot be read, is malformed or not supported
  129, 130, 143  hung up, interrupted, terminated";

/// An error of the command line: it asks for something that makes no sense.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Usage(pub String);

/// An error of the model file.
#[derive(Debug, thiserror::Error)]
#[error("{path} cannot be used as a model")]
pub(crate) struct BadModel {
    /// The file, or its name in messages.
    pub(crate) path: String,
    /// The reason.
    pub(crate) source: anyhow::Error,
}

/// An end by Ctrl-C.
#[derive(Debug, thiserror::Error)]
#[error("interrupted")]
pub(crate) struct Interrupted;

/// An output file that exists and must not be overwritten.
#[derive(Debug, thiserror::Error)]
#[error("{0} exists: --force overwrites it")]
pub(crate) struct Exists(pub PathBuf);

/// Prints the error, if there is one, and returns its exit code.
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

/// Whether the command line asks for something that the model lacks: an option out of
/// range, an unknown token, text without a tokenizer.
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

/// Formats `error:` and each cause on a line of its own, except causes that repeat the
/// line before.
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
