//! Conformance cases of elementwise operations: every width up to 70 values, for all
//! remainders of vector registers, some larger widths, and all special values.

use super::compare::Seen;
use super::fill;
use super::rig::{Case, Guarded, Suite};
use super::rng::Rng;
use muser_ops::{Backend, OpError};

#[derive(Clone, Copy, Debug)]
enum Op {
    Add,
    SigmoidGate,
    SiluProduct,
    SoftCap { scale: f32, cap: Option<f32> },
}

struct Elementwise {
    op: Op,
    width: usize,
    rows: usize,
    a: Vec<f32>,
    b: Vec<f32>,
}

impl Case for Elementwise {
    fn name(&self) -> String {
        format!("{:?} {} x {}", self.op, self.rows, self.width)
    }

    fn run<B: Backend>(&self, backend: &B) -> Result<Vec<Seen>, OpError> {
        let (rows, width) = (self.rows, self.width);
        let mut x = Guarded::in_place(backend, "x", width, &self.a)?;
        let y = Guarded::input(backend, "y", width, &self.b)?;
        match self.op {
            Op::Add => backend.add(rows, &mut x.buffer, &y.buffer)?,
            Op::SigmoidGate => backend.sigmoid_gate(rows, &mut x.buffer, &y.buffer)?,
            Op::SiluProduct => backend.silu_product(rows, &mut x.buffer, &y.buffer)?,
            Op::SoftCap { scale, cap } => backend.soft_cap(rows, &mut x.buffer, scale, cap)?,
        }
        Ok(vec![x.see(backend)?, y.see(backend)?])
    }
}

/// Special test values: arguments at which exp, sigmoid, silu and tanh switch to
/// another formula, zeros, subnormals, infinities and NaN.
const SPECIAL: [f32; 38] = [
    0.0,
    -0.0,
    1.0,
    -1.0,
    f32::NAN,
    f32::INFINITY,
    f32::NEG_INFINITY,
    f32::MAX,
    f32::MIN,
    f32::MIN_POSITIVE,
    1e-45,
    -1e-45,
    -1e-39,
    0.625,
    -0.625,
    0.624_999_94,
    -0.624_999_94,
    0.346_573_6,
    -0.346_573_6,
    88.722_83,
    88.722_84,
    -88.722_84,
    90.0,
    90.000_01,
    -90.0,
    -87.336_55,
    -103.278_93,
    -103.972_08,
    -104.0,
    -105.0,
    -105.000_01,
    105.0,
    -1000.0,
    1000.0,
    1e10,
    -1e10,
    44.361_42,
    9.010_913,
];

/// Returns `n` test values: special ones (infinities, NaN, …), uniform ones over the
/// whole range of exp, normally distributed ones, and random bits.
fn values(rng: &mut Rng, n: usize) -> Vec<f32> {
    (0..n)
        .map(|_| match rng.below(4) {
            0 => rng.pick(&SPECIAL),
            1 => rng.signed() * 110.0,
            2 => rng.normal(),
            _ => f32::from_bits(rng.bits() as u32),
        })
        .collect()
}

fn case<B: Backend>(suite: &mut Suite<'_, B>, op: Op, width: usize, rows: usize) {
    if suite.full() {
        return;
    }
    let n = rows * width;
    let (mut a, b) = (values(&mut suite.rng, n), values(&mut suite.rng, n));
    // At some widths the first operand has no special values: kernels take another
    // branch for a vector that contains one.
    if width.is_multiple_of(3) {
        a = fill::plain(&mut suite.rng, n);
    }
    suite.case(&Elementwise {
        op,
        width,
        rows,
        a,
        b,
    });
}

fn widths<B: Backend>(suite: &mut Suite<'_, B>, ops: &[Op]) {
    for &op in ops {
        for width in 1..=70 {
            case(suite, op, width, 1 + width % 4);
        }
        for (width, rows) in [(1664, 1), (1000, 3), (4096, 9), (1, 33)] {
            case(suite, op, width, rows);
        }
    }
}

pub(super) fn add<B: Backend>(suite: &mut Suite<'_, B>) {
    widths(suite, &[Op::Add]);
}

pub(super) fn sigmoid_gate<B: Backend>(suite: &mut Suite<'_, B>) {
    widths(suite, &[Op::SigmoidGate]);
}

pub(super) fn silu_product<B: Backend>(suite: &mut Suite<'_, B>) {
    widths(suite, &[Op::SiluProduct]);
}

pub(super) fn soft_cap<B: Backend>(suite: &mut Suite<'_, B>) {
    let op = |scale, cap| Op::SoftCap { scale, cap };
    let ops = [
        op(0.088_388_35, Some(30.0)),
        op(1.0, Some(0.1)),
        op(-3.7, Some(1e-3)),
        op(0.5, None),
        op(1.0, None),
    ];
    widths(suite, &ops);
}
