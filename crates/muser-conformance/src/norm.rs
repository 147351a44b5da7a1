//! Conformance cases of the three RMS norms: widths around the 256 partial sums of the
//! reduction, and far from any multiple of a vector register.

use super::compare::Seen;
use super::fill;
use super::rig::{Case, Guarded, Suite};
use muser_ops::{Backend, OpError};

#[derive(Clone, Copy, Debug)]
enum Norm {
    Rows { weighted: bool },
    Heads { heads: usize },
    Add,
}

struct Case1 {
    norm: Norm,
    rows: usize,
    /// The number of values that one RMS norm is taken over: those of a row, or of an
    /// attention head.
    width: usize,
    eps: f32,
    x: Vec<f32>,
    y: Vec<f32>,
    weight: Vec<f32>,
}

impl Case for Case1 {
    fn name(&self) -> String {
        let Self {
            norm,
            rows,
            width,
            eps,
            ..
        } = self;
        format!("{norm:?} {rows} x {width}, eps {eps:e}")
    }

    fn run<B: Backend>(&self, b: &B) -> Result<Vec<Seen>, OpError> {
        let (rows, width) = (self.rows, self.width);
        let weight = b.bind_vector(self.weight.clone())?;
        match self.norm {
            Norm::Rows { weighted } => {
                let x = Guarded::input(b, "x", width, &self.x)?;
                let mut out = Guarded::output(b, "out", rows, width)?;
                let weight = weighted.then_some(&weight);
                b.rms_norm(rows, &x.buffer, weight, self.eps, &mut out.buffer)?;
                Ok(vec![x.see(b)?, out.see(b)?])
            }
            Norm::Heads { heads } => {
                let mut x = Guarded::in_place(b, "x", heads * width, &self.x)?;
                b.head_norm(rows, &mut x.buffer, &weight, self.eps)?;
                Ok(vec![x.see(b)?])
            }
            Norm::Add => {
                let mut x = Guarded::in_place(b, "x", width, &self.x)?;
                let y = Guarded::input(b, "y", width, &self.y)?;
                b.add_rms_norm(rows, &mut x.buffer, &y.buffer, &weight, self.eps)?;
                Ok(vec![x.see(b)?, y.see(b)?])
            }
        }
    }
}

const WIDTHS: [usize; 17] = [
    1, 2, 7, 15, 64, 65, 100, 127, 128, 255, 256, 257, 320, 511, 512, 1000, 6656,
];

fn cases<B: Backend>(suite: &mut Suite<'_, B>, norms: &[Norm], widths: &[usize], rows: &[usize]) {
    let mut turn = 0;
    for &width in widths {
        for &rows in rows {
            for &norm in norms {
                if suite.full() {
                    return;
                }
                let heads = match norm {
                    Norm::Heads { heads } => heads,
                    _ => 1,
                };
                // Each head gets test activations of another kind.
                let mut activations = |n: usize| -> Vec<f32> {
                    let rows = 0..n;
                    rows.flat_map(|_| {
                        turn += 1;
                        fill::activations(&mut suite.rng, turn, width)
                    })
                    .collect()
                };
                let (x, y) = (activations(rows * heads), activations(rows));
                let constant = rows.is_multiple_of(3);
                let weight = match constant {
                    true => vec![0.037; width],
                    false => fill::plain(&mut suite.rng, width),
                };
                let eps = suite.rng.pick(&[1e-5, 1e-6, 1e-5, 0.0]);
                suite.case(&Case1 {
                    norm,
                    rows,
                    width,
                    eps,
                    x,
                    y,
                    weight,
                });
            }
        }
    }
}

pub(super) fn rms_norm<B: Backend>(suite: &mut Suite<'_, B>) {
    let norms = [
        Norm::Rows { weighted: true },
        Norm::Rows { weighted: false },
    ];
    cases(suite, &norms, &WIDTHS, &[1, 2, 3, 8, 9, 17, 33]);
}

pub(super) fn head_norm<B: Backend>(suite: &mut Suite<'_, B>) {
    let norms = [1, 2, 3, 16].map(|heads| Norm::Heads { heads });
    let widths = [32, 64, 96, 128, 192, 256];
    cases(suite, &norms, &widths, &[1, 2, 3, 8, 9, 17, 33]);
}

pub(super) fn add_rms_norm<B: Backend>(suite: &mut Suite<'_, B>) {
    cases(suite, &[Norm::Add], &WIDTHS, &[1, 2, 3, 8, 9, 17, 33]);
}
