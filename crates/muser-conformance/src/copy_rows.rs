//! Conformance cases of copying rows from the middle of one buffer to the middle of
//! another, and of gathering a batch's kept rows (those whose logits are computed).

use super::compare::Seen;
use super::fill;
use super::rig::{Case, Guarded, Suite, caches};
use muser_ops::{Backend, OpError, Plan, Run};

struct CopyRows {
    width: usize,
    rows: usize,
    from: usize,
    to: usize,
    src: Vec<f32>,
    dst: Vec<f32>,
}

impl Case for CopyRows {
    fn name(&self) -> String {
        let Self {
            width,
            rows,
            from,
            to,
            ..
        } = self;
        format!("{rows} rows of {width} from {from} to {to}")
    }

    fn run<B: Backend>(&self, b: &B) -> Result<Vec<Seen>, OpError> {
        let src = Guarded::input(b, "src", self.width, &self.src)?;
        let mut dst = Guarded::in_place(b, "dst", self.width, &self.dst)?;
        b.copy_rows(self.rows, &src.buffer, self.from, &mut dst.buffer, self.to)?;
        Ok(vec![src.see(b)?, dst.see(b)?])
    }
}

pub(super) fn copy_rows<B: Backend>(suite: &mut Suite<'_, B>) {
    let mut turn = 0;
    for width in [1, 2, 7, 64, 100, 257, 1000] {
        for rows in [1, 2, 3, 9, 17] {
            for (from, to) in [(0, 0), (1, 0), (5, 3), (32, 1), (0, 7)] {
                if suite.full() {
                    return;
                }
                turn += 1;
                let mut rows_of = |n: usize| -> Vec<f32> {
                    let row = |r| fill::activations(&mut suite.rng, turn + r, width);
                    (0..n).flat_map(row).collect()
                };
                let (src, dst) = (rows_of(from + rows), rows_of(to + rows));
                suite.case(&CopyRows {
                    width,
                    rows,
                    from,
                    to,
                    src,
                    dst,
                });
            }
        }
    }
}

/// A conformance case of gathering the kept rows (those whose logits are computed) of
/// several sequences into one buffer.
struct Gather {
    width: usize,
    runs: Vec<Run>,
    src: Vec<f32>,
}

impl Case for Gather {
    fn name(&self) -> String {
        let runs: Vec<String> = self
            .runs
            .iter()
            .map(|r| format!("{} of {}", r.keep, r.rows))
            .collect();
        format!("rows of {}: {}", self.width, runs.join(", "))
    }

    fn run<B: Backend>(&self, b: &B) -> Result<Vec<Seen>, OpError> {
        let rows = self.runs.iter().map(|r| r.rows).sum();
        let keep = self.runs.iter().map(|r| r.keep).sum();
        let mut kv = caches(b, self.runs.len());
        let plan = Plan::new(vec![0; rows], self.runs.clone())?;
        let batch = b.batch(plan, kv.iter_mut().collect())?;
        let src = Guarded::input(b, "src", self.width, &self.src)?;
        let mut dst = Guarded::output(b, "dst", keep, self.width)?;
        b.gather(&batch, &src.buffer, &mut dst.buffer)?;
        Ok(vec![src.see(b)?, dst.see(b)?])
    }
}

pub(super) fn gather<B: Backend>(suite: &mut Suite<'_, B>) {
    let of = |runs: &[(usize, usize)]| -> Vec<Run> {
        let run = |&(rows, keep): &(usize, usize)| Run {
            first: 3,
            rows,
            keep,
        };
        runs.iter().map(run).collect()
    };
    let plans = [
        of(&[(1, 1)]),
        of(&[(2, 1)]),
        of(&[(9, 1)]),
        of(&[(9, 9)]),
        of(&[(17, 16)]),
        of(&[(5, 1), (1, 1), (7, 2)]),
        of(&[(5, 0), (1, 1), (7, 0), (8, 8)]),
        of(&[(33, 1), (1, 1), (1, 1), (20, 4)]),
    ];
    let mut turn = 0;
    for width in [1, 2, 7, 64, 100, 257, 1000] {
        for runs in &plans {
            if suite.full() {
                return;
            }
            turn += 1;
            let rows: usize = runs.iter().map(|r| r.rows).sum();
            let row = |r| fill::activations(&mut suite.rng, turn + r, width);
            let src = (0..rows).flat_map(row).collect();
            suite.case(&Gather {
                width,
                runs: runs.clone(),
                src,
            });
        }
    }
}
