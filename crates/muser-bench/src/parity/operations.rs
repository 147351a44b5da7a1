//! Test cases that compare muser's operations on rows of activations with llama.cpp's
//! bit for bit: norms, RoPE, gates, soft-capped logits, and the embedding.

use super::inputs::{Kind, Rng, Weights};
use super::question::{Activations, Case, KernelSpan, Question};
use super::selection::Selection;
use super::table::Judge;
use muser_ops::Weight;
use muser_ops::pinned::project::covers;
use muser_quant::DType;

/// Row lengths of the activations in test cases: multiples of the vector widths of both
/// AVX2 and AVX-512, of one of them, and of neither.
const WIDTHS: [usize; 17] = [
    1, 7, 8, 15, 16, 17, 24, 31, 37, 64, 100, 128, 250, 512, 1000, 6656, 19_968,
];
const ROWS: [usize; 4] = [1, 2, 7, 64];
const EPS: [f32; 3] = [1e-5, 1e-8, 1e-6];

/// Random distributions of the test inputs of an elementwise function: sigmoid, SiLU,
/// tanh.
#[derive(Clone, Copy, Debug)]
enum Span {
    /// Test inputs that are any finite f32 bit pattern, equally likely.
    Bits,
    /// Test inputs uniform over ±140: the whole range in which exp is neither zero nor
    /// infinite, and beyond.
    Range,
    /// Test inputs normally distributed around zero.
    Normal,
    /// Test inputs with magnitudes from 2^-30 to 2^8, every exponent about equally
    /// likely.
    Spread,
}

const SPANS: [Span; 4] = [Span::Bits, Span::Range, Span::Normal, Span::Spread];

impl Span {
    fn fill(self, rng: &mut Rng, n: usize) -> Vec<f32> {
        let mut value = || match self {
            Self::Bits => loop {
                let x = f32::from_bits(rng.next() as u32);
                if x.is_finite() {
                    break x;
                }
            },
            Self::Range => rng.unit() * 140.0,
            Self::Normal => rng.normal() * 3.0,
            Self::Spread => rng.unit() * 2f32.powi(rng.below(38) as i32 - 30),
        };
        (0..n).map(|_| value()).collect()
    }
}

/// A function that runs all test cases of one operation, such as RoPE.
pub(super) type Group = fn(&mut Judge<'_>, &Selection) -> Result<(), String>;

/// The functions that run the test cases of one operation each, with the name of the
/// kernel that they test.
pub(super) const GROUPS: [(&str, Group); 8] = [
    ("embed", embed),
    ("rms_norm", rms_norm),
    ("head_norm", head_norm),
    ("add_rms_norm", add_rms_norm),
    ("rope", rope),
    ("sigmoid_gate", sigmoid_gate),
    ("silu_product", silu_product),
    ("soft_cap", soft_cap),
];

/// Runs a test case whose answer one kernel computes; counts it as left out if the
/// selection of test cases does not hold it.
fn one<'a>(
    judge: &mut Judge<'_>,
    selection: &Selection,
    (kernel, name): (&str, String),
    (rows, width): (usize, usize),
    question: Question<'a>,
) -> Result<(), String> {
    // An exp costs about as much as ten multiply-adds.
    let cost = 10 * (rows * width) as u64;
    let spans: Vec<KernelSpan> = Case::whole(kernel, rows, width);
    if !selection.affords(cost) {
        judge.leave_out(&spans);
        return Ok(());
    }
    judge.run(&Case {
        threads: selection.threads(&name, cost),
        name,
        cost,
        spans,
        question,
    })
}

/// Returns all shapes of test activations, `(rows, width)`.
fn shapes() -> impl Iterator<Item = (usize, usize)> {
    let all = ROWS
        .iter()
        .flat_map(|&r| WIDTHS.iter().map(move |&w| (r, w)));
    // Long rows, for the elementwise functions.
    all.chain([(3, 100_003), (2, 1 << 18)])
}

fn embed(judge: &mut Judge<'_>, selection: &Selection) -> Result<(), String> {
    let vocab = 300;
    for dtype in DType::ALL.into_iter().filter(|&d| covers(d)) {
        let kernel = format!("embed/{}", dtype.name().to_lowercase());
        judge.expect(&kernel);
        for cols in [256, 512, 6656] {
            for kind in [Weights::Random, Weights::Adversarial] {
                let name = format!("{dtype} [{cols}, {vocab}] {kind:?}");
                let mut rng = Rng::new(selection.seed, &name);
                let bytes = kind.fill(&mut rng, dtype, vocab * cols);
                let table = Weight::new(&name, bytes, dtype, vocab, cols);
                let table = table.map_err(|e| e.to_string())?;
                for rows in [1, 3, 64, 300] {
                    let tokens: Vec<u32> = (0..rows).map(|_| rng.below(vocab) as u32).collect();
                    let name = format!("{name}, {rows} tokens");
                    let question = Question::Embed {
                        table: &table,
                        tokens: &tokens,
                    };
                    one(judge, selection, (&kernel, name), (rows, cols), question)?;
                }
            }
        }
    }
    Ok(())
}

/// Returns random test activations whose sum of squares stays finite in each row, as an
/// RMS norm needs.
fn normable(rng: &mut Rng, kind: Kind, (rows, width): (usize, usize)) -> Activations {
    Activations::new(width, kind.fill(rng, rows * width, 1e15))
}

fn rms_norm(judge: &mut Judge<'_>, selection: &Selection) -> Result<(), String> {
    for shape in shapes() {
        for (i, kind) in Kind::ALL.into_iter().enumerate() {
            for weighted in [false, true] {
                let eps = EPS[(i + shape.0) % EPS.len()];
                let of = if weighted { "with weight" } else { "alone" };
                let name = format!("{shape:?} {kind:?} {of}, eps {eps:e}");
                let mut rng = Rng::new(selection.seed, &name);
                let x = normable(&mut rng, kind, shape);
                let w: Vec<f32> = (0..shape.1).map(|_| rng.normal()).collect();
                let question = Question::RmsNorm {
                    x: &x,
                    weight: weighted.then_some(&w[..]),
                    eps,
                };
                one(judge, selection, ("rms_norm", name), shape, question)?;
            }
        }
    }
    Ok(())
}

fn head_norm(judge: &mut Judge<'_>, selection: &Selection) -> Result<(), String> {
    for (i, (rows, heads)) in [(1, 1), (1, 32), (2, 3), (7, 2), (64, 8), (100, 1)]
        .into_iter()
        .enumerate()
    {
        for head in [8, 24, 32, 40, 64, 96, 128, 256] {
            for kind in Kind::ALL {
                let eps = EPS[(i + head / 8) % EPS.len()];
                let name = format!("{rows} rows, {heads} heads of {head} {kind:?}, eps {eps:e}");
                let mut rng = Rng::new(selection.seed, &name);
                let shape = (rows, heads * head);
                let x = normable(&mut rng, kind, shape);
                // Released models have constant weights here; a weight that
                // varies shows which value of a head it was applied to.
                let w: Vec<f32> = (0..head).map(|_| rng.normal()).collect();
                let question = Question::HeadNorm {
                    x: &x,
                    weight: &w,
                    eps,
                };
                one(judge, selection, ("head_norm", name), shape, question)?;
            }
        }
    }
    Ok(())
}

fn add_rms_norm(judge: &mut Judge<'_>, selection: &Selection) -> Result<(), String> {
    for shape in shapes() {
        for (i, kind) in Kind::ALL.into_iter().enumerate() {
            let eps = EPS[(i + shape.0 + 1) % EPS.len()];
            let name = format!("{shape:?} {kind:?}, eps {eps:e}");
            let mut rng = Rng::new(selection.seed, &name);
            let y = normable(&mut rng, kind, shape);
            let x = normable(&mut rng, beside(i), shape);
            let w: Vec<f32> = (0..shape.1).map(|_| rng.normal()).collect();
            let question = Question::AddRmsNorm {
                x: &x,
                y: &y,
                weight: &w,
                eps,
            };
            one(judge, selection, ("add_rms_norm", name), shape, question)?;
        }
    }
    Ok(())
}

/// Picks the random distribution of one operand of a test case, given the index `i` of
/// the other operand's distribution.
fn beside(i: usize) -> Kind {
    [Kind::Normal, Kind::HeavyTailed, Kind::Zeros][i % 3]
}

fn rope(judge: &mut Judge<'_>, selection: &Selection) -> Result<(), String> {
    let firsts = [
        0, 1, 5, 100, 777, 2046, 4095, 32_767, 65_535, 131_070, 999_999, 1_000_003,
    ];
    for first in firsts {
        for head in [8, 16, 24, 32, 40, 64, 96, 128, 256] {
            for (rows, heads) in [(1, 1), (1, 32), (2, 3), (7, 2), (64, 4)] {
                for base in [500_000.0, 10_000.0, 1_000_000.0] {
                    let group = format!("{rows} rows from {first}, {heads} heads of {head}");
                    let name = format!("{group}, base {base}");
                    let mut rng = Rng::new(selection.seed, &name);
                    let kind = rng.pick(&[Kind::Normal, Kind::Normal, Kind::Zeros, Kind::Huge]);
                    let shape = (rows, heads * head);
                    let x = Activations::new(shape.1, kind.fill(&mut rng, shape.0 * shape.1, 1e30));
                    let question = Question::Rope {
                        x: &x,
                        head,
                        base,
                        first,
                    };
                    one(judge, selection, ("rope", name), shape, question)?;
                }
            }
        }
    }
    Ok(())
}

/// Two test inputs of the same shape for a gate or the soft cap: `x`, and the argument
/// of the elementwise function.
struct Operands {
    name: String,
    shape: (usize, usize),
    x: Activations,
    argument: Activations,
}

/// Calls `run` with two test inputs for every shape and for every random distribution
/// of the elementwise function's argument.
fn operands(
    selection: &Selection,
    kernel: &str,
    mut run: impl FnMut(&Operands) -> Result<(), String>,
) -> Result<(), String> {
    for shape in shapes() {
        for (i, span) in SPANS.into_iter().enumerate() {
            let name = format!("{shape:?} {span:?}");
            let mut rng = Rng::new(selection.seed, &format!("{kernel} {name}"));
            let n = shape.0 * shape.1;
            let x = beside(i).fill(&mut rng, n, 1e15);
            run(&Operands {
                name,
                shape,
                x: Activations::new(shape.1, x),
                argument: Activations::new(shape.1, span.fill(&mut rng, n)),
            })?;
        }
    }
    Ok(())
}

fn sigmoid_gate(judge: &mut Judge<'_>, selection: &Selection) -> Result<(), String> {
    operands(selection, "sigmoid_gate", |o| {
        let (x, gate) = (&o.x, &o.argument);
        let question = Question::SigmoidGate { x, gate };
        one(
            judge,
            selection,
            ("sigmoid_gate", o.name.clone()),
            o.shape,
            question,
        )
    })
}

fn silu_product(judge: &mut Judge<'_>, selection: &Selection) -> Result<(), String> {
    operands(selection, "silu_product", |o| {
        let (gate, up) = (&o.argument, &o.x);
        let question = Question::SiluProduct { gate, up };
        one(
            judge,
            selection,
            ("silu_product", o.name.clone()),
            o.shape,
            question,
        )
    })
}

fn soft_cap(judge: &mut Judge<'_>, selection: &Selection) -> Result<(), String> {
    operands(selection, "soft_cap", |o| {
        for (scale, cap) in [
            (0.196_116, Some(20.0)),
            (1.0, Some(30.0)),
            (std::f32::consts::FRAC_1_SQRT_2, None),
        ] {
            let name = format!("{}, scale {scale}, cap {cap:?}", o.name);
            let x = &o.argument;
            let question = Question::SoftCap { x, scale, cap };
            one(judge, selection, ("soft_cap", name), o.shape, question)?;
        }
        Ok(())
    })
}
