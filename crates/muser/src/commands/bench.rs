//! `muser bench`: measures tokens a second, and how near that is to the machine's read
//! bandwidth and int8 peak.

mod rig;
mod verify;

use crate::cli::Common;
use crate::exit::Usage;
use crate::measure::{Setting, Spread, Subject, tokens};
use crate::table::{Table, share};
use crate::{measure, output};
use clap::Args;
use indicatif::ProgressBar;
use muser_model::budget::Pass;
use muser_model::{Budget, Want};
use muser_ops::Backend;
use rig::Rig;
use serde::Serialize;
use verify::{Proof, WrongAnswer, verify, verify_widths};

/// Measures tokens a second over batch widths and depths of the context, and
/// how near that is to the machine's read bandwidth and peak of int8 operations.
#[derive(Debug, Args)]
#[command(after_help = "\
decode   calls of WIDTH tokens that give the logits of each
prefill  calls of WIDTH tokens that give the logits of the last, from width 2

Nothing is timed before it is proved: at each depth, the SHA-256 of the logits
must be the same in one batch, one token at a time, and in calls of each width.
In the pinned lane, where widths differ, each must give the same bits with the
kernels of a second instruction set (where there is one, else a second time).
Rounds go over all widths in turn. Bytes are weights and KV, each once a call;
operations are those of matrices and attention, two a multiply-add. The limit is
the lower of what bandwidth and peak allow; a model that fits in a cache can go
beyond it.

Examples:
  muser bench
  muser bench --widths 1,8,64 --depths 0,512,1024 --repeats 9
  muser --model model.gguf --threads 1 bench --widths 1
  muser bench --json | jq '.results[] | [.mode, .width, .tok_s.median]'")]
pub(crate) struct BenchArgs {
    /// Batch widths to measure: numbers of tokens in a forward call
    #[arg(long, value_name = "N,…", value_delimiter = ',', default_value = "1,2,4,8,16,32,256", value_parser = clap::value_parser!(u32).range(1..))]
    widths: Vec<u32>,
    /// Depths to measure: numbers of positions stored before a forward call
    #[arg(long, value_name = "N,…", value_delimiter = ',', default_value = "0")]
    depths: Vec<u32>,
    /// Rounds to measure, each over all batch widths
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    repeats: u32,
    /// Forward calls of each batch width to warm up with, before the first round
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    warm_up: u32,
    /// Milliseconds of forward calls that one measurement averages over
    #[arg(long, value_name = "MS", default_value_t = 100)]
    sample: u32,
    /// Rows of logits to compare between the batch widths before anything is timed
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..))]
    verify: u32,
    /// Size in MiB of the buffer that the read bandwidth is measured over; without it,
    /// four times the largest cache, 256 MiB at least
    #[arg(long, value_name = "MIB", value_parser = clap::value_parser!(u32).range(1..=65536))]
    buffer: Option<u32>,
    /// Print the result as one JSON object instead of text
    #[arg(long)]
    json: bool,
}

/// The two modes of the forward calls that the benchmark times: decode, which gives the
/// logits of every token, and prefill, which gives those of the last.
#[derive(Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Mode {
    Decode,
    Prefill,
}

impl Mode {
    fn want(self) -> Want {
        match self {
            Self::Decode => Want::All,
            Self::Prefill => Want::Last,
        }
    }
}

/// One line of the benchmark's result: the speed of forward calls of one mode (decode or
/// prefill), depth and width, beside the machine's limits.
#[derive(Serialize)]
struct Measurement {
    mode: Mode,
    depth: usize,
    width: usize,
    /// The number of forward calls that one sample of the benchmark averages over.
    calls: u32,
    /// Seconds of one forward call: median, smallest and largest of the benchmark's
    /// samples.
    seconds: Spread,
    tok_s: Spread,
    bytes: u64,
    flops: u64,
    /// Bytes of weights and KV that forward calls read per second, at the median time of
    /// a call.
    bandwidth: f64,
    /// Arithmetic operations that forward calls do per second, at the median time of a
    /// call.
    ops: f64,
    bandwidth_share: f64,
    peak_share: Option<f64>,
    /// Tokens per second that the machine's read bandwidth and int8 peak allow.
    limit_tok_s: f64,
    limit_share: f64,
}

#[derive(Serialize)]
struct Report {
    file: String,
    #[serde(flatten)]
    setting: Setting,
    repeats: u32,
    /// The machine's measured read bandwidth in bytes per second.
    read_bandwidth: f64,
    /// The machine's peak of int8 operations per second; `None` at an instruction-set
    /// level without int8 dot products.
    int8_peak: Option<f64>,
    verified: Vec<Verified>,
    results: Vec<Measurement>,
}

/// The logits that were compared at one depth before the benchmark's timing: their number
/// of rows, and the SHA-256 of the reference's rows.
#[derive(Serialize)]
struct Verified {
    depth: usize,
    rows: usize,
    sha256: String,
}

/// Runs `muser bench` with these arguments.
pub(crate) fn run(common: &Common, args: &BenchArgs) -> anyhow::Result<()> {
    let subject = Subject::open(common)?;
    let model = subject.on(subject.device.clone())?;
    let list = |list: &[u32]| {
        let mut list: Vec<usize> = list.iter().map(|&n| n as usize).collect();
        list.sort_unstable();
        list.dedup();
        list
    };
    let (widths, depths) = (list(&args.widths), list(&args.depths));
    let (Some(&widest), Some(&deepest)) = (widths.last(), depths.last()) else {
        return Err(Usage("expected at least one width and one depth".to_owned()).into());
    };
    let context = model.spec().context;
    let beyond = deepest.saturating_add(widest.max(args.verify as usize));
    if beyond > context {
        let usage = format!(
            "--depths, --widths and --verify: expected no more than the model's {context} \
             positions, found {beyond}"
        );
        return Err(Usage(usage).into());
    }
    let mut bench = Bench {
        args,
        budget: Budget::of_model(&model)?,
        read_bandwidth: subject.device.read_bandwidth(measure::buffer(args.buffer)),
        int8_peak: subject.device.int8_peak(),
        bar: bar(common, args, widths.len(), depths.len()),
        widths,
    };
    let ids = tokens(beyond, model.spec().vocab);
    let mut rig = Rig::new(&model, &ids);
    let witness = match model.lane().width_matters() {
        true => Some(subject.on(subject.second(common)?)?),
        false => None,
    };
    let mut witness = witness.as_ref().map(|model| Rig::new(model, &ids));
    let mut report = Report {
        file: subject.name,
        setting: Setting::of(&subject.device.info()),
        repeats: args.repeats,
        read_bandwidth: bench.read_bandwidth,
        int8_peak: bench.int8_peak,
        verified: Vec::new(),
        results: Vec::new(),
    };
    for depth in depths {
        bench.depth(&mut rig, witness.as_mut(), depth, &mut report)?;
    }
    bench.bar.finish_and_clear();
    if args.json {
        return output::json(&report);
    }
    let text = report.text();
    Ok(output::line(format_args!("{}", text.trim_end()))?)
}

fn bar(common: &Common, args: &BenchArgs, widths: usize, depths: usize) -> ProgressBar {
    let steps = depths as u64 * (1 + 2 * widths as u64 * u64::from(args.repeats));
    output::bar(common, steps, "bench [{bar:30}] {msg}, {eta} left")
}

struct Bench<'a> {
    args: &'a BenchArgs,
    budget: Budget,
    widths: Vec<usize>,
    read_bandwidth: f64,
    int8_peak: Option<f64>,
    bar: ProgressBar,
}

/// One case of the benchmark: forward calls of one width and mode (decode or prefill),
/// with the samples taken so far.
struct Case {
    mode: Mode,
    width: usize,
    /// The SHA-256 that the last row of logits of a timed forward call must have.
    last: String,
    calls: u32,
    /// The mean seconds of one forward call: one value per sample of the benchmark.
    samples: Vec<f64>,
}

impl Bench<'_> {
    /// Checks the logits of forward calls of all widths at one depth (positions stored
    /// before a call), then times the calls and adds the results to the report.
    fn depth<B: Backend>(
        &mut self,
        rig: &mut Rig<'_, B>,
        witness: Option<&mut Rig<'_, B>>,
        depth: usize,
        report: &mut Report,
    ) -> anyhow::Result<()> {
        let rows = self.args.verify as usize;
        self.bar.set_message(format!("depth {depth}: proof"));
        rig.go_to(depth)?;
        let run = &mut |width, want| Ok(rig.rows(width, rows, want)?);
        let proof = match witness {
            None => verify(&self.widths, rows, depth, run)?,
            Some(rig) => {
                rig.go_to(depth)?;
                let witness = &mut |width, want| Ok(rig.rows(width, rows, want)?);
                verify_widths(&self.widths, rows, depth, run, witness)?
            }
        };
        self.bar.inc(1);
        let mut cases = self.cases(rig, &proof)?;
        for _ in 0..self.args.repeats {
            for case in &mut cases {
                let message = format!("depth {depth}: calls of {}", case.width);
                self.bar.set_message(message);
                case.sample(rig)?;
                self.bar.inc(1);
            }
        }
        report.verified.push(Verified {
            depth,
            rows,
            sha256: proof.hash,
        });
        let results = cases.iter().map(|case| self.measurement(case, depth));
        report.results.extend(results);
        Ok(())
    }

    /// Warms up the benchmark with calls of every width in both modes, and returns the
    /// cases to measure: all but prefill of one token, which is the same as decode.
    fn cases<B: Backend>(&self, rig: &mut Rig<'_, B>, proof: &Proof) -> anyhow::Result<Vec<Case>> {
        let mut cases = Vec::new();
        for mode in [Mode::Decode, Mode::Prefill] {
            for (&width, last) in self.widths.iter().zip(&proof.last) {
                if mode == Mode::Prefill && width == 1 {
                    continue;
                }
                let mut seconds = 0.0;
                for _ in 0..self.args.warm_up {
                    seconds = rig.time(width, mode.want(), false)?.0.as_secs_f64();
                }
                let calls = f64::from(self.args.sample) / 1e3 / seconds.max(1e-9);
                cases.push(Case {
                    mode,
                    width,
                    last: last[mode as usize].clone(),
                    calls: calls.ceil().clamp(1.0, 1e6) as u32,
                    samples: Vec::new(),
                });
            }
        }
        Ok(cases)
    }

    fn measurement(&self, case: &Case, depth: usize) -> Measurement {
        let width = case.width;
        let pass = self.budget.forward(depth, width, case.mode.want());
        let seconds = Spread::of(&case.samples);
        let tok_s = seconds.rate(width as f64);
        let bandwidth = pass.bytes() as f64 / seconds.median;
        let ops = pass.flops as f64 / seconds.median;
        let limit_tok_s = width as f64 / self.least(&pass);
        Measurement {
            mode: case.mode,
            depth,
            width,
            calls: case.calls,
            seconds,
            tok_s,
            bytes: pass.bytes(),
            flops: pass.flops,
            bandwidth,
            ops,
            bandwidth_share: bandwidth / self.read_bandwidth,
            peak_share: self.int8_peak.map(|peak| ops / peak),
            limit_tok_s,
            limit_share: tok_s.median / limit_tok_s,
        }
    }

    /// Returns the fewest seconds that a forward pass can take at the machine's read bandwidth
    /// and int8 peak.
    fn least(&self, pass: &Pass) -> f64 {
        let read = pass.bytes() as f64 / self.read_bandwidth;
        let compute = self.int8_peak.map_or(0.0, |peak| pass.flops as f64 / peak);
        read.max(compute)
    }
}

impl Case {
    /// Takes one sample of the benchmark: the mean time of some forward calls. Fails
    /// unless the last row of the last call's logits has the hash that was checked
    /// before.
    fn sample<B: Backend>(&mut self, rig: &mut Rig<'_, B>) -> anyhow::Result<()> {
        let mut seconds = 0.0;
        for i in 0..self.calls {
            let hash = i + 1 == self.calls;
            let (time, found) = rig.time(self.width, self.mode.want(), hash)?;
            seconds += time.as_secs_f64();
            if let Some(found) = found
                && found != self.last
            {
                return Err(WrongAnswer {
                    what: format!("calls of {} tokens, timed", self.width),
                    expected: self.last.clone(),
                    found,
                }
                .into());
            }
        }
        self.samples.push(seconds / f64::from(self.calls));
        Ok(())
    }
}

impl Report {
    fn text(&self) -> String {
        let peak = match self.int8_peak {
            Some(peak) => format!("{:.0} GOP/s", peak / 1e9),
            None => "none at this level".to_owned(),
        };
        let mut text = format!(
            "{}: {}, {} rounds\nread bandwidth {:.1} GB/s, int8 peak {peak}\n",
            self.file,
            self.setting,
            self.repeats,
            self.read_bandwidth / 1e9,
        );
        for v in &self.verified {
            let Verified {
                depth,
                rows,
                sha256,
            } = v;
            text += &format!("depth {depth}: {rows} rows of logits have SHA-256 {sha256}\n");
        }
        let mut table = Table::new([
            "", "depth", "width", "tok/s", "min-max", "ms", "GB/s", "of read", "GFLOP/s",
            "of peak", "limit", "of limit",
        ]);
        for m in &self.results {
            let mode = match m.mode {
                Mode::Decode => "decode",
                Mode::Prefill => "prefill",
            };
            table.row([
                mode.to_owned(),
                m.depth.to_string(),
                m.width.to_string(),
                format!("{:.1}", m.tok_s.median),
                format!("{:.1}-{:.1}", m.tok_s.min, m.tok_s.max),
                format!("{:.3}", 1e3 * m.seconds.median),
                format!("{:.1}", m.bandwidth / 1e9),
                share(m.bandwidth_share, 1.0),
                format!("{:.1}", m.ops / 1e9),
                m.peak_share.map_or("-".to_owned(), |s| share(s, 1.0)),
                format!("{:.1}", m.limit_tok_s),
                share(m.limit_share, 1.0),
            ]);
        }
        text + "\n" + &table.text()
    }
}
