//! Rows from the middle of one buffer to the beginning of another.

use super::compare::Seen;
use super::fill;
use super::rig::{Case, Guarded, Suite};
use crate::{Backend, OpError};

struct CopyRows {
    width: usize,
    rows: usize,
    from: usize,
    src: Vec<f32>,
}

impl Case for CopyRows {
    fn name(&self) -> String {
        let Self {
            width, rows, from, ..
        } = self;
        format!("{rows} rows of {width} from {from}")
    }

    fn run<B: Backend>(&self, b: &B) -> Result<Vec<Seen>, OpError> {
        let src = Guarded::input(b, "src", self.width, &self.src)?;
        let mut dst = Guarded::output(b, "dst", self.rows, self.width)?;
        b.copy_rows(self.rows, &src.buffer, self.from, &mut dst.buffer)?;
        Ok(vec![src.see(b)?, dst.see(b)?])
    }
}

pub(super) fn copy_rows<B: Backend>(suite: &mut Suite<'_, B>) {
    let mut turn = 0;
    for width in [1, 2, 7, 64, 100, 257, 1000] {
        for rows in [1, 2, 3, 9, 17] {
            for from in [0, 1, 5, 32] {
                if suite.full() {
                    return;
                }
                turn += 1;
                let src = (0..from + rows)
                    .flat_map(|r| fill::activations(&mut suite.rng, turn + r, width))
                    .collect();
                suite.case(&CopyRows {
                    width,
                    rows,
                    from,
                    src,
                });
            }
        }
    }
}
