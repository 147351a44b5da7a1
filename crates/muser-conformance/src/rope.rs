//! Conformance cases of rotary position encoding: widths and numbers of heads,
//! positions near zero and far out.

use super::compare::Seen;
use super::fill;
use super::rig::{Case, Guarded, Suite, caches};
use muser_ops::{Backend, OpError, Plan, RopeSpec, Run, Subset};

struct Rope {
    base: f32,
    head_dim: usize,
    heads: usize,
    first: usize,
    rows: usize,
    /// The number of rows that precede the encoded ones (those that get RoPE) in the
    /// same sequence and batch.
    spare: usize,
    /// The number of rows of another sequence that come first in the batch and do not
    /// get the rotary position encoding (RoPE).
    other: usize,
    x: Vec<f32>,
}

impl Case for Rope {
    fn name(&self) -> String {
        let Self {
            base,
            head_dim,
            heads,
            first,
            rows,
            spare,
            other,
            ..
        } = self;
        format!(
            "base {base}, {rows} rows from {first} + {spare} after {other}, {heads} heads of {head_dim}"
        )
    }

    fn run<B: Backend>(&self, b: &B) -> Result<Vec<Seen>, OpError> {
        let rope = b.bind_rope(RopeSpec {
            base: self.base,
            head_dim: self.head_dim,
        })?;
        // All rows of a sequence, or only its last ones (the batch's kept rows), with
        // another sequence before it.
        let runs = [
            Run {
                first: 5,
                rows: self.other,
                keep: 0,
            },
            Run {
                first: self.first,
                rows: self.rows + self.spare,
                keep: self.rows,
            },
        ];
        let subset = match self.other + self.spare {
            0 => Subset::All,
            _ => Subset::Kept,
        };
        let mut kv = caches(b, runs.len());
        let tokens = vec![0; runs.iter().map(|r| r.rows).sum()];
        let batch = b.batch(Plan::new(tokens, runs.to_vec())?, kv.iter_mut().collect())?;
        let mut x = Guarded::in_place(b, "x", self.heads * self.head_dim, &self.x)?;
        b.rope(&batch, subset, &rope, &mut x.buffer)?;
        Ok(vec![x.see(b)?])
    }
}

pub(super) fn rope<B: Backend>(suite: &mut Suite<'_, B>) {
    let mut turn = 0;
    for head_dim in [32, 64, 96, 128] {
        for heads in [1, 2, 3, 16] {
            for rows in [1, 2, 3, 8, 9, 17, 33] {
                if suite.full() {
                    return;
                }
                turn += 1;
                let x = (0..rows)
                    .flat_map(|r| fill::activations(&mut suite.rng, turn + r, heads * head_dim))
                    .collect();
                let case = Rope {
                    base: suite.rng.pick(&[500_000.0, 10_000.0]),
                    head_dim,
                    heads,
                    first: suite.rng.pick(&[0, 1, 63, 8191, 1_000_000]),
                    rows,
                    spare: suite.rng.below(2),
                    other: 2 * suite.rng.below(2),
                    x,
                };
                suite.case(&case);
            }
        }
    }
}
