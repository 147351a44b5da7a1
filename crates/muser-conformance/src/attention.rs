//! Conformance cases of storing into the KV cache and of attention: edges of chunks (64
//! positions of the cache), sliding windows, rings that wrap, rewinding, long contexts,
//! and the same positions split into many different batches.
//!
//! The oracle computes the expected rows with *one* split of the positions into
//! batches; the subject (the backend under test) runs every split. A case therefore
//! also shows that the split changes no bit; the suite on the oracle itself shows it of
//! the oracle. In a lane (an arithmetic) where the width of a batch matters, the oracle
//! runs every split as well.

use super::compare::Seen;
use super::fill;
use super::rig::{Case, Guarded, Suite};
use super::rng::Rng;
use muser_ops::oracle::Oracle;
use muser_ops::{Attention, Backend, KvLayout, OpError, Plan, Run as PlanRun, Subset};
use std::ops::Range;

/// The shape of a conformance case of attention: its heads, its window, and the size of
/// its KV cache.
#[derive(Clone, Copy, Debug)]
struct Shape {
    heads: usize,
    kv_heads: usize,
    head_dim: usize,
    window: Option<usize>,
    context: usize,
    max_batch: usize,
}

impl Shape {
    fn new(heads: usize, kv_heads: usize, head_dim: usize) -> Self {
        Self {
            heads,
            kv_heads,
            head_dim,
            window: None,
            context: 1024,
            max_batch: 1024,
        }
    }

    fn window(self, window: usize, max_batch: usize) -> Self {
        Self {
            window: Some(window),
            max_batch,
            ..self
        }
    }

    fn layout(self) -> KvLayout {
        KvLayout {
            kv_heads: self.kv_heads,
            head_dim: self.head_dim,
            window: self.window,
            context: self.context,
            max_batch: self.max_batch,
        }
    }

    fn q_width(self) -> usize {
        self.heads * self.head_dim
    }

    fn kv_width(self) -> usize {
        self.kv_heads * self.head_dim
    }
}

/// One batch of an attention test: stores the rows `data` of K and V in the KV cache at
/// the positions from `at` on, then computes attention of the last `keep` rows; with 0
/// it only stores.
#[derive(Clone, Debug)]
struct Step {
    at: usize,
    data: Range<usize>,
    keep: usize,
}

impl Step {
    /// Returns which rows of Q, K and V are the queries of this batch: its last `keep`
    /// rows, whose attention is computed.
    fn kept(&self) -> Range<usize> {
        self.data.end - self.keep.min(self.data.len())..self.data.end
    }
}

/// The inputs Q, K and V of a conformance case of attention: row i of each belongs to
/// token i.
struct Data {
    shape: Shape,
    scale: f32,
    q: Vec<f32>,
    k: Vec<f32>,
    v: Vec<f32>,
}

impl Data {
    /// Makes inputs Q, K and V of normally distributed values for `tokens` tokens.
    fn plain(rng: &mut Rng, shape: Shape, tokens: usize) -> Self {
        Self {
            shape,
            scale: 1.0 / (shape.head_dim as f32).sqrt(),
            q: fill::plain(rng, tokens * shape.q_width()),
            k: fill::plain(rng, tokens * shape.kv_width()),
            v: fill::plain(rng, tokens * shape.kv_width()),
        }
    }
}

fn rows(x: &[f32], width: usize, of: &Range<usize>) -> Vec<f32> {
    x[of.start * width..of.end * width].to_vec()
}

struct Run<'a> {
    data: &'a Data,
    steps: Vec<Step>,
}

impl Run<'_> {
    /// Iterates over the batches that compute attention, and yields for each the range
    /// of rows of Q whose attention it computes.
    fn outputs(&self) -> impl Iterator<Item = Range<usize>> {
        self.steps.iter().map(Step::kept).filter(|r| !r.is_empty())
    }

    /// Returns whether the KV cache allows the batches of this attention test: they fit
    /// the cache, and the positions that they read are still held.
    fn is_allowed(&self) -> bool {
        let layout = self.data.shape.layout();
        let mut end = 0;
        self.steps.iter().all(|s| {
            let stored = s.at + s.data.len();
            let fits = stored <= layout.context && s.data.len() <= layout.max_batch;
            let held = s.at <= end && layout.holds(s.at, end.max(stored));
            // After a rewind the later positions are no longer part of the sequence,
            // but the ring has reused chunks of earlier positions for them.
            end = end.max(stored);
            fits && (held || s.keep == 0)
        })
    }
}

impl Case for Run<'_> {
    fn name(&self) -> String {
        let steps: Vec<String> = self
            .steps
            .iter()
            .map(|s| format!("{}+{}/{}", s.at, s.data.len(), s.kept().len()))
            .collect();
        format!("{:?}, steps {}", self.data.shape, steps.join(" "))
    }

    fn run<B: Backend>(&self, b: &B) -> Result<Vec<Seen>, OpError> {
        let data = self.data;
        let shape = data.shape;
        let desc = Attention {
            heads: shape.heads,
            kv_heads: shape.kv_heads,
            head_dim: shape.head_dim,
            window: shape.window,
            scale: data.scale,
        };
        let mut kv = b.kv(&[shape.layout()]);
        let mut seen = Vec::new();
        for step in &self.steps {
            let (all, kept) = (&step.data, step.kept());
            let (width, kv_width) = (shape.q_width(), shape.kv_width());
            let k = Guarded::input(b, "k", kv_width, &rows(&data.k, kv_width, all))?;
            let v = Guarded::input(b, "v", kv_width, &rows(&data.v, kv_width, all))?;
            let q = Guarded::input(b, "q", width, &rows(&data.q, width, &kept))?;
            let mut out = Guarded::output(b, "out", kept.len(), width)?;
            let run = PlanRun {
                first: step.at,
                rows: all.len(),
                keep: kept.len(),
            };
            let plan = Plan::new(vec![0; all.len()], vec![run])?;
            let mut batch = b.batch(plan, vec![&mut kv])?;
            let subset = match kept.len() == all.len() {
                true => Subset::All,
                false => Subset::Kept,
            };
            let (to, batch) = (&mut out.buffer, &mut batch);
            b.attention(batch, 0, &desc, subset, &q.buffer, &k.buffer, &v.buffer, to)?;
            seen.extend([k.see(b)?, v.see(b)?, q.see(b)?, out.see(b)?]);
        }
        Ok(seen)
    }
}

/// Tests every split of an attention case into batches on the subject (the backend
/// under test) against the oracle (which defines the right bits), which runs only the
/// first split.
fn check<B: Backend>(suite: &mut Suite<'_, B>, data: &Data, cuts: &[Vec<Step>]) {
    let width = data.shape.q_width();
    let mut expected = vec![f32::NAN; data.q.len()];
    for (i, steps) in cuts.iter().enumerate() {
        if suite.full() {
            return;
        }
        let run = Run {
            data,
            steps: steps.clone(),
        };
        assert!(run.is_allowed(), "the suite's own case: {}", run.name());
        if suite.width_matters() {
            suite.case(&run);
            continue;
        }
        if i == 0 {
            let Ok(seen) = run.run(&Oracle) else {
                // The oracle refuses the case: the suite reports that as a failure.
                return suite.case(&run);
            };
            let outs = seen.iter().filter(|s| s.written > 0);
            for (r, out) in run.outputs().zip(outs) {
                expected[r.start * width..r.end * width].copy_from_slice(&out.after[..out.written]);
            }
        }
        let want: Vec<&[f32]> = run
            .outputs()
            .map(|r| &expected[r.start * width..r.end * width])
            .collect();
        suite.case_against(&run, &want);
    }
}

/// Splits the rows `data` of Q, K and V into batches of the given sizes, of which the
/// last one repeats; row i belongs to position i. Each batch computes the attention of
/// its last `keep` rows.
fn cut(data: Range<usize>, sizes: &[usize], keep: usize) -> Vec<Step> {
    let mut steps = Vec::new();
    let mut at = data.start;
    while at < data.end {
        let size = sizes[steps.len().min(sizes.len() - 1)];
        let end = data.end.min(at + size);
        let data = at..end;
        steps.push(Step { at, data, keep });
        at = end;
    }
    steps
}

/// Prepends batches that store the first `prefix` positions in the KV cache without
/// computing attention, `store` positions at a time.
fn after(prefix: usize, store: usize, mut steps: Vec<Step>) -> Vec<Step> {
    let mut all = cut(0..prefix, &[store], 0);
    all.append(&mut steps);
    all
}

/// A number larger than any attention case's number of rows. As a batch size it puts
/// all rows in one batch; as `keep` it computes the attention of all of them.
const ALL: usize = 1 << 20;

/// Runs the conformance cases of attention without a sliding window: numbers and sizes
/// of heads, edges of chunks (64 cached positions), a long context.
pub(super) fn full<B: Backend>(suite: &mut Suite<'_, B>) {
    let geometries = [
        (4, 1, 64),
        (6, 3, 64),
        (16, 1, 64),
        (32, 2, 64),
        (1, 1, 64),
        (5, 1, 64),
        (1, 1, 128),
        (5, 1, 128),
        (6, 3, 128),
        (16, 1, 128),
        (32, 2, 128),
        (4, 4, 128),
    ];
    for (heads, kv_heads, head_dim) in geometries {
        let shape = Shape::new(heads, kv_heads, head_dim);
        let data = Data::plain(&mut suite.rng, shape, 69);
        // Attention at the beginning of the first chunk and around its end.
        let cuts = [&[ALL][..], &[1], &[2, 3, 1]].map(|sizes| {
            let mut steps = cut(0..5, sizes, ALL);
            steps.extend(cut(5..60, &[ALL], 0));
            steps.extend(cut(60..69, sizes, ALL));
            steps
        });
        check(suite, &data, &cuts);
    }
    let data = Data::plain(&mut suite.rng, Shape::new(4, 1, 64), 132);
    check(suite, &data, &edge_cuts(132));
    let data = Data::plain(&mut suite.rng, Shape::new(6, 3, 128), 700);
    let cuts = [
        after(690, 690, cut(690..700, &[ALL], ALL)),
        after(690, 100, cut(690..700, &[1], 1)),
        after(690, 33, cut(690..700, &[3, 7], 2)),
    ];
    check(suite, &data, &cuts);
    // Few rows of few heads over a long context, which a backend may split
    // between threads.
    let long = |kv_heads| Shape::new(5 * kv_heads, kv_heads, 64);
    for shape in [long(1), long(2), long(1).window(600, 70)] {
        let data = Data::plain(&mut suite.rng, shape, 700);
        let cuts = [
            after(630, 70, cut(630..700, &[70], 70)),
            after(630, 70, cut(630..700, &[1], 1)),
            after(630, 70, cut(630..700, &[2, 1, 5, 3], ALL)),
            // The second batch has two rows, of which one is in the next chunk.
            after(630, 70, cut(630..700, &[9, 2], ALL)),
        ];
        check(suite, &data, &cuts);
    }
}

/// Splits `n` positions in several ways: one batch, single positions, and batches that
/// end before, at and after the edges of the KV cache's chunks, 64 and 128.
fn edge_cuts(n: usize) -> Vec<Vec<Step>> {
    vec![
        cut(0..n, &[ALL], ALL),
        cut(0..n, &[1], 1),
        cut(0..n, &[7, 9, 16, 33], ALL),
        cut(0..n, &[63, 1, 1, 62, 1, 1], ALL),
        cut(0..n, &[64, 64, ALL], ALL),
        cut(0..n, &[65, 63, ALL], 17),
        cut(0..n, &[31, 32, 33], 8),
    ]
}

/// Runs the conformance cases of attention with a sliding window: KV caches that are
/// rings, which fill, wrap and are rewound.
pub(super) fn window<B: Backend>(suite: &mut Suite<'_, B>) {
    for window in [1, 2, 63, 64, 65, 100, 128] {
        let shape = Shape::new(4, 1, 64).window(window, 132);
        let data = Data::plain(&mut suite.rng, shape, 132);
        check(suite, &data, &edge_cuts(132));
    }
    let rings = [
        (Shape::new(4, 1, 64), 64, 33),
        (Shape::new(6, 3, 64), 100, 16),
        (Shape::new(16, 1, 64), 128, 64),
        (Shape::new(1, 1, 128), 1, 5),
    ];
    for (shape, window, max_batch) in rings {
        let shape = shape.window(window, max_batch);
        let data = Data::plain(&mut suite.rng, shape, 700);
        let tail = 655..700;
        let cuts = [
            after(655, max_batch, cut(tail.clone(), &[max_batch], ALL)),
            after(655, 1, cut(tail.clone(), &[1], 1)),
            after(655, 5, cut(tail, &[5, 3, 4, 5, 2], 3)),
        ];
        check(suite, &data, &cuts);
        // Fills an empty ring and goes round it for the first times, with attention on
        // the way.
        let cuts = [
            cut(0..200, &[max_batch], ALL),
            cut(0..200, &[1, 4, 5, 2, 5], ALL),
        ];
        check(suite, &data, &cuts);
    }
    rewind(suite);
}

/// Runs attention cases that rewind a sequence and continue it with other tokens:
/// attention must not see the K and V that were replaced.
fn rewind<B: Backend>(suite: &mut Suite<'_, B>) {
    for window in [None, Some(64), Some(100)] {
        let shape = Shape {
            window,
            max_batch: 16,
            ..Shape::new(4, 1, 64)
        };
        let data = Data::plain(&mut suite.rng, shape, 240);
        for (stored, back_to) in [(200, 190), (65, 63), (129, 120), (70, 64)] {
            let cuts = [&[16][..], &[1], &[3, 5, 16]].map(|sizes| {
                let mut steps = after(stored - 10, 16, cut(stored - 10..stored, sizes, ALL));
                let shift = stored - back_to;
                // After the rewind, stores rows of the inputs that were not stored
                // before.
                steps.extend(
                    cut(stored..stored + 30, sizes, ALL)
                        .into_iter()
                        .map(|s| Step {
                            at: s.at - shift,
                            ..s
                        }),
                );
                steps
            });
            check(suite, &data, &cuts);
        }
    }
}

/// A change that turns normally distributed Q, K and V into the inputs of an attention
/// case with extreme values; [`values`] runs these cases.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Change {
    /// Makes some keys exceed the range of f16, so that some attention scores are
    /// infinite, with either sign.
    KeyOverflow,
    /// Makes some values of V exceed the range of f16, so that the KV cache stores them
    /// as infinities.
    ValueOverflow,
    /// Puts values at the ends of the range of f16, and halfway between two f16, into K
    /// and V.
    HalfRange,
    /// Makes attention scores lie so far apart that some exponentials of the softmax
    /// are zero or subnormal.
    FarScores,
    /// Makes all queries zeros of both signs, so that all attention scores are equal.
    ZeroQuery,
    /// Puts NaN and infinity into some queries, and a NaN into one key.
    Nan,
    /// Draws the rows of Q, K and V from every random distribution of test activations.
    Any,
    /// Makes the factor that scales attention scores so small that they are subnormal.
    TinyScale,
}

/// Runs the conformance cases of attention with values at the ends of the ranges of f16
/// and f32.
pub(super) fn values<B: Backend>(suite: &mut Suite<'_, B>) {
    use Change::*;
    let changes = [
        KeyOverflow,
        ValueOverflow,
        HalfRange,
        FarScores,
        ZeroQuery,
        Nan,
        Any,
        TinyScale,
    ];
    let shapes = [
        Shape::new(4, 1, 64),
        Shape::new(16, 1, 64),
        Shape::new(6, 3, 128),
        Shape::new(4, 1, 64).window(20, 70),
    ];
    for shape in shapes {
        for change in changes {
            let mut data = Data::plain(&mut suite.rng, shape, 70);
            apply(&mut suite.rng, change, &mut data);
            let cuts = [cut(0..70, &[ALL], ALL), cut(0..70, &[50, 1, 9], ALL)];
            check(suite, &data, &cuts);
        }
    }
}

fn apply(rng: &mut Rng, change: Change, data: &mut Data) {
    let (qw, kw) = (data.shape.q_width(), data.shape.kv_width());
    let tokens = data.k.len() / kw;
    let some = |rng: &mut Rng, x: &mut [f32], n: usize, of: &[f32]| {
        for _ in 0..n {
            let at = rng.below(x.len());
            x[at] = rng.pick_signed(of);
        }
    };
    match change {
        // Changes late positions only, so that early queries see finite keys.
        Change::KeyOverflow => some(rng, &mut data.k[tokens / 3 * kw..], 6, &[1e6, 65520.0]),
        Change::ValueOverflow => some(rng, &mut data.v[tokens / 3 * kw..], 9, &[1e6, 7e4]),
        Change::HalfRange => {
            let ends = [
                65504.0, 65519.99, 6.1e-5, 5.96e-8, 2.98e-8, 2.99e-8, 0.0, 2049.0, 2051.0,
            ];
            some(rng, &mut data.k, 400, &ends[2..]);
            some(rng, &mut data.v, 400, &ends);
        }
        Change::FarScores => {
            for (i, x) in data.q.iter_mut().enumerate() {
                *x *= [1.0, 8.0, 90.0][i / qw % 3];
            }
        }
        Change::ZeroQuery => {
            for (i, x) in data.q.iter_mut().enumerate() {
                *x = if i % 2 == 0 { 0.0 } else { -0.0 };
            }
        }
        Change::Nan => {
            some(rng, &mut data.q, 5, &[f32::NAN, f32::INFINITY]);
            some(rng, &mut data.k[tokens * kw * 2 / 3..], 1, &[f32::NAN]);
        }
        Change::Any => {
            let row = |rng: &mut Rng, t, n| fill::activations(rng, t, n);
            data.q = (0..tokens).flat_map(|t| row(rng, t, qw)).collect();
            // A key beyond f16 would make every later score infinite: the one
            // kind with such values comes last.
            let kind = |t| if t + 1 == tokens { 8 } else { t % 8 };
            data.k = (0..tokens).flat_map(|t| row(rng, kind(t), kw)).collect();
            data.v = (0..tokens).flat_map(|t| row(rng, t / 5, kw)).collect();
        }
        Change::TinyScale => data.scale = 1e-40,
    }
}
