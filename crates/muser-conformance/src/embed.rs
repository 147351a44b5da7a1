//! Conformance cases of the embedding lookup: every weight format, the last row of the
//! table, repeated tokens.

use super::compare::Seen;
use super::fill;
use super::rig::{Case, Guarded, Suite, caches};
use muser_ops::{Backend, OpError, Plan, Run, Weight};
use muser_quant::{Arithmetic, DType, GROUP, QK};

struct Embed {
    dtype: DType,
    rows: usize,
    cols: usize,
    bytes: Vec<u8>,
    tokens: Vec<u32>,
}

impl Case for Embed {
    fn name(&self) -> String {
        let Self {
            dtype, rows, cols, ..
        } = self;
        format!("{dtype} {rows} x {cols}, tokens {:?}", self.tokens)
    }

    fn run<B: Backend>(&self, b: &B) -> Result<Vec<Seen>, OpError> {
        let w = Weight::new(
            "token_embd.weight",
            self.bytes.clone(),
            self.dtype,
            self.rows,
            self.cols,
        )?;
        let table = b.bind_table(w)?;
        let rows = self.tokens.len();
        // Shares the tokens between two sequences; a single token makes one sequence
        // only.
        let runs = [(0, rows - rows / 2), (7, rows / 2)].map(|(first, rows)| Run {
            first,
            rows,
            keep: 0,
        });
        let runs: Vec<Run> = runs.into_iter().filter(|r| r.rows > 0).collect();
        let mut kv = caches(b, runs.len());
        let plan = Plan::new(self.tokens.clone(), runs)?;
        let batch = b.batch(plan, kv.iter_mut().collect())?;
        let mut out = Guarded::output(b, "out", self.tokens.len(), self.cols)?;
        b.embed(&batch, &table, &mut out.buffer)?;
        Ok(vec![out.see(b)?])
    }
}

pub(super) fn embed<B: Backend>(suite: &mut Suite<'_, B>, dtype: DType) {
    let cols: &[usize] = match dtype.arithmetic() {
        Arithmetic::Superblocks => &[QK, 2 * QK, 26 * QK],
        Arithmetic::Groups => &[GROUP, QK, 576, 640, 26 * QK],
        Arithmetic::Floats => &[1, 7, 64, 100, 257, 1000],
    };
    for (turn, &cols) in cols.iter().enumerate() {
        for rows in [1, 2, 7, 40] {
            let bytes = fill::weights(&mut suite.rng, dtype, rows, cols, turn);
            for n in [1, 2, 3, 8, 9, 17, 33] {
                if suite.full() {
                    return;
                }
                let mut tokens: Vec<u32> = (0..n).map(|_| suite.rng.below(rows) as u32).collect();
                tokens[n - 1] = rows as u32 - 1;
                suite.case(&Embed {
                    dtype,
                    rows,
                    cols,
                    bytes: bytes.clone(),
                    tokens,
                });
            }
        }
    }
}
