//! The commands of `muser`, each in a file of its own, and the choice of the one to run.

pub(crate) mod bench;
pub(crate) mod budget;
pub(crate) mod chat;
pub(crate) mod convert;
pub(crate) mod detokenize;
pub(crate) mod doctor;
pub(crate) mod inspect;
pub(crate) mod logits;
pub(crate) mod parity;
pub(crate) mod perplexity;
pub(crate) mod profile;
pub(crate) mod routes;
pub(crate) mod run;
pub(crate) mod serve;
pub(crate) mod synth;
pub(crate) mod tokenize;

use crate::cli::{Cli, Command};

/// Runs the command that the command line names.
pub(crate) fn run(cli: &Cli) -> anyhow::Result<()> {
    let common = &cli.common;
    match &cli.command {
        Command::Run(args) => run::run(common, args),
        Command::Chat(args) => chat::run(common, args),
        Command::Serve(args) => serve::run(common, args),
        Command::Inspect(args) => inspect::run(common, args),
        Command::Tokenize(args) => tokenize::run(common, args),
        Command::Detokenize(args) => detokenize::run(common, args),
        Command::Logits(args) => logits::run(common, args),
        Command::Perplexity(args) => perplexity::run(common, args),
        Command::Convert(args) => convert::run(common, args),
        Command::Synth(args) => synth::run(common, args),
        Command::Budget(args) => budget::run(common, args),
        Command::Bench(args) => bench::run(common, args),
        Command::Profile(args) => profile::run(common, args),
        Command::Parity(args) => parity::run(common, args),
        Command::Routes(args) => routes::run(common, args),
        Command::Doctor(args) => doctor::run(common, args),
        Command::GrammarWorker => Ok(muser_server::grammar_worker()?),
    }
}
