//! Sums the profiler's measurements by operation and by layer, and formats them as tables or
//! as JSON.

use super::Round;
use crate::measure::{Setting, Spread};
use crate::output;
use crate::table::{Table, grouped, share};
use muser_ops::Stage;
use muser_ops::profiler::{Counts, Event, Op};
use serde::Serialize;
use std::collections::HashMap;
use std::time::Duration;

/// All that `muser profile` prints: the model, the lane (the arithmetic), instruction set
/// and threads, and the times of prefill and decode.
#[derive(Serialize)]
pub(super) struct Report {
    #[serde(rename = "file")]
    pub(super) name: String,
    #[serde(flatten)]
    pub(super) setting: Setting,
    pub(super) rounds: u32,
    pub(super) prefill: Phase,
    pub(super) decode: Phase,
}

/// The profile of a phase, prefill or decode. Its times and counts are those of one forward
/// pass: over the prompt, or over one token.
#[derive(Serialize)]
pub(super) struct Phase {
    /// The number of tokens in one forward pass of this phase (prefill or decode).
    tokens: usize,
    /// The number of forward passes in one round of this phase (prefill or decode).
    passes: usize,
    /// Tokens per second without the profiler: median, smallest and largest of the
    /// rounds.
    tok_s_plain: Spread,
    /// Tokens per second with the profiler: median, smallest and largest of the rounds.
    tok_s_profiled: Spread,
    /// The profiler's cost: the median time with it divided by the median time without it,
    /// less one.
    overhead: f64,
    /// Seconds of one forward pass with the profiler, the mean of all rounds.
    seconds: f64,
    /// Seconds of one forward pass that lie outside of any operation, the mean of all rounds.
    outside_seconds: f64,
    totals: Line,
    ops: Vec<Line>,
    layers: Vec<Line>,
}

/// A line of the profile: time and counts of one kind of operation, or of one layer, in one
/// forward pass.
#[derive(Clone, Default, Serialize)]
struct Line {
    /// The part of the forward pass that this line sums: `embed`, `attention`, `ffn` or
    /// `head`; in the lines by layer, the number of a layer.
    part: String,
    /// The operation's name; that of a projection set (matrices that multiply the same
    /// input) lists the matrices. Empty in the lines by layer.
    op: String,
    calls: u64,
    sets: u64,
    dispatches: u64,
    seconds: f64,
    weight_bytes: u64,
    /// Bytes of K and V read and written in a forward pass. A mean, because attention sees
    /// one position more with each token.
    kv_bytes: f64,
    activation_bytes: u64,
    /// Floating-point operations of a forward pass, the mean of all passes.
    flops: f64,
}

impl Line {
    fn bytes(&self) -> f64 {
        (self.weight_bytes + self.activation_bytes) as f64 + self.kv_bytes
    }
}

/// The sums of counts and times over several operations that the profiler recorded.
#[derive(Default)]
struct Sum {
    counts: Counts,
    time: Duration,
}

impl Sum {
    fn add(&mut self, event: &Event) {
        self.counts += event.counts;
        self.time += event.time;
    }

    /// Returns one line of the profile, the means over `passes` forward passes of these
    /// sums. Counts that do not depend on the depth are the same in each pass, so that
    /// their integer division is exact.
    fn line(&self, part: &str, op: &str, passes: u64) -> Line {
        let c = &self.counts;
        let each = |n: u64| n / passes;
        let mean = |n: u64| n as f64 / passes as f64;
        Line {
            part: part.to_owned(),
            op: op.to_owned(),
            calls: each(c.calls),
            sets: each(c.sets),
            dispatches: each(c.dispatches),
            seconds: self.time.as_secs_f64() / passes as f64,
            weight_bytes: each(c.weight_bytes),
            kv_bytes: mean(c.kv_read + c.kv_written),
            activation_bytes: each(c.activation_bytes),
            flops: mean(c.flops),
        }
    }
}

/// Returns the name of a stage of the forward pass, without the layer's number: `embed`,
/// `attention`, `ffn` or `head`.
pub(super) fn part(stage: Option<Stage>) -> &'static str {
    match stage {
        None => "",
        Some(Stage::Embed) => "embed",
        Some(Stage::Attention(_)) => "attention",
        Some(Stage::Ffn(_)) => "ffn",
        Some(Stage::Head) => "head",
    }
}

/// Returns the name of a recorded operation; a projection set (matrices that multiply the
/// same input) is named by its matrices: `attn_q+attn_k`.
pub(super) fn label(event: &Event) -> String {
    if event.op != Op::Project {
        return event.op.name().to_owned();
    }
    let class = |name: &str| {
        let name = name.strip_suffix(".weight").unwrap_or(name).to_owned();
        name.rsplit('.').next().unwrap_or_default().to_owned()
    };
    let names: Vec<String> = event.matrices.iter().map(|name| class(name)).collect();
    names.join("+")
}

fn layer(stage: Option<Stage>) -> String {
    match stage {
        Some(Stage::Attention(i) | Stage::Ffn(i)) => i.to_string(),
        other => part(other).to_owned(),
    }
}

/// Groups operations that the profiler recorded by a key (part of the forward pass,
/// operation), and returns a line of the profile for each key, in the order of first
/// appearance.
fn by<'a>(
    events: impl Iterator<Item = &'a Event>,
    key: impl Fn(&Event) -> (String, String),
    passes: u64,
) -> Vec<Line> {
    let mut index: HashMap<(String, String), usize> = HashMap::new();
    let mut sums: Vec<((String, String), Sum)> = Vec::new();
    for event in events {
        let key = key(event);
        let at = *index.entry(key.clone()).or_insert(sums.len());
        if at == sums.len() {
            sums.push((key, Sum::default()));
        }
        sums[at].1.add(event);
    }
    let line = |((part, op), sum): ((String, String), Sum)| sum.line(&part, &op, passes);
    sums.into_iter().map(line).collect()
}

impl Phase {
    /// Computes the profile of prefill or decode from pairs of rounds, one without and
    /// one with the profiler; `of` picks the phase's time and recorded operations from a
    /// round.
    pub(super) fn new(
        tokens: usize,
        passes: usize,
        rounds: &[(Round, Round)],
        of: impl Fn(&Round) -> (Duration, &Vec<Event>),
    ) -> Self {
        let times = |pick: &dyn Fn(&(Round, Round)) -> Duration| {
            let seconds: Vec<f64> = rounds.iter().map(|r| pick(r).as_secs_f64()).collect();
            seconds
        };
        let plain = times(&|pair| of(&pair.0).0);
        let profiled = times(&|pair| of(&pair.1).0);
        let events = || rounds.iter().flat_map(|pair| of(&pair.1).1);
        let all_passes = (passes * rounds.len()) as u64;
        let mut sum = Sum::default();
        events().for_each(|event| sum.add(event));
        let totals = sum.line("", "", all_passes);
        let seconds = profiled.iter().sum::<f64>() / all_passes as f64;
        let (plain, profiled) = (Spread::of(&plain), Spread::of(&profiled));
        let all_tokens = (tokens * passes) as f64;
        Self {
            tokens,
            passes,
            tok_s_plain: plain.rate(all_tokens),
            tok_s_profiled: profiled.rate(all_tokens),
            overhead: profiled.median / plain.median - 1.0,
            seconds,
            outside_seconds: seconds - totals.seconds,
            totals,
            ops: by(
                events(),
                |e| (part(e.stage).to_owned(), label(e)),
                all_passes,
            ),
            layers: by(events(), |e| (layer(e.stage), String::new()), all_passes),
        }
    }

    fn text(&self, title: &str) -> String {
        format!(
            "{title}: {:.3} ms, {} sets, {} dispatches\n\
             \x20 tok/s {} without the instrument, {} with it: overhead {:+.1} %\n\n{}\n{}",
            1e3 * self.seconds,
            self.totals.sets,
            self.totals.dispatches,
            self.tok_s_plain,
            self.tok_s_profiled,
            100.0 * self.overhead,
            self.table(&self.ops, true),
            self.table(&self.layers, false),
        )
    }

    fn table(&self, lines: &[Line], ops: bool) -> String {
        let name = if ops { "operation" } else { "layer" };
        let mut table = Table::new([
            name,
            "calls",
            "sets",
            "dispatches",
            "us",
            "share",
            "weights",
            "KV",
            "activations",
            "GB/s",
            "GFLOP/s",
        ]);
        let mut row = |name: String, line: &Line| {
            let rate = |n: f64| match line.seconds > 0.0 {
                true => format!("{:.1}", n / line.seconds / 1e9),
                false => "-".to_owned(),
            };
            table.row([
                name,
                grouped(line.calls),
                grouped(line.sets),
                grouped(line.dispatches),
                format!("{:.1}", 1e6 * line.seconds),
                share(line.seconds, self.seconds),
                output::bytes(line.weight_bytes),
                output::bytes(line.kv_bytes.round() as u64),
                output::bytes(line.activation_bytes),
                rate(line.bytes()),
                rate(line.flops),
            ]);
        };
        for line in lines {
            row(
                format!("{} {}", line.part, line.op).trim_end().to_owned(),
                line,
            );
        }
        if ops {
            let outside = Line {
                seconds: self.outside_seconds.max(0.0),
                ..Line::default()
            };
            row("outside of operations".to_owned(), &outside);
            let all = Line {
                seconds: self.seconds,
                ..self.totals.clone()
            };
            row("all".to_owned(), &all);
        }
        table.text()
    }
}

impl Report {
    pub(super) fn text(&self) -> String {
        format!(
            "{}: {}, {} rounds\n\n{}\n{}",
            self.name,
            self.setting,
            self.rounds,
            self.prefill
                .text(&format!("Prefill of {} tokens", self.prefill.tokens)),
            self.decode.text(&format!(
                "Decode, a token, the mean of {}",
                self.decode.passes
            )),
        )
    }
}
