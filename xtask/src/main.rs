//! The project's own tools.
//!
//! ```text
//! cargo xtask tidy                 checks what the compiler can't: see `tidy`
//! cargo xtask math [FUNCTION …]    error over all 2^32 inputs: see `math`
//! cargo xtask parity [OPTION …]    the pinned lane against llama.cpp: see `parity`
//! cargo xtask receipts             the receipts in `fixtures`: see `parity::receipts`
//! cargo xtask compare [OPTION …]   timed against llama.cpp: see `compare`
//! ```
#![forbid(unsafe_code)]

mod compare;
mod math;
mod parity;
mod tidy;

use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

const USAGE: &str = "usage: cargo xtask tidy
       cargo xtask math [exp] [sigmoid] [silu] [tanh] [expf] [tanhf]
       cargo xtask parity [--profile llamacpp-avx2|llamacpp-avx512] [--seed N] [--quick]
                          [--subject cpu|oracle] [--level scalar|avx2|avx512] [--only TEXT]
       cargo xtask receipts
       cargo xtask compare [--model FILE] [--profile llamacpp-avx2|llamacpp-avx512]
                           [--widths N,…] [--depths N,…] [--threads N] [--rounds N] [--sample MS]
                           [--open-rounds N] [--swa-full] [--record NAME]";

/// The repository: the folder above this crate.
fn root() -> PathBuf {
    let here = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    here.parent().map_or(here.clone(), PathBuf::from)
}

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    if args
        .iter()
        .any(|arg| matches!(*arg, "--help" | "-h" | "help"))
    {
        // A reader that has gone wants no more help.
        let _ = writeln!(std::io::stdout(), "{USAGE}");
        return ExitCode::SUCCESS;
    }
    let outcome = match args[..] {
        ["tidy"] => tidy::command(&root()),
        ["math", ref names @ ..] => math::command(names),
        ["receipts"] => parity::receipts::command(&root()),
        ["parity", ref options @ ..] => parity::command(&root(), options),
        ["compare", ref options @ ..] => compare::command(&root(), options),
        _ => Err(USAGE.to_owned()),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("{message}");
            ExitCode::FAILURE
        }
    }
}
