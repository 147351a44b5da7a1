//! Tests that the comparison can fail: backends with one wrong rounding go
//! through the code of the command, with the scalar oracle in the place of
//! llama.cpp.

use super::ours::Ours;
use super::run_group;
use super::selection::Selection;
use super::table::{Judge, Subject};
use muser_ops::pinned::project::{Route, route};
use muser_ops::pinned::{self, Oracle};
use muser_ops::{Attention, Backend, BackendInfo, KvLayout, OpError, Profile, RopeTable, Weight};
use muser_quant::q4_k::BlockQ4K;
use muser_quant::q8_k::BlockQ8K;
use std::path::Path;

type Buffer = <Oracle as Backend>::Buffer;
type Kv = <Oracle as Backend>::Kv;

/// The defect of a backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Defect {
    Nothing,
    /// In products of Q4_K with one column, the product is rounded before it is
    /// added.
    UnfusedLink,
    /// The scale is applied to the query instead of the score.
    ScaledQuery,
    /// The squares of a norm are summed in f32 instead of f64.
    NarrowSum,
    /// RoPE is refused.
    RefusedRope,
}

/// The scalar oracle with one defect.
struct Wrong {
    oracle: Oracle,
    defect: Defect,
}

/// Computes the chain of [`Route::Interleaved`] with every product rounded.
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

impl Backend for Wrong {
    type Buffer = Buffer;
    type Weight = Weight;
    type Vector = Vec<f32>;
    type Kv = Kv;

    fn info(&self) -> BackendInfo {
        self.oracle.info()
    }

    fn bind(&self, weight: Weight) -> Result<Weight, OpError> {
        self.oracle.bind(weight)
    }

    fn bind_vector(&self, values: Vec<f32>) -> Vec<f32> {
        values
    }

    fn buffer(&self, rows: usize, width: usize) -> Buffer {
        self.oracle.buffer(rows, width)
    }

    fn write(&self, buffer: &mut Buffer, values: &[f32]) -> Result<(), OpError> {
        self.oracle.write(buffer, values)
    }

    fn read(&self, buffer: &Buffer, out: &mut [f32]) -> Result<(), OpError> {
        self.oracle.read(buffer, out)
    }

    fn copy_rows(
        &self,
        rows: usize,
        src: &Buffer,
        from: usize,
        dst: &mut Buffer,
        to: usize,
    ) -> Result<(), OpError> {
        self.oracle.copy_rows(rows, src, from, dst, to)
    }

    fn kv(&self, layout: KvLayout) -> Kv {
        self.oracle.kv(layout)
    }

    fn embed(&self, table: &Weight, tokens: &[u32], out: &mut Buffer) -> Result<(), OpError> {
        self.oracle.embed(table, tokens, out)
    }

    fn project(
        &self,
        rows: usize,
        set: &[&Weight],
        x: &Buffer,
        out: &mut [&mut Buffer],
    ) -> Result<(), OpError> {
        self.oracle.project(rows, set, x, out)?;
        if self.defect != Defect::UnfusedLink {
            return Ok(());
        }
        for (w, out) in set.iter().zip(out) {
            let mut input = vec![0.0; rows * w.cols()];
            self.read(x, &mut input)?;
            let mut values = vec![0.0; rows * w.rows()];
            self.read(out, &mut values)?;
            let columns = input.chunks(w.cols()).zip(values.chunks_mut(w.rows()));
            for (column, (x, y)) in columns.enumerate() {
                if route(w.dtype(), w.rows(), rows, column) == Route::Interleaved {
                    for (r, y) in y.iter_mut().enumerate() {
                        *y = unfused(w.row(r), x);
                    }
                }
            }
            self.write(out, &values)?;
        }
        Ok(())
    }

    fn rms_norm(
        &self,
        rows: usize,
        x: &Buffer,
        weight: Option<&Vec<f32>>,
        eps: f32,
        out: &mut Buffer,
    ) -> Result<(), OpError> {
        self.oracle.rms_norm(rows, x, weight, eps, out)?;
        let Some(weight) = weight.filter(|_| self.defect == Defect::NarrowSum) else {
            return Ok(());
        };
        let n = weight.len();
        let mut values = vec![0.0; rows * n];
        self.read(x, &mut values)?;
        for row in values.chunks_mut(n) {
            let sum = row.iter().fold(0.0f32, |s, &v| s + v * v);
            let r = pinned::norm::factor(f64::from(sum), n, eps);
            row.iter_mut()
                .zip(weight)
                .for_each(|(v, w)| *v = *v * r * w);
        }
        self.write(out, &values)
    }

    fn head_norm(
        &self,
        rows: usize,
        x: &mut Buffer,
        weight: &Vec<f32>,
        eps: f32,
    ) -> Result<(), OpError> {
        self.oracle.head_norm(rows, x, weight, eps)
    }

    fn add_rms_norm(
        &self,
        rows: usize,
        x: &mut Buffer,
        y: &Buffer,
        weight: &Vec<f32>,
        eps: f32,
    ) -> Result<(), OpError> {
        self.oracle.add_rms_norm(rows, x, y, weight, eps)
    }

    fn rope(&self, rows: usize, x: &mut Buffer, table: &RopeTable) -> Result<(), OpError> {
        match self.defect {
            Defect::RefusedRope => pinned::check_head("rope", 7),
            _ => self.oracle.rope(rows, x, table),
        }
    }

    fn kv_store(
        &self,
        kv: &mut Kv,
        first: usize,
        rows: usize,
        k: &Buffer,
        v: &Buffer,
    ) -> Result<(), OpError> {
        self.oracle.kv_store(kv, first, rows, k, v)
    }

    fn attention(
        &self,
        desc: &Attention,
        first: usize,
        rows: usize,
        q: &Buffer,
        kv: &Kv,
        out: &mut Buffer,
    ) -> Result<(), OpError> {
        if self.defect != Defect::ScaledQuery {
            return self.oracle.attention(desc, first, rows, q, kv, out);
        }
        let width = desc.heads * desc.head_dim;
        let mut values = vec![0.0; rows * width];
        self.read(q, &mut values)?;
        values.iter_mut().for_each(|v| *v *= desc.scale);
        let mut scaled = self.buffer(rows, width);
        self.write(&mut scaled, &values)?;
        let desc = Attention {
            scale: 1.0,
            ..*desc
        };
        self.oracle.attention(&desc, first, rows, &scaled, kv, out)
    }

    fn sigmoid_gate(&self, rows: usize, x: &mut Buffer, gate: &Buffer) -> Result<(), OpError> {
        self.oracle.sigmoid_gate(rows, x, gate)
    }

    fn silu_product(&self, rows: usize, gate: &mut Buffer, up: &Buffer) -> Result<(), OpError> {
        self.oracle.silu_product(rows, gate, up)
    }

    fn soft_cap(
        &self,
        rows: usize,
        x: &mut Buffer,
        scale: f32,
        cap: Option<f32>,
    ) -> Result<(), OpError> {
        self.oracle.soft_cap(rows, x, scale, cap)
    }
}

/// Runs a group on a backend with this defect. Returns the verdict and the
/// lines printed for failing cases.
fn judged(defect: Defect, group: &str, limit: u64) -> (Vec<String>, Vec<String>) {
    let profile = Profile::LlamaCppAvx2;
    let oracle = move |threads| Oracle { profile, threads };
    let mut reference = Ours::new(move |threads| Ok(oracle(threads)));
    let subject = Subject {
        level: "wrong".to_owned(),
        side: Box::new(Ours::new(move |threads| {
            let oracle = oracle(threads);
            Ok(Wrong { oracle, defect })
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

/// Returns whether the first printed line holds all of `parts` and two
/// different values.
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
    // Both kernels of the route fail; other routes of the same weights pass.
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
