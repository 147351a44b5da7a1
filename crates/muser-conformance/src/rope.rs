//! Rotary encoding: head widths, positions near zero and far out.

use super::compare::Seen;
use super::fill;
use super::rig::{Case, Guarded, Suite};
use muser_ops::{Backend, OpError, RopeFrequencies};

struct Rope {
    base: f32,
    head_dim: usize,
    heads: usize,
    first: usize,
    rows: usize,
    /// Positions in the table past the rows that are rotated.
    spare: usize,
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
            ..
        } = self;
        format!("base {base}, {rows} rows from {first}, {heads} heads of {head_dim}")
    }

    fn run<B: Backend>(&self, b: &B) -> Result<Vec<Seen>, OpError> {
        let table = RopeFrequencies::new(b.info().lane, self.base, self.head_dim)
            .table(self.first, self.rows + self.spare);
        let mut x = Guarded::in_place(b, "x", self.heads * self.head_dim, &self.x)?;
        b.rope(self.rows, &mut x.buffer, &table)?;
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
                    x,
                };
                suite.case(&case);
            }
        }
    }
}
