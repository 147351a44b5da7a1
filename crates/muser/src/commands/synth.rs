//! `muser synth`: writes a GGUF file of random weights, for timing and for tests.

use crate::cli::Common;
use crate::exit::Usage;
use crate::output::{self, OutFile, note};
use clap::Args;
use muser_model::synth::{self, Geometry, Mix};
use muser_model::{ARCHITECTURES, ModelError};
use std::path::PathBuf;

/// Writes a model of random weights, for timing and for tests.
///
/// It has the architecture and the weight formats of a real model, but no tokenizer, and
/// what it generates means nothing. The same options give the same file on every machine.
#[derive(Debug, Args)]
#[command(after_help = "\
Geometries: glimmer-30b (the release), glimmer-nano (the embedded model's),
glimmer-tiny (the smallest), llama-8b, llama-tiny. An --arch takes its smallest
geometry, or the sizes of the --geometry that is given. Mixes: q4_k_m (the release's), q4_k, q5_k, q6_k,
f16, bf16, f32.

Examples:
  muser synth --geometry glimmer-30b --layers 8 30b-8.gguf      4.0 GB
  muser synth --geometry glimmer-tiny --mix f16 tiny.gguf
  muser synth --arch llama --mix q4_k --tied llama.gguf
  muser synth --geometry glimmer-nano --vocab 32000 --seed 5 nano.gguf
  muser --model 30b-8.gguf run --tokens 1,2,3 -n 32 --ids")]
pub(crate) struct SynthArgs {
    /// The GGUF file to write
    #[arg(value_name = "OUT")]
    output: PathBuf,
    /// The architecture, as a GGUF file's general.architecture names it: muse-glimmer or
    /// llama; without it, the geometry's
    #[arg(long, value_name = "NAME")]
    arch: Option<String>,
    /// The geometry: the model sizes to start from; without it, those of glimmer-nano
    #[arg(long, value_name = "NAME")]
    geometry: Option<String>,
    /// The mix: the weight formats of the model's matrices
    #[arg(long, value_name = "NAME", default_value = "q4_k_m")]
    mix: String,
    /// Seed of the random weights
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Number of layers of the model
    #[arg(long, value_name = "N")]
    layers: Option<usize>,
    /// Width of the model's residual stream
    #[arg(long, value_name = "N")]
    hidden: Option<usize>,
    /// Number of query heads of a layer's attention
    #[arg(long, value_name = "N")]
    heads: Option<usize>,
    /// Number of KV heads of a layer's attention
    #[arg(long, value_name = "N")]
    kv_heads: Option<usize>,
    /// Number of values in an attention head
    #[arg(long, value_name = "N")]
    head_dim: Option<usize>,
    /// Width of a layer's FFN (feed-forward network)
    #[arg(long, value_name = "N")]
    ffn: Option<usize>,
    /// Number of tokens in the vocabulary
    #[arg(long, value_name = "N")]
    vocab: Option<usize>,
    /// Number of last positions that a layer with sliding attention sees
    #[arg(long, value_name = "N")]
    window: Option<usize>,
    /// Number of positions of the model's context
    #[arg(long, value_name = "N")]
    context: Option<usize>,
    /// Every N-th layer has full attention, the others sliding attention
    #[arg(long, value_name = "N")]
    period: Option<usize>,
    /// Use the embedding as the output matrix, too: no output.weight in the file
    #[arg(long)]
    tied: bool,
    /// Overwrite the output file if it exists
    #[arg(long)]
    force: bool,
}

impl SynthArgs {
    fn geometry(&self) -> anyhow::Result<Geometry> {
        let arch = self.arch.as_deref().map(architecture).transpose()?;
        let smallest = arch.and_then(Geometry::smallest);
        let name = self.geometry.as_deref().or(smallest);
        let name = name.unwrap_or("glimmer-nano");
        let mut g = Geometry::named(name).ok_or_else(|| {
            let names = Geometry::NAMES.join(", ");
            Usage(format!(
                "--geometry: expected one of {names}, found {name:?}"
            ))
        })?;
        g.arch = arch.unwrap_or(g.arch);
        g.tied = self.tied;
        let given = [("window", self.window), ("period", self.period)];
        for (what, _) in given.into_iter().filter(|(_, value)| value.is_some()) {
            if g.unused()?.contains(&what) {
                let usage = format!("--{what}: expected none, for {} has no use for it", g.arch);
                return Err(Usage(usage).into());
            }
        }
        let changes = [
            (&mut g.layers, self.layers),
            (&mut g.hidden, self.hidden),
            (&mut g.heads, self.heads),
            (&mut g.kv_heads, self.kv_heads),
            (&mut g.head_dim, self.head_dim),
            (&mut g.ffn, self.ffn),
            (&mut g.vocab, self.vocab),
            (&mut g.window, self.window),
            (&mut g.context, self.context),
            (&mut g.period, self.period),
        ];
        for (size, change) in changes {
            *size = change.unwrap_or(*size);
        }
        Ok(g)
    }

    fn mix(&self) -> anyhow::Result<Mix> {
        let unknown = || {
            let names: Vec<&str> = Mix::ALL.iter().map(|mix| mix.name()).collect();
            let names = names.join(", ");
            Usage(format!(
                "--mix: expected one of {names}, found {:?}",
                self.mix
            ))
            .into()
        };
        Mix::from_name(&self.mix).ok_or_else(unknown)
    }
}

/// Returns the model architecture of this name; the error for an unknown one lists the known
/// ones.
fn architecture(name: &str) -> anyhow::Result<&'static str> {
    let found = ARCHITECTURES.into_iter().find(|arch| *arch == name);
    let names = || ARCHITECTURES.join(", ");
    let usage = || {
        Usage(format!(
            "--arch: expected one of {}, found {name:?}",
            names()
        ))
    };
    Ok(found.ok_or_else(usage)?)
}

/// Runs `muser synth` with these arguments.
pub(crate) fn run(common: &Common, args: &SynthArgs) -> anyhow::Result<()> {
    let (geometry, mix) = (args.geometry()?, args.mix()?);
    let mut out = OutFile::create(&args.output, args.force)?;
    let bar = output::bar(common, 0, output::BYTES_BAR).with_message("synth");
    synth::write(&geometry, mix, args.seed, &mut out, &mut |done, total| {
        bar.set_length(total);
        bar.set_position(done);
    })
    .map_err(|e| match e {
        ModelError::Geometry { .. } => anyhow::Error::from(Usage(e.to_string())),
        e => e.into(),
    })?;
    bar.finish_and_clear();
    let file = out.finish()?;
    if !common.quiet {
        let bytes = output::bytes(file.metadata()?.len());
        note(format_args!("{}: {bytes}", args.output.display()));
    }
    Ok(())
}
