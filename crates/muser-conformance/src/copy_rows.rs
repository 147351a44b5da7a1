//! Rows from the middle of one buffer to the middle of another.

use super::compare::Seen;
use super::fill;
use super::rig::{Case, Guarded, Suite};
use muser_ops::{Backend, OpError};

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
