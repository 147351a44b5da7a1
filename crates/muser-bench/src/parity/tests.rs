//! Tests that the comparison with llama.cpp can fail: backends with one planted
//! rounding error are compared with the oracle (the scalar functions that define the
//! bits), which stands in for llama.cpp.

use super::ours::Ours;
use super::run_group;
use super::selection::Selection;
use super::table::{Judge, Subject};
use muser_ops::hook::{Call, Hook, Hooked};
use muser_ops::pinned::project::{Route, route};
use muser_ops::pinned::{self, Oracle};
use muser_ops::{Attention, Backend, OpError, Profile};
use muser_quant::q4_k::BlockQ4K;
use muser_quant::q8_k::BlockQ8K;
use std::path::Path;
use std::sync::Arc;

/// The rounding error or refusal that a test plants in a backend, which the comparison
/// with llama.cpp has to find.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Defect {
    Nothing,
    /// Planted defect: products of Q4_K weights on llama.cpp's interleaved route round
    /// each product before it is added, instead of using a fused multiply-add.
    UnfusedLink,
    /// Planted defect: attention applies its scale to the query instead of the score.
    ScaledQuery,
    /// Planted defect: the RMS norm sums the squares in f32 instead of f64.
    NarrowSum,
    /// Planted defect: RoPE (the rotary position encoding) is refused with an error.
    RefusedRope,
}

/// Computes a dot product like the route [`Route::Interleaved`], but rounds every
/// product before it is added.
fn unfused(row: &[u8], x: &[f32]) -> f32 {
    let (mut acc, mut low) = (0.0f32, 0.0f32);
    let x = x.as_chunks::<256>().0;
    for (block, x) in row.as_chunks::<144>().0.iter().zip(x) {
        let (w, a) = (BlockQ4K::from_bytes(block), BlockQ8K::quantize(x));
        let (sum, min) = w.dot(&a);
        let [d, dmin] = [w.d, w.dmin].map(muser_quant::f16::to_f32);
        acc += sum as f32 * (d * a.d);
        low += min as f32 * (dmin * a.d);
    }
    acc - low
}

/// Puts the planted defect into the operations of the oracle (the scalar functions that
/// define the bits).
impl Hook<Oracle> for Defect {
    fn call(&self, b: &Oracle, mut call: Call<'_, '_, Oracle>) -> Result<(), OpError> {
        match (self, &mut call) {
            (Self::RefusedRope, Call::Rope { .. }) => return pinned::check_head("rope", 7),
            (
                Self::ScaledQuery,
                Call::Attention {
                    batch,
                    layer,
                    desc,
                    subset,
                    q,
                    k,
                    v,
                    out,
                },
            ) => {
                let rows = b.plan(batch).count(*subset);
                let mut values = b.read(q, rows)?.into_owned();
                values.iter_mut().for_each(|v| *v *= desc.scale);
                let mut scaled = b.buffer(rows, b.width(q))?;
                b.write(&mut scaled, &values)?;
                let desc = Attention {
                    scale: 1.0,
                    ..**desc
                };
                return b.attention(batch, *layer, &desc, *subset, &scaled, k, v, out);
            }
            _ => {}
        }
        call.run(b)?;
        match (self, call) {
            (
                Self::UnfusedLink,
                Call::Project {
                    rows,
                    set,
                    which,
                    x,
                    out,
                },
            ) => set[which].iter().zip(out).try_for_each(|(w, out)| {
                let mut values = b.read(out, rows)?.into_owned();
                let input = b.read(x, rows)?;
                let columns = input.chunks(w.cols()).zip(values.chunks_mut(w.rows()));
                for (column, (x, y)) in columns.enumerate() {
                    if route(w.dtype(), w.rows(), rows, column) == Some(Route::Interleaved) {
                        for (r, y) in y.iter_mut().enumerate() {
                            *y = unfused(w.row(r), x);
                        }
                    }
                }
                b.write(out, &values)
            }),
            (
                Self::NarrowSum,
                Call::RmsNorm {
                    rows,
                    x,
                    weight: Some(weight),
                    eps,
                    out,
                },
            ) => {
                let n = weight.len();
                let mut values = b.read(x, rows)?.into_owned();
                for row in values.chunks_mut(n) {
                    let sum = row.iter().fold(0.0f32, |s, &v| s + v * v);
                    let r = pinned::norm::factor(f64::from(sum), n, eps);
                    row.iter_mut()
                        .zip(weight)
                        .for_each(|(v, w)| *v = *v * r * w);
                }
                b.write(out, &values)
            }
            _ => Ok(()),
        }
    }
}

/// Runs the test cases of one operation on a backend with this planted defect. Returns
/// the failures and the lines printed for failing cases.
fn judged(defect: Defect, group: &str, limit: u64) -> (Vec<String>, Vec<String>) {
    let profile = Profile::LlamaCppAvx2;
    let oracle = move |threads| Oracle { profile, threads };
    let mut reference = Ours::new(move |threads| Ok(oracle(threads)));
    let subject = Subject {
        level: "wrong".to_owned(),
        side: Box::new(Ours::new(move |threads| {
            Ok(Hooked::over(Arc::new(oracle(threads)), defect))
        })),
        limit,
    };
    let mut judge = Judge::new(&mut reference, vec![subject]);
    let selection = Selection {
        profile,
        seed: 1,
        quick: true,
        most_threads: 2,
    };
    let nowhere = Path::new("");
    run_group(&mut judge, &selection, nowhere, nowhere, group).unwrap();
    (judge.verdict(), judge.told().to_vec())
}

/// Returns whether the first line printed for a failing test case contains all of
/// `parts` and two different values.
fn tells(told: &[String], parts: &[&str]) -> bool {
    told.first().is_some_and(|line| {
        let bits = |after: &str| {
            let text = line.split(after).nth(1).unwrap_or_default();
            u32::from_str_radix(text.get(..8).unwrap_or_default(), 16).ok()
        };
        let (want, got) = (bits("expected "), bits("found "));
        parts.iter().all(|p| line.contains(p)) && want.is_some() && got.is_some() && want != got
    })
}

#[test]
fn the_oracle_passes_its_own_cases() {
    for (group, limit) in [
        ("project/q4_k", 1 << 15),
        ("project/f32", 1 << 13),
        ("attention", 1 << 18),
        ("kv_store", 1 << 15),
        ("rms_norm", 1 << 15),
        ("rope", 1 << 15),
        ("embed", 1 << 14),
        ("soft_cap", 1 << 14),
    ] {
        let (verdict, told) = judged(Defect::Nothing, group, limit);
        assert!(
            verdict.is_empty() && told.is_empty(),
            "{group}: {verdict:?}"
        );
    }
}

#[test]
fn a_moved_rounding_fails_by_kernel_and_case() {
    let (verdict, told) = judged(Defect::UnfusedLink, "project/q4_k", 1 << 15);
    // Both kernels of the interleaved route fail; other routes of the same weights
    // pass.
    assert_eq!(verdict.len(), 2, "{verdict:?}");
    for (verdict, kernel) in verdict.iter().zip(["matvec/q4_k", "slab/q4_k"]) {
        assert!(
            verdict.starts_with(&format!("{kernel} at wrong: ")),
            "{verdict:?}"
        );
    }
    let parts = ["matvec/q4_k at wrong: Q4_K [", "threads", "first row"];
    assert!(tells(&told, &parts), "{told:?}");

    let (verdict, told) = judged(Defect::ScaledQuery, "attention", 1 << 18);
    assert!(
        verdict
            .iter()
            .any(|v| v.starts_with("attention/single at wrong")),
        "{verdict:?}"
    );
    assert!(
        tells(&told, &["attention/", "rows from", "heads", "window"]),
        "{told:?}"
    );

    let (verdict, told) = judged(Defect::NarrowSum, "rms_norm", 1 << 15);
    assert!(
        verdict.len() == 1 && verdict[0].starts_with("rms_norm at wrong"),
        "{verdict:?}"
    );
    assert!(tells(&told, &["with weight"]), "{told:?}");
}

#[test]
fn a_refusal_and_an_empty_run_fail() {
    let (verdict, told) = judged(Defect::RefusedRope, "rope", 1 << 15);
    assert!(
        verdict.len() == 1 && verdict[0].starts_with("rope at wrong"),
        "{verdict:?}"
    );
    assert!(told[0].contains("refused: rope: head size 7"), "{told:?}");
    let (verdict, _) = judged(Defect::Nothing, "project/q5_k", 0);
    assert_eq!(
        verdict,
        ["lanes/q5_k", "slab/q5_k/tiled"].map(|k| format!("{k} at wrong: nothing was compared"))
    );
}
