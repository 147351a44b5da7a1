//! `muser convert`: writes a copy of a model with its matrices dequantised.

use crate::cli::Common;
use crate::exit::Usage;
use crate::load;
use crate::output::{self, OutFile, note};
use clap::{Args, ValueEnum};
use muser_quant::DType;
use std::path::PathBuf;

/// Writes a copy of a model with its matrices dequantised to F16, BF16 or F32.
///
/// Its numbers are those that the quantised weights stand for, so what still differs
/// in its logits is the cost of quantised activations.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  muser convert model.gguf model-f16.gguf --to f16
  muser convert --to bf16 model.gguf model-bf16.gguf --force
  muser convert --to f16 --embedded nano-f16.gguf")]
pub(crate) struct ConvertArgs {
    /// The GGUF file to convert; leave it out with --embedded
    #[arg(value_name = "IN", required_unless_present = "embedded")]
    input: Option<PathBuf>,
    /// The GGUF file to write
    #[arg(value_name = "OUT", required_unless_present = "embedded")]
    output: Option<PathBuf>,
    /// Convert the embedded model, and write this file
    #[arg(long, value_name = "OUT", conflicts_with_all = ["input", "output"])]
    embedded: Option<PathBuf>,
    /// The format that the matrices are converted to; norms become F32
    #[arg(long, value_enum)]
    to: Target,
    /// Overwrite the output file if it exists
    #[arg(long)]
    force: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Target {
    F16,
    Bf16,
    F32,
}

/// Runs `muser convert` with these arguments.
pub(crate) fn run(common: &Common, args: &ConvertArgs) -> anyhow::Result<()> {
    let Some(path) = args.embedded.as_deref().or(args.output.as_deref()) else {
        return Err(Usage("expected a file to write".to_owned()).into());
    };
    let (_, gguf) = load::file(args.input.as_deref())?;
    let to = match args.to {
        Target::F16 => DType::F16,
        Target::Bf16 => DType::BF16,
        Target::F32 => DType::F32,
    };
    let mut out = OutFile::create(path, args.force)?;
    let bar = output::bar(common, 0, output::BYTES_BAR).with_message("convert");
    muser_model::convert::convert(&gguf, to, &mut out, &mut |done, total| {
        bar.set_length(total);
        bar.set_position(done);
    })?;
    bar.finish_and_clear();
    let file = out.finish()?;
    if !common.quiet {
        let bytes = output::bytes(file.metadata()?.len());
        note(format_args!("{}: {bytes}", path.display()));
    }
    Ok(())
}
