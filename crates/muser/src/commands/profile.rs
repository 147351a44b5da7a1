//! `muser profile`: shows which operations and layers take the time of a prompt and of a
//! token.

mod report;
mod trace;

use crate::cli::Common;
use crate::exit::Usage;
use crate::measure::{RowHash, Setting, Subject, tokens};
use crate::output::{self, OutFile};
use clap::Args;
use muser_engine::Token;
use muser_model::{Cache, Transformer, Want};
use muser_ops::Backend;
use muser_ops::profiler::{Event, Profiled};
use report::{Phase, Report};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Shows which operations and layers take the time of a prompt and of a token: time,
/// bytes and GB/s of each operation and of each layer.
#[derive(Debug, Args)]
#[command(after_help = "\
A projection set is one set, and one kernel dispatch a matrix: q, k, v and gate
are one set and four dispatches. Any other operation is one dispatch and no set.
Bytes are those that an operation must move, each once: weights, K and V, and
activations; what caches keep makes GB/s look better than memory is.

The prompt and the tokens after it are ids without a pattern. Rounds with and
without the instrument alternate: their logits must have the same bits, and
their times say what the instrument costs.

Examples:
  muser profile
  muser profile --prompt 512 --decode 32 --rounds 5
  muser profile --trace trace.json            for chrome://tracing or Perfetto
  muser --model model.gguf profile --json | jq .decode.totals")]
pub(crate) struct ProfileArgs {
    /// Tokens of the prompt, which is computed in one forward call
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..))]
    prompt: u32,
    /// Tokens to decode after the prompt, one at a time
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..))]
    decode: u32,
    /// Rounds to measure, after one to warm up
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Write a timeline of the last round's operations to this file, as a Chrome trace
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// Overwrite the trace file if it exists
    #[arg(long)]
    force: bool,
    /// Print the result as one JSON object instead of text
    #[arg(long)]
    json: bool,
}

/// The token ids that each round of `muser profile` computes: a prompt, and the tokens
/// decoded after it.
struct Work {
    prompt: Vec<Token>,
    decode: Vec<Token>,
}

/// The times and results of one round of `muser profile`: a prefill of the prompt and the
/// decoding after it.
struct Round {
    prefill: Duration,
    decode: Duration,
    /// The SHA-256 over all logits of the round: those after the prompt and after each
    /// decoded token.
    hash: String,
    prefill_events: Vec<Event>,
    decode_events: Vec<Event>,
}

/// Runs `muser profile` with these arguments.
pub(crate) fn run(common: &Common, args: &ProfileArgs) -> anyhow::Result<()> {
    let subject = Subject::open(common)?;
    let plain = subject.on(subject.device.clone())?;
    let measured = subject.on(Arc::new(Profiled::new(subject.device.clone())))?;
    let spec = plain.spec();
    let (prompt, decode) = (args.prompt as usize, args.decode as usize);
    if prompt.saturating_add(decode) > spec.context {
        let context = spec.context;
        let usage = format!(
            "--prompt and --decode: expected no more than the model's {context} positions, \
             found {prompt} and {decode}"
        );
        return Err(Usage(usage).into());
    }
    let mut ids = tokens(prompt + decode, spec.vocab);
    let work = Work {
        decode: ids.split_off(prompt),
        prompt: ids,
    };
    // Opened before any work, so that a trace that cannot be written costs no minutes.
    let trace = args.trace.as_deref();
    let trace = trace.map(|path| OutFile::create(path, args.force));
    let trace = trace.transpose()?;

    let mut rounds = rounds(&plain, &measured, &work, args.rounds)?;
    let report = Report {
        name: subject.name,
        setting: Setting::of(&subject.device.info()),
        rounds: args.rounds,
        prefill: Phase::new(work.prompt.len(), 1, &rounds, |r| {
            (r.prefill, &r.prefill_events)
        }),
        decode: Phase::new(1, work.decode.len(), &rounds, |r| {
            (r.decode, &r.decode_events)
        }),
    };
    if let (Some(mut file), Some((_, last))) = (trace, rounds.pop()) {
        trace::write(&mut file, &last.prefill_events, &last.decode_events)?;
        file.finish()?;
    }
    if args.json {
        return output::json(&report);
    }
    let text = report.text();
    Ok(output::line(format_args!("{}", text.trim_end()))?)
}

/// Runs pairs of rounds of `muser profile`, one without and one with the profiler, after
/// a pair to warm up, and checks that both give the same logits. The order within a pair
/// alternates, so that neither always profits from the caches that the other has filled.
fn rounds<B: Backend>(
    plain: &Transformer<B>,
    measured: &Transformer<Profiled<B>>,
    work: &Work,
    count: u32,
) -> anyhow::Result<Vec<(Round, Round)>> {
    let context = work.prompt.len() + work.decode.len();
    let mut plain_cache = plain.cache(context);
    let mut measured_cache = measured.cache(context);
    let mut without = || round(plain, &mut plain_cache, work, &Vec::new);
    let mut with = || {
        let profiler = measured.backend();
        profiler.take();
        round(measured, &mut measured_cache, work, &|| profiler.take())
    };
    let mut rounds = Vec::new();
    for i in 0..=count {
        let pair = if i.is_multiple_of(2) {
            let first = without()?;
            (first, with()?)
        } else {
            let first = with()?;
            (without()?, first)
        };
        if pair.0.hash != pair.1.hash {
            anyhow::bail!(
                "the logits differ with the instrument: SHA-256 {} without, {} with",
                pair.0.hash,
                pair.1.hash
            );
        }
        if i > 0 {
            rounds.push(pair);
        }
    }
    Ok(rounds)
}

fn round<B: Backend>(
    model: &Transformer<B>,
    cache: &mut Cache<B>,
    work: &Work,
    events: &dyn Fn() -> Vec<Event>,
) -> anyhow::Result<Round> {
    cache.clear();
    let mut hash = RowHash::default();
    let mut row = Vec::new();
    // The logits are hashed between calls, outside of the measured time.
    let mut call = |ids: &[Token]| -> anyhow::Result<Duration> {
        let start = Instant::now();
        model.forward(cache, ids, Want::Last, &mut |_, logits| {
            row.clear();
            row.extend_from_slice(logits);
        })?;
        let time = start.elapsed();
        hash.add(&row);
        Ok(time)
    };
    let prefill = call(&work.prompt)?;
    let prefill_events = events();
    let mut decode = Duration::ZERO;
    for &id in &work.decode {
        decode += call(&[id])?;
    }
    Ok(Round {
        prefill,
        decode,
        hash: hash.hex(),
        prefill_events,
        decode_events: events(),
    })
}
