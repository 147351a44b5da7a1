//! The command line's definition: the options that every command of `muser` takes, and
//! the list of commands.

use crate::{commands, exit};
use clap::{Args, Parser, Subcommand, ValueEnum};
use muser_cpu::Level;
use muser_ops::Profile;
use std::path::PathBuf;

/// muser runs language models from GGUF files (Muse Glimmer, Llama) with the same bits
/// however it computes them: any number of threads, any instruction set, any
/// cut of the prompt. Or, with --lane pinned, llama.cpp's own bits.
#[derive(Debug, Parser)]
#[command(
    name = "muser",
    version,
    propagate_version = true,
    after_help = format!("{EXAMPLES}\n\n{}", exit::HELP)
)]
pub(crate) struct Cli {
    /// The options that every command takes: model, threads, instruction set, lane (the
    /// arithmetic).
    #[command(flatten)]
    pub(crate) common: Common,
    /// The command to run: `run`, `chat`, `serve`, …
    #[command(subcommand)]
    pub(crate) command: Command,
}

const EXAMPLES: &str = "\
Examples:
  muser run                              a story from the embedded model
  muser run \"I want a story about a fox.\" -n 200 --seed 7
  muser chat
  muser --model FILE.gguf inspect --tensors
  muser doctor";

/// The options that every command takes: model file, threads, instruction-set level, lane
/// (the arithmetic of a forward pass) and profile.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Common options")]
pub(crate) struct Common {
    /// The model, a GGUF file; without it, the embedded one
    #[arg(long, global = true, env = "MUSER_MODEL", value_name = "FILE")]
    pub(crate) model: Option<PathBuf>,
    /// Threads to compute with; without it, the physical cores that the machine gives
    #[arg(long, global = true, value_name = "N")]
    pub(crate) threads: Option<usize>,
    /// Instruction set of the kernels: scalar, avx2 or avx512; without it, the best that
    /// this machine has
    #[arg(long, global = true, value_name = "LEVEL")]
    pub(crate) level: Option<Level>,
    /// Lane: the arithmetic that the forward pass computes in
    #[arg(long, global = true, value_enum, default_value_t = LaneArg::Strict)]
    pub(crate) lane: LaneArg,
    /// Build of llama.cpp whose bits --lane pinned gives: llamacpp-avx2 or llamacpp-avx512
    #[arg(long, global = true, value_name = "PROFILE")]
    pub(crate) profile: Option<Profile>,
    /// The most memory for K and V of all sequences, in MiB; without it, no bound but
    /// the machine's. Where it is full, the command ends, and the server answers 503
    #[arg(long, global = true, value_name = "N",
        value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) kv_mib: Option<u64>,
    /// Nothing on standard error but errors
    #[arg(short, long, global = true)]
    pub(crate) quiet: bool,
}

/// The values of `--lane`: the arithmetic of a forward pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum LaneArg {
    /// muser's own arithmetic: the same bits however the logits are computed
    Strict,
    /// llama.cpp's arithmetic: the bits of the build that --profile names
    Pinned,
}

/// The commands of `muser`, each in a module of its own under `commands`.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Continue a prompt: text in, text out
    Run(Box<commands::run::RunArgs>),
    /// Talk with the model in a line editor
    Chat(Box<commands::chat::ChatArgs>),
    /// Serve the model over HTTP, compatible with OpenAI's API
    Serve(Box<commands::serve::ServeArgs>),
    /// Show what is in a GGUF file
    Inspect(commands::inspect::InspectArgs),
    /// Turn text into token ids
    Tokenize(commands::tokenize::TokenizeArgs),
    /// Turn token ids into text
    Detokenize(commands::detokenize::DetokenizeArgs),
    /// Write the logits after each token of a sequence
    Logits(commands::logits::LogitsArgs),
    /// Measure how well the model predicts a text
    Perplexity(commands::perplexity::PerplexityArgs),
    /// Dequantise a model's matrices to F16, BF16 or F32
    Convert(commands::convert::ConvertArgs),
    /// Write a GGUF file of random weights
    Synth(commands::synth::SynthArgs),
    /// Show what computing a token costs: bytes, operations, and the speed they allow
    Budget(commands::budget::BudgetArgs),
    /// Measure tokens a second over batch widths and depths of the context
    Bench(commands::bench::BenchArgs),
    /// Show which operations and layers take the time of a prompt and of a token
    Profile(commands::profile::ProfileArgs),
    /// Write or check receipts: hashes of logits, reproducible to the bit
    Parity(commands::parity::ParityArgs),
    /// Show the ladder, the table of which kernel computes which matrix product
    Routes(commands::routes::RoutesArgs),
    /// Show what this machine gives: instruction sets, kernels, threads, read bandwidth
    Doctor(commands::doctor::DoctorArgs),
    /// Compile grammars of JSON schemas for `muser serve`, which starts this process itself
    #[command(hide = true)]
    GrammarWorker,
}
