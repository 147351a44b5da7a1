//! Conformance cases of attention over several sequences in one batch: each sequence
//! must get the bits that it gets alone. Sequences differ in length, some only store K
//! and V, one layer has a window and the other has none, and some sequences share their
//! first positions.

use super::compare::Seen;
use super::fill;
use super::rig::{Case, Guarded, Suite};
use muser_ops::{Attention, Backend, KvLayout, OpError, Plan, Run, Subset};

const HEADS: usize = 4;
const HEAD_DIM: usize = 64;
const CONTEXT: usize = 1024;
const MAX_BATCH: usize = 80;

/// A batch of several sequences: for each its number of rows, and how many of its last
/// rows get attention computed (kept rows).
type Batch = Vec<(usize, usize)>;

struct Together {
    kv_heads: usize,
    window: usize,
    /// The number of first positions that all sequences of the attention case share.
    past: usize,
    batches: Vec<Batch>,
    /// Whether each sequence runs in batches of its own (as the oracle computes the
    /// expected values) or in batches together with the others.
    alone: bool,
    q: Vec<f32>,
    k: Vec<f32>,
    v: Vec<f32>,
}

impl Together {
    fn layer(&self, layer: usize) -> (Attention, KvLayout) {
        let window = (layer == 1).then_some(self.window);
        let attention = Attention {
            heads: HEADS,
            kv_heads: self.kv_heads,
            head_dim: HEAD_DIM,
            window,
            scale: 0.125,
        };
        let layout = KvLayout {
            kv_heads: self.kv_heads,
            head_dim: HEAD_DIM,
            window,
            context: CONTEXT,
            max_batch: MAX_BATCH,
        };
        (attention, layout)
    }

    /// Collects the rows of Q, K or V for a batch's sequences. Token t of sequence s
    /// has row `s · 131 + t` of a pool of rows; row numbers wrap around at its end.
    fn rows(pool: &[f32], width: usize, runs: &[(usize, Run)], kept: bool) -> Vec<f32> {
        let count = pool.len() / width;
        let mut all = Vec::new();
        for (sequence, run) in runs {
            let from = if kept { run.rows - run.keep } else { 0 };
            for t in run.first + from..run.first + run.rows {
                let row = (sequence * 131 + t) % count;
                all.extend_from_slice(&pool[row * width..][..width]);
            }
        }
        all
    }

    /// Runs one batch of these sequences through both attention layers and adds the
    /// layers' operands to `seen`.
    fn batch<B: Backend>(
        &self,
        b: &B,
        kv: &mut [B::Kv],
        runs: &[(usize, Run)],
        seen: &mut Vec<Seen>,
    ) -> Result<(), OpError> {
        let of: Vec<Run> = runs.iter().map(|r| r.1).collect();
        let (rows, keep) = of.iter().fold((0, 0), |n, r| (n.0 + r.rows, n.1 + r.keep));
        let caches = kv.iter_mut().enumerate();
        let caches = caches.filter(|(s, _)| runs.iter().any(|r| r.0 == *s));
        let caches = caches.map(|(_, kv)| kv).collect();
        let mut batch = b.batch(Plan::new(vec![0; rows], of)?, caches)?;
        let (width, kv_width) = (HEADS * HEAD_DIM, self.kv_heads * HEAD_DIM);
        for layer in [0, 1] {
            let desc = self.layer(layer).0;
            let k = Self::rows(&self.k, kv_width, runs, false);
            let v = Self::rows(&self.v, kv_width, runs, false);
            let q = Self::rows(&self.q, width, runs, true);
            let k = Guarded::input(b, "k", kv_width, &k)?;
            let v = Guarded::input(b, "v", kv_width, &v)?;
            let q = Guarded::input(b, "q", width, &q)?;
            let mut out = Guarded::output(b, "out", keep, width)?;
            let (to, subset) = (&mut out.buffer, Subset::Kept);
            let (q_of, k_of, v_of) = (&q.buffer, &k.buffer, &v.buffer);
            b.attention(&mut batch, layer, &desc, subset, q_of, k_of, v_of, to)?;
            seen.extend([k.see(b)?, v.see(b)?, q.see(b)?, out.see(b)?]);
        }
        Ok(())
    }
}

impl Case for Together {
    fn name(&self) -> String {
        format!(
            "{} KV heads, window {}, after {} shared positions: {:?}",
            self.kv_heads, self.window, self.past, self.batches
        )
    }

    fn run<B: Backend>(&self, b: &B) -> Result<Vec<Seen>, OpError> {
        let mut first = b.kv(&[self.layer(0).1, self.layer(1).1]);
        let mut unread = Vec::new();
        let mut at = 0;
        while at < self.past {
            let rows = MAX_BATCH.min(self.past - at);
            let run = Run {
                first: at,
                rows,
                keep: 0,
            };
            self.batch(
                b,
                std::slice::from_mut(&mut first),
                &[(0, run)],
                &mut unread,
            )?;
            at += rows;
        }
        let sequences = self.batches.iter().map(Vec::len).max().unwrap_or(0);
        let mut kv = vec![first; sequences];
        let mut ends = vec![self.past; sequences];
        let mut seen = Vec::new();
        for batch in &self.batches {
            let mut runs = Vec::new();
            for (sequence, &(rows, keep)) in batch.iter().enumerate() {
                let first = ends[sequence];
                ends[sequence] += rows;
                if rows > 0 {
                    runs.push((sequence, Run { first, rows, keep }));
                }
            }
            if !self.alone {
                self.batch(b, &mut kv, &runs, &mut seen)?;
                continue;
            }
            for run in runs {
                self.batch(b, &mut kv, &[run], &mut seen)?;
            }
        }
        Ok(seen)
    }
}

pub(super) fn together<B: Backend>(suite: &mut Suite<'_, B>) {
    // One sequence grows long, then continues in a batch with short ones.
    let long: Vec<Batch> = [vec![vec![(80, 0)]; 7], vec![vec![(1, 1); 3]]].concat();
    let batches: [&[Batch]; 6] = [
        &[vec![(1, 1), (1, 1)]],
        &[vec![(1, 1); 9], vec![(1, 1); 8]],
        &[vec![(5, 1), (1, 1), (70, 2), (3, 3)]],
        &[vec![(3, 0), (1, 1), (9, 0)], vec![(1, 1), (0, 0), (2, 1)]],
        &[vec![(64, 64), (1, 1)], vec![(1, 1), (64, 1)]],
        &long,
    ];
    for kv_heads in [1, 2] {
        for (past, window) in [(0, 5), (1, 64), (63, 20), (130, 100), (300, 200)] {
            for batches in &batches {
                if suite.full() {
                    return;
                }
                let case = Together {
                    kv_heads,
                    window,
                    past,
                    batches: batches.to_vec(),
                    alone: false,
                    q: fill::plain(&mut suite.rng, 97 * HEADS * HEAD_DIM),
                    k: fill::plain(&mut suite.rng, 211 * kv_heads * HEAD_DIM),
                    v: fill::plain(&mut suite.rng, 211 * kv_heads * HEAD_DIM),
                };
                case.check(suite);
            }
        }
    }
}

impl Together {
    /// Compares the subject (the backend under test), which runs the sequences
    /// together, with the oracle (which defines the right bits), which runs each one
    /// alone.
    fn check<B: Backend>(mut self, suite: &mut Suite<'_, B>) {
        self.alone = true;
        let expected = match suite.oracle(&self) {
            Ok(seen) => self.in_batches(&seen),
            // The oracle refuses the case: the suite reports that as a failure.
            Err(_) => return suite.case(&self),
        };
        self.alone = false;
        let expected: Vec<&[f32]> = expected.iter().map(Vec::as_slice).collect();
        suite.case_against(&self, &expected);
    }

    /// Reorders the attention outputs of sequences that were computed alone into the
    /// order in which batches of several sequences give them.
    fn in_batches(&self, alone: &[Seen]) -> Vec<Vec<f32>> {
        let mut outs = alone.chunks_exact(8);
        let mut all = Vec::new();
        for batch in &self.batches {
            let mut of_layer = [Vec::new(), Vec::new()];
            for _ in batch.iter().filter(|run| run.0 > 0) {
                // For each sequence the operands k, v, q and out, of two layers.
                let seen = outs.next().unwrap_or_default();
                for (layer, of) in of_layer.iter_mut().zip(seen.chunks_exact(4)) {
                    layer.extend_from_slice(&of[3].after[..of[3].written]);
                }
            }
            all.extend(of_layer.into_iter().filter(|out| !out.is_empty()));
        }
        all
    }
}
