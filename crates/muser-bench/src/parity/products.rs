//! Test cases that compare muser's matrix products with llama.cpp's bit for bit: every
//! weight format, rung of the ladder (the table that chooses a kernel by shape), batch
//! width and shape.

use super::inputs::{Kind, Rng, Weights, most};
use super::question::{Activations, Case, KernelSpan, Question};
use super::selection::Selection;
use super::table::Judge;
use muser_cpu::ladder::{Family, LADDER, Rung, rungs};
use muser_ops::Lane;
use muser_ops::Weight;
use muser_quant::DType;
use std::cell::OnceCell;

const WIDTHS: [usize; 20] = [
    1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 15, 16, 17, 31, 32, 33, 64, 100, 255, 512,
];
/// Weight matrices of the test cases, the same for each row length, as number of rows
/// and random distribution of the weights. Those at the limits of a format come first:
/// 24 rows, which llama.cpp interleaves, and 21, which it does not. The released
/// model's Q projection has 4,096 rows.
const ROWS: [(usize, Weights); 11] = [
    (24, Weights::Adversarial),
    (21, Weights::Adversarial),
    (1, Weights::Random),
    (4, Weights::Random),
    (7, Weights::Random),
    (8, Weights::Random),
    (40, Weights::Random),
    (64, Weights::Random),
    (250, Weights::Random),
    (256, Weights::Random),
    (4096, Weights::Random),
];
const COLS: [usize; 5] = [256, 512, 4096, 6656, 19_968];
/// Row lengths of weight matrices that are not a multiple of the vector width of either
/// profile (build of llama.cpp).
const ODD_COLS: [usize; 6] = [5, 24, 96, 257, 500, 1000];

/// Returns the kernel name under which the comparison reports a rung of the ladder (the
/// table that chooses a kernel by shape) for a weight format. Float kernels get one
/// name for each of their two orders of summation.
fn kernel(dtype: DType, rung: &Rung) -> String {
    let kernel = rung.family.kernel(dtype);
    match rung.route {
        Some(route) if rung.family == Family::GgmlDot => format!("{kernel}/{}", route.name()),
        _ => kernel,
    }
}

/// A test weight matrix that is filled with random weights when the first test case
/// needs it.
struct Matrix {
    name: String,
    rows: usize,
    kind: Weights,
    made: OnceCell<Weight>,
}

impl Matrix {
    fn weight(&self, selection: &Selection, dtype: DType, cols: usize) -> Result<&Weight, String> {
        if self.made.get().is_none() {
            let mut rng = Rng::new(selection.seed, &self.name);
            let bytes = self.kind.fill(&mut rng, dtype, self.rows * cols);
            let made = Weight::new(&self.name, bytes, dtype, self.rows, cols);
            // `OnceCell::set` fails only if the cell is full, and it was empty.
            let _ = self.made.set(made.map_err(|e| e.to_string())?);
        }
        self.made.get().ok_or_else(|| self.name.clone())
    }
}

/// Runs the test cases of matrix products with weights of one format on llama.cpp and
/// on the backends under test.
pub(super) fn run(
    judge: &mut Judge<'_>,
    selection: &Selection,
    dtype: DType,
) -> Result<(), String> {
    let lane = Lane::Pinned(selection.profile);
    let mine = |r: &&Rung| r.lane == lane.name() && r.dtypes.contains(&dtype);
    for rung in LADDER.iter().filter(mine) {
        judge.expect(&kernel(dtype, rung));
    }
    let odd: &[usize] = if dtype.is_quantized() { &[] } else { &ODD_COLS };
    for &cols in odd.iter().chain(&COLS) {
        let matrices = ROWS.map(|(rows, kind)| Matrix {
            name: format!("{dtype} [{cols}, {rows}] {kind:?}"),
            rows,
            kind,
            made: OnceCell::new(),
        });
        let shapes = Shapes {
            lane,
            dtype,
            cols,
            matrices,
        };
        for width in WIDTHS {
            for input in Kind::ALL {
                shapes.one_by_one(judge, selection, width, input)?;
            }
        }
        shapes.sets(judge, selection)?;
    }
    Ok(())
}

/// All test weight matrices of one weight format and one row length.
struct Shapes {
    lane: Lane,
    dtype: DType,
    cols: usize,
    matrices: [Matrix; ROWS.len()],
}

impl Shapes {
    fn input(&self, selection: &Selection, name: &str, width: usize, kind: Kind) -> Activations {
        let mut rng = Rng::new(selection.seed, name);
        Activations {
            name: name.to_owned(),
            width: self.cols,
            values: kind.fill(&mut rng, width * self.cols, most(self.dtype)),
        }
    }

    /// Runs test cases that multiply one input of `width` rows by each weight matrix
    /// alone.
    fn one_by_one(
        &self,
        judge: &mut Judge<'_>,
        selection: &Selection,
        width: usize,
        input: Kind,
    ) -> Result<(), String> {
        let group = format!("{} {} x {width}", self.dtype, self.cols);
        let name = format!("{group} {input:?}");
        let variant = (input as usize, Kind::ALL.len());
        let mut x = None;
        for m in &self.matrices {
            let spans = self.spans(&[m.rows], width);
            let cost = (m.rows * self.cols * width) as u64;
            if !selection.selects(&group, variant, cost) || !judge.wants(cost) {
                judge.leave_out(&spans);
                continue;
            }
            let x = x.get_or_insert_with(|| self.input(selection, &name, width, input));
            let name = format!("{} x {width} {input:?}", m.name);
            judge.run(&Case {
                threads: selection.threads(&name, cost),
                name,
                cost,
                spans,
                question: Question::Project {
                    set: &[m.weight(selection, self.dtype, self.cols)?],
                    x,
                },
            })?;
        }
        Ok(())
    }

    /// Runs test cases that multiply one input by several weight matrices in one call,
    /// as a model does for Q, K, V and the gate.
    fn sets(&self, judge: &mut Judge<'_>, selection: &Selection) -> Result<(), String> {
        for width in [1, 2, 5, 8, 33] {
            for (i, of) in [[9, 8, 7, 6], [7, 7, 5, 2]].into_iter().enumerate() {
                let of = of.map(|i| &self.matrices[i]);
                let rows = of.map(|m| m.rows);
                let cost = (rows.iter().sum::<usize>() * self.cols * width) as u64;
                let name = format!("{} [{}, {rows:?}] x {width}", self.dtype, self.cols);
                let spans = self.spans(&rows, width);
                let group = format!("{} {} sets x {width}", self.dtype, self.cols);
                if !selection.selects(&group, (i, 2), cost) || !judge.wants(cost) {
                    judge.leave_out(&spans);
                    continue;
                }
                let mut set = Vec::new();
                for m in of {
                    set.push(m.weight(selection, self.dtype, self.cols)?);
                }
                let x = self.input(selection, &name, width, Kind::Normal);
                judge.run(&Case {
                    threads: selection.threads(&name, cost),
                    name,
                    cost,
                    spans,
                    question: Question::Project { set: &set, x: &x },
                })?;
            }
        }
        Ok(())
    }

    /// Returns, for each weight matrix of a product, which output values each rung of
    /// the ladder (the table that chooses a kernel by shape) computes. Each value
    /// belongs to exactly one rung.
    fn spans(&self, rows: &[usize], width: usize) -> Vec<KernelSpan> {
        let mut spans: Vec<KernelSpan> = Vec::new();
        let mut at = 0;
        for &rows in rows {
            for (rung, columns) in rungs(self.lane, self.dtype, rows, width) {
                spans.push(KernelSpan {
                    kernel: kernel(self.dtype, rung),
                    values: at + rows * columns.start..at + rows * columns.end,
                    width: rows,
                    first_row: columns.start,
                });
            }
            at += rows * width;
        }
        spans
    }
}
