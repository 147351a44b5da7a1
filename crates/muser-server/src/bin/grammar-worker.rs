//! A worker process that compiles grammars, for the tests of this crate: a program that
//! runs a server has its own command for it.
#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    match muser_server::grammar_worker() {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}
