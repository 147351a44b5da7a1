//! Conformance cases of projections (products of weight matrices and activations):
//! every weight format, many batch widths, every remainder of rows.
//!
//! The oracle computes a pool of products once: matrices of up to a few hundred rows
//! times 40 rows of activations. A case takes a part of the rows of both, and its
//! expected values are that part of the pool's. So a case of any batch width also
//! checks that the width changes no bit, and the slow oracle runs only once.

use super::compare::Seen;
use super::fill;
use super::rig::{Case, Guarded, Suite};
use super::rng::Rng;
use muser_ops::project::Operand;
use muser_ops::{Backend, OpError, Weight, project};
use muser_quant::{Arithmetic, DType, GROUP, QK};

/// The number of rows of activations whose products the oracle computes once, for all
/// cases: more than the widest batch has, so that batches can begin at different rows.
const POOL: usize = 40;

/// Weight matrices with the same number of columns, rows of activations, and the
/// products of all of them, which the oracle computes once for many conformance cases.
struct Pool {
    cols: usize,
    x: Vec<f32>,
    matrices: Vec<Matrix>,
}

struct Matrix {
    dtype: DType,
    rows: usize,
    bytes: Vec<u8>,
    /// The weight matrix's products with every row of activations, computed by the
    /// oracle (which defines the right bits); shape `[rows of activations, rows of the
    /// matrix]`.
    expected: Vec<f32>,
}

impl Pool {
    fn new(rng: &mut Rng, cols: usize, turn: usize, shapes: &[(DType, usize)]) -> Self {
        let x = (0..POOL)
            .flat_map(|r| fill::activations(rng, turn + r, cols))
            .collect();
        Self::over(rng, x, cols, turn, shapes)
    }

    fn over(
        rng: &mut Rng,
        x: Vec<f32>,
        cols: usize,
        turn: usize,
        shapes: &[(DType, usize)],
    ) -> Self {
        let matrix = |&(dtype, rows): &(DType, usize)| {
            let bytes = fill::weights(rng, dtype, rows, cols, turn);
            let mut expected = Vec::with_capacity(x.len() / cols * rows);
            for row in x.chunks(cols) {
                let x = Operand::new(dtype.arithmetic(), row);
                let rows = bytes.chunks(bytes.len() / rows);
                expected.extend(rows.map(|w| project::dot(dtype, w, &x)));
            }
            Matrix {
                dtype,
                rows,
                bytes,
                expected,
            }
        };
        let matrices = shapes.iter().map(matrix).collect();
        Self { cols, x, matrices }
    }

    /// Runs one conformance case of matrix products: random ranges of `rows` rows of
    /// each weight matrix and of `batch` rows of activations of the pool.
    fn check<B: Backend>(&self, suite: &mut Suite<'_, B>, rows: &[usize], batch: usize) {
        if suite.full() {
            return;
        }
        let inputs = self.x.len() / self.cols;
        let first_input = suite.rng.below(inputs - batch + 1);
        let windows: Vec<(usize, usize)> = self
            .matrices
            .iter()
            .zip(rows)
            .map(|(m, &n)| (suite.rng.below(m.rows - n + 1), n))
            .collect();
        let expected: Vec<Vec<f32>> = self
            .matrices
            .iter()
            .zip(&windows)
            .map(|(m, &(first, n))| {
                (first_input..first_input + batch)
                    .flat_map(|i| &m.expected[i * m.rows + first..][..n])
                    .copied()
                    .collect()
            })
            .collect();
        let case = Window {
            pool: self,
            windows,
            first_input,
            batch,
            offset: suite.rng.below(4),
            parts: batch % 4 == 3,
        };
        if suite.width_matters() {
            // The pool's products are those of single inputs; the oracle has to compute
            // this batch width itself.
            return suite.case(&case);
        }
        let expected: Vec<&[f32]> = expected.iter().map(Vec::as_slice).collect();
        suite.case_against(&case, &expected);
    }
}

/// Bytes of weights at an unaligned address with 0xff around them: weight formats have
/// no alignment, and what a kernel reads past the end must not matter.
struct Unaligned {
    bytes: Vec<u8>,
    offset: usize,
}

impl Unaligned {
    fn new(bytes: &[u8], offset: usize) -> Self {
        let mut all = vec![0xff; offset];
        all.extend_from_slice(bytes);
        all.extend([0xff; 64]);
        Self { bytes: all, offset }
    }
}

impl AsRef<[u8]> for Unaligned {
    fn as_ref(&self) -> &[u8] {
        &self.bytes[self.offset..self.bytes.len() - 64]
    }
}

struct Window<'a> {
    pool: &'a Pool,
    /// The first row, and the number of rows, that this conformance case takes from
    /// each weight matrix.
    windows: Vec<(usize, usize)>,
    first_input: usize,
    batch: usize,
    offset: usize,
    /// Whether the projection set is computed in two calls: the first matrix alone,
    /// then the others.
    parts: bool,
}

impl Case for Window<'_> {
    fn name(&self) -> String {
        let set: Vec<String> = self
            .pool
            .matrices
            .iter()
            .zip(&self.windows)
            .map(|(m, (first, n))| format!("{} {n} rows from {first}", m.dtype))
            .collect();
        format!(
            "[{}] x {} cols, batch {} from {}, address + {}{}",
            set.join(", "),
            self.pool.cols,
            self.batch,
            self.first_input,
            self.offset,
            if self.parts { ", in two parts" } else { "" }
        )
    }

    fn run<B: Backend>(&self, b: &B) -> Result<Vec<Seen>, OpError> {
        let cols = self.pool.cols;
        let mut set = Vec::new();
        let mut outs = Vec::new();
        for (m, &(first, n)) in self.pool.matrices.iter().zip(&self.windows) {
            let row_bytes = m.bytes.len() / m.rows;
            let bytes = &m.bytes[first * row_bytes..(first + n) * row_bytes];
            let bytes = Unaligned::new(bytes, self.offset);
            set.push(Weight::new("weight", bytes, m.dtype, n, cols)?.into());
            outs.push(Guarded::output(b, "out", self.batch, n)?);
        }
        let x = &self.pool.x[self.first_input * cols..][..self.batch * cols];
        let x = Guarded::input(b, "x", cols, x)?;
        let mut buffers: Vec<&mut B::Buffer> = outs.iter_mut().map(|o| &mut o.buffer).collect();
        let which = 0..set.len();
        let set = b.bind_set(set)?;
        if self.parts {
            // The same products in two calls, each of a part of the projection set.
            let (first, rest) = buffers.split_at_mut(1);
            b.project(self.batch, &set, 0..1, &x.buffer, first)?;
            b.project(self.batch, &set, 1..which.end, &x.buffer, rest)?;
        } else {
            b.project(self.batch, &set, which, &x.buffer, &mut buffers)?;
        }
        let mut seen = vec![x.see(b)?];
        for out in outs {
            seen.push(out.see(b)?);
        }
        Ok(seen)
    }
}

/// Batch widths (rows of activations) that products are tested with: every remainder of
/// a kernel's tile of up to 16 rows, and some around 32.
const BATCHES: [usize; 20] = [
    1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 31, 32, 33,
];

/// Shapes of products to test: a number of columns, with the numbers of rows and the
/// batch widths that are tried with it in every combination.
type Grid<'a> = (usize, &'a [usize], &'a [usize]);

/// Runs the conformance cases of products with one weight matrix of the format `dtype`.
pub(super) fn one<B: Backend>(suite: &mut Suite<'_, B>, dtype: DType) {
    const SMALL: [usize; 17] = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17];
    let some_rows = [1, 2, 3, 5, 8, 9, 17];
    let some_batches = [1, 2, 3, 4, 5, 7, 8, 9, 16, 17, 33];
    let grids: &[Grid<'_>] = match dtype.arithmetic() {
        Arithmetic::Superblocks => &[
            (QK, &SMALL, &BATCHES),
            (QK, &[64, 250], &[1, 2, 3, 4, 8, 9, 17, 33]),
            (2 * QK, &some_rows, &some_batches),
            // Enough rows for tasks of several blocks of rows, with and without a
            // remainder.
            (3 * QK, &[250, 408], &[2, 4, 7, 9, 33]),
            (26 * QK, &[1, 3, 17], &[1, 2, 5, 8, 9, 33]),
            (78 * QK, &[1, 4], &[1, 3, 9]),
        ],
        Arithmetic::Groups => &[
            (QK, &SMALL, &BATCHES),
            (QK, &[64, 250], &[1, 2, 3, 4, 8, 9, 17, 33]),
            // Rows shorter than 256 values, and rows with one to seven groups after
            // whole blocks of 256.
            (GROUP, &some_rows, &some_batches),
            (3 * GROUP, &some_rows, &some_batches),
            (7 * GROUP, &some_rows, &some_batches),
            (QK + GROUP, &some_rows, &some_batches),
            (576, &some_rows, &some_batches),
            (640, &some_rows, &some_batches),
            (4 * QK - GROUP, &[250, 408], &[2, 4, 7, 9, 33]),
            (26 * QK, &[1, 3, 17], &[1, 2, 5, 8, 9, 33]),
            (77 * QK + 5 * GROUP, &[1, 4], &[1, 3, 9]),
        ],
        Arithmetic::Floats => &[
            (64, &SMALL, &BATCHES),
            (64, &[64, 250], &[1, 2, 3, 4, 8, 9, 17, 33]),
            (1, &some_rows, &some_batches),
            (7, &some_rows, &some_batches),
            (100, &some_rows, &some_batches),
            (255, &some_rows, &some_batches),
            (256, &some_rows, &some_batches),
            (257, &some_rows, &some_batches),
            (1000, &some_rows, &some_batches),
            (26 * QK, &[1, 3, 17], &[1, 5, 9]),
            // A row so long that it is more than one thread's task.
            (32_769, &[1, 2], &[1, 2]),
        ],
    };
    for (turn, &(cols, rows, batches)) in grids.iter().enumerate() {
        if suite.full() {
            return;
        }
        // A few more rows than the largest case takes, so that cases begin at different
        // rows.
        let most = rows.iter().copied().fold(0, usize::max) + 6;
        let pool = Pool::new(&mut suite.rng, cols, turn, &[(dtype, most)]);
        for &n in rows {
            for &batch in batches {
                pool.check(suite, &[n], batch);
            }
        }
    }
    every_position_of_the_maximum(suite, dtype);
}

/// Runs a case of products in which row p of the activations has its largest magnitude
/// at index p, for every p: once alone, and once with its negative at another index.
fn every_position_of_the_maximum<B: Backend>(suite: &mut Suite<'_, B>, dtype: DType) {
    let mut x = Vec::with_capacity(2 * QK * QK);
    for tie in [false, true] {
        for p in 0..QK {
            let at = x.len();
            x.extend(fill::plain(&mut suite.rng, QK));
            let max = 9.0 + suite.rng.signed();
            let max = suite.rng.sign(max);
            x[at + p] = max;
            let other = suite.rng.below(QK);
            if tie && other != p {
                x[at + other] = -max;
            }
        }
    }
    let pool = Pool::over(&mut suite.rng, x, QK, 0, &[(dtype, 3)]);
    pool.check(suite, &[3], 2 * QK);
}

/// Runs the conformance cases of projection sets (matrices with the same input in one
/// call), of several formats and numbers of rows; some have a single row or a single
/// matrix.
pub(super) fn set<B: Backend>(suite: &mut Suite<'_, B>) {
    use DType::{BF16, F16, F32, Q4K, Q5K, Q6K};
    let mut sets: Vec<Vec<(DType, usize)>> = vec![
        vec![(Q4K, 64), (Q4K, 16), (Q6K, 16), (Q4K, 64)],
        vec![(Q4K, 33), (Q4K, 33)],
        vec![(Q6K, 1)],
        vec![(Q5K, 1), (Q4K, 1), (Q6K, 1)],
        vec![(Q5K, 17), (Q6K, 2), (Q5K, 9)],
        vec![(F16, 5), (Q4K, 7), (F32, 1), (BF16, 12), (Q6K, 3)],
        vec![(F16, 16), (F16, 4), (F16, 4)],
    ];
    if !suite.width_matters() {
        // The strict lane (muser's own arithmetic) has every weight format: one set of
        // all, and the same in reverse.
        let all = DType::ALL.into_iter().enumerate();
        let all: Vec<_> = all.map(|(i, dtype)| (dtype, [7, 1, 16][i % 3])).collect();
        sets.push(all.iter().copied().rev().collect());
        sets.push(all);
    }
    for (turn, shapes) in sets.iter().enumerate() {
        for cols in [QK, 2 * QK, 5 * QK] {
            if suite.full() {
                return;
            }
            let pool = Pool::new(&mut suite.rng, cols, turn, shapes);
            let rows: Vec<usize> = shapes.iter().map(|s| s.1).collect();
            for batch in BATCHES {
                pool.check(suite, &rows, batch);
            }
        }
    }
}
