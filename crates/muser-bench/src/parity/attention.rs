//! Test cases that compare muser's attention with llama.cpp's bit for bit, in every
//! form of its kernels, and the KV cache that it reads.

use super::inputs::{Kind, Rng};
use super::question::{Activations, Case, Question};
use super::selection::Selection;
use super::table::Judge;
use muser_ops::Attention;
use muser_ops::pinned::attention::{Form, form};

/// Numbers of query heads and K/V heads of the attention test cases, in pairs.
const HEADS: [(usize, usize); 7] = [(1, 1), (4, 1), (4, 2), (6, 3), (3, 3), (8, 1), (32, 2)];
/// Numbers of values in an attention head, for test cases: some are a multiple of a
/// kernel's vectors, some leave a remainder.
const HEAD_DIMS: [usize; 8] = [64, 128, 32, 96, 8, 40, 72, 256];
const WINDOWS: [Option<usize>; 9] = [
    None,
    Some(1),
    Some(16),
    Some(64),
    Some(96),
    Some(128),
    Some(300),
    Some(512),
    Some(2048),
];

/// Random distributions of the queries, keys and values of attention test cases, each
/// aimed at one step of the softmax.
#[derive(Clone, Copy, Debug)]
enum Look {
    Normal,
    /// Test inputs whose attention scores are far apart: one position gets nearly all
    /// of the weight.
    Peaked,
    /// Test inputs whose attention scores are nearly equal: every position gets about
    /// the same weight.
    Flat,
    /// Test inputs whose V rows hold values down to the subnormals of f16, and zeros of
    /// both signs.
    Small,
    /// Test inputs whose attention scores are equal, over V rows whose values cancel
    /// each other.
    Ties,
    /// Test inputs whose attention scores rise with the position: the softmax's running
    /// maximum changes at every step.
    Rising,
}

const LOOKS: [Look; 6] = [
    Look::Normal,
    Look::Peaked,
    Look::Flat,
    Look::Small,
    Look::Ties,
    Look::Rising,
];

/// Returns the kernel name under which the comparison reports a form of attention
/// (single rows, split, tiled).
pub(super) fn kernel(form: Form) -> &'static str {
    match form {
        Form::Single => "attention/single",
        Form::Split { .. } => "attention/split",
        Form::Tiled => "attention/tiled",
    }
}

/// The rows that a forward call computes: how many, and the position of the first one.
type Call = (usize, usize);

/// Runs all test cases of attention on llama.cpp and on every backend under test.
pub(super) fn run(judge: &mut Judge<'_>, selection: &Selection) -> Result<(), String> {
    for form in [Form::Single, Form::Split { part: 1 }, Form::Tiled] {
        judge.expect(kernel(form));
    }
    // Cases of a fixed shape, small enough for the slow backends; the seed picks the
    // shape of those below.
    for (heads, window) in [(2, 1), (1, 1)].into_iter().zip([Some(33), None]) {
        for place in [(5, 100), (1, 300), (64, 0), (70, 60)] {
            let look = Look::Normal;
            let shape = Shape {
                heads,
                window,
                look,
            };
            case(judge, selection, place, 16, (0, Some(shape)))?;
        }
    }
    let (single, tiled) = ([1, 2, 3, 7, 8, 33, 63], [64, 65, 100, 127, 128, 200, 512]);
    let rounds = if selection.quick { 1 } else { 3 };
    for round in 0..rounds {
        for head_dim in HEAD_DIMS {
            for rows in single {
                for first in [0, 1, 30, 193, 300, 505, 1000] {
                    // From 512 positions on, llama.cpp splits the positions that a
                    // single row sees between threads: another kernel, whose cases
                    // follow.
                    let first = if rows == 1 { first % 256 } else { first };
                    case(judge, selection, (rows, first), head_dim, (round, None))?;
                }
            }
            for first in [256, 300, 511, 512, 700, 767, 768, 1023, 1024, 1500, 3000] {
                case(judge, selection, (1, first), head_dim, (round, None))?;
            }
            for rows in tiled {
                for first in [0, 1, 64, 100, 250, 449, 600, 1000] {
                    case(judge, selection, (rows, first), head_dim, (round, None))?;
                }
            }
        }
    }
    Ok(())
}

/// Parameters of an attention test case; a random generator picks those that the case
/// leaves open.
#[derive(Clone, Copy)]
struct Shape {
    heads: (usize, usize),
    window: Option<usize>,
    look: Look,
}

fn case(
    judge: &mut Judge<'_>,
    selection: &Selection,
    (rows, first): Call,
    head_dim: usize,
    (round, shape): (usize, Option<Shape>),
) -> Result<(), String> {
    let end = first + rows;
    let key = format!("{rows} rows from {first}, head size {head_dim}, round {round}");
    let mut rng = Rng::new(selection.seed, &key);
    let picked = Shape {
        heads: rng.pick(&HEADS),
        window: rng.pick(&WINDOWS),
        look: rng.pick(&LOOKS),
    };
    let Shape {
        heads: (heads, kv_heads),
        window,
        look,
    } = shape.unwrap_or(picked);
    let seen = window.map_or(end, |w| end.min(w + rows));
    let cost = 2 * (rows * heads * head_dim * seen) as u64;
    // The number of threads decides how llama.cpp splits the positions that a single
    // row sees, or tiles of rows.
    let threads = match cost {
        0..200_000_000 => rng.pick(&[1, 2, 3, 5]),
        _ => selection.most_threads,
    };
    let kernel = kernel(form(rows, end, threads));
    let spans = Case::whole(kernel, rows, heads * head_dim);
    if !selection.affords(cost) || !judge.wants(cost) {
        judge.leave_out(&spans);
        return Ok(());
    }
    let desc = Attention {
        heads,
        kv_heads,
        head_dim,
        window,
        scale: 1.0 / (head_dim as f32).sqrt(),
    };
    let [q, k, v] = look.fill(&mut rng, &desc, (rows, first));
    judge.run(&Case {
        name: format!("{key}, heads {heads}:{kv_heads}, window {window:?}, {look:?}"),
        threads,
        cost,
        spans,
        question: Question::Attention {
            desc,
            q: &q,
            k: &k,
            v: &v,
        },
    })
}

impl Look {
    /// Fills the inputs of an attention test case: the queries of the forward call, and
    /// the keys and values of every position up to its end.
    fn fill(self, rng: &mut Rng, desc: &Attention, (rows, first): Call) -> [Activations; 3] {
        let (width, kv_width) = (desc.heads * desc.head_dim, desc.kv_heads * desc.head_dim);
        let end = first + rows;
        let mut normal =
            |n: usize, by: f32| -> Vec<f32> { (0..n).map(|_| rng.normal() * by).collect() };
        let factor = match self {
            Self::Peaked => 12.0,
            Self::Flat | Self::Ties => 1e-6,
            _ => 3.0,
        };
        let q = normal(rows * width, factor);
        let mut k = normal(end * kv_width, 1.0);
        let mut v = normal(end * kv_width, 1.0);
        for (i, (k, v)) in k.iter_mut().zip(&mut v).enumerate() {
            let t = i / kv_width.max(1);
            match self {
                Self::Small => *v *= rng.pick(&[1.0, 1e-3, 1e-5, 1e-7, 0.0, -0.0]),
                Self::Ties => {
                    *k = 1.0;
                    *v = rng.pick(&[1.0, -1.0, 0.5, -0.5]);
                }
                Self::Rising => *k += t as f32 / end as f32 * 8.0,
                _ => {}
            }
        }
        let q = match self {
            Self::Rising => q.into_iter().map(f32::abs).collect(),
            _ => q,
        };
        [(width, q), (kv_width, k), (kv_width, v)].map(|(width, x)| Activations::new(width, x))
    }
}

/// Runs the test cases of the KV cache, which is read back through attention.
///
/// *Values*: with a sliding window of 1, attention returns the row's own V as f16,
/// exactly. *Keys*: the row at position p sees p and p - 1, whose V are 0 and 1, and
/// its query picks one dimension d, scaled so that a neighbouring f16 of K gives
/// another result.
pub(super) fn kv_store(judge: &mut Judge<'_>, selection: &Selection) -> Result<(), String> {
    judge.expect("kv_store");
    for head_dim in HEAD_DIMS {
        for (rows, first) in [(2, 0), (7, 1), (63, 0), (63, 1), (63, 449), (40, 600)] {
            for kind in Kind::ALL {
                let name = format!("V, {rows} rows from {first} of {head_dim}, {kind:?}");
                let mut rng = Rng::new(selection.seed, &name);
                let n = (first + rows) * head_dim;
                // 65504 is the largest f16, and values below 65520 round to it; values
                // that round to infinity are not covered.
                let v = kind.fill(&mut rng, n, 65_519.0);
                let k = (0..n).map(|_| rng.normal()).collect();
                let q = (0..rows * head_dim).map(|_| rng.normal()).collect();
                read_back(judge, selection, (name, head_dim, 1), [q, k, v])?;
            }
            for level in [1.0f32, 1e-2, 1e-4, 3e-6, 2e-7] {
                let name = format!("K, {rows} rows from {first} of {head_dim}, about {level:e}");
                let mut rng = Rng::new(selection.seed, &name);
                let n = first + rows;
                let k = (0..n * head_dim).map(|_| level * (1.0 + 0.05 * rng.unit()));
                let k = k.collect();
                let v = (0..n * head_dim).map(|i| (i / head_dim % 2) as f32);
                let mut q = vec![0.0; rows * head_dim];
                let sharp = (30.0 * (head_dim as f32).sqrt() / level).min(6e4);
                for (r, q) in q.chunks_exact_mut(head_dim).enumerate() {
                    q[r % head_dim] = sharp;
                }
                read_back(judge, selection, (name, head_dim, 2), [q, k, v.collect()])?;
            }
        }
    }
    Ok(())
}

fn read_back(
    judge: &mut Judge<'_>,
    selection: &Selection,
    (name, head_dim, window): (String, usize, usize),
    rows: [Vec<f32>; 3],
) -> Result<(), String> {
    let [q, k, v] = rows.map(|x| Activations::new(head_dim, x));
    let cost = (q.values.len() * 16) as u64;
    judge.run(&Case {
        threads: selection.threads(&name, cost),
        name,
        cost,
        spans: Case::whole("kv_store", q.count(), head_dim),
        question: Question::Attention {
            desc: Attention {
                heads: 1,
                kv_heads: 1,
                head_dim,
                window: Some(window),
                scale: 1.0 / (head_dim as f32).sqrt(),
            },
            q: &q,
            k: &k,
            v: &v,
        },
    })
}
