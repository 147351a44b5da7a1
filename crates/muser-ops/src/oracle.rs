//! [`Oracle`]: the backend that is nothing but the oracle functions (the scalar
//! functions that define each operation's bits), one row at a time.
//!
//! Whole models run on the oracle, slowly, and every other backend is compared with it.
//! Its KV cache keeps every position, so that a backend whose ring overwrites a
//! position too early is found.

use crate::{
    Attention, Backend, BackendInfo, KvLayout, Lane, Matrix, MatrixInfo, OpError, Plan,
    RopeFrequencies, RopeSpec, Run, Span, Subset, Weight, attention, check_set, elementwise, embed,
    norm, project, rope,
};
use muser_quant::f16;
use std::borrow::Cow;
use std::ops::Range;

/// A slow [`Backend`] made of the strict lane's oracle functions: the scalar functions
/// that define the bits of muser's own arithmetic.
#[derive(Clone, Copy, Debug, Default)]
pub struct Oracle;

/// A buffer of activations of the oracle backend (the scalar functions that define each
/// operation's bits), `[rows, width]`.
#[derive(Clone, Debug)]
pub struct Buffer {
    pub(crate) width: usize,
    pub(crate) values: Vec<f32>,
}

impl Buffer {
    pub(crate) fn row(&self, r: usize) -> &[f32] {
        &self.values[r * self.width..][..self.width]
    }

    pub(crate) fn row_mut(&mut self, r: usize) -> &mut [f32] {
        &mut self.values[r * self.width..][..self.width]
    }

    pub(crate) fn need(&self, op: &'static str, rows: usize, width: usize) -> Result<(), OpError> {
        OpError::check(op, "width", width, self.width)?;
        OpError::check_room(op, "values in the buffer", rows * width, self.values.len())
    }
}

/// One layer of the KV cache of the oracle backend (the scalar functions that define each
/// operation's bits): the f16 bits of K and V at every position.
#[derive(Clone, Debug)]
pub(crate) struct Positions {
    layout: KvLayout,
    k: Vec<u16>,
    v: Vec<u16>,
}

impl Positions {
    fn width(&self) -> usize {
        self.layout.kv_heads * self.layout.head_dim
    }

    /// Returns the `d` values of K of one head at position `t`, as f16 bits.
    pub(crate) fn k(&self, head: usize, d: usize, t: usize) -> &[u16] {
        &self.k[t * self.width() + head * d..][..d]
    }

    /// Returns the `d` values of V of one head at position `t`, as f16 bits.
    pub(crate) fn v(&self, head: usize, d: usize, t: usize) -> &[u16] {
        &self.v[t * self.width() + head * d..][..d]
    }
}

/// The KV cache of one sequence in the oracle backend (the scalar functions that define
/// each operation's bits).
#[derive(Clone, Debug)]
pub struct Kv {
    layers: Vec<Positions>,
    /// One past the highest position that a batch has stored in this KV cache.
    end: usize,
}

/// A batch of the oracle backend (the scalar functions that define each operation's
/// bits): a plan (tokens, positions, rows whose outputs are read) and the KV caches of
/// its sequences.
#[derive(Debug)]
pub struct Batch<'kv> {
    plan: Plan,
    kv: Vec<&'kv mut Kv>,
}

impl Batch<'_> {
    /// Returns the batch's plan: its tokens, their positions and sequences, and the rows
    /// whose outputs are read.
    pub(crate) fn plan(&self) -> &Plan {
        &self.plan
    }

    /// Stores the batch's rows of K and V, rounded to f16, in layer `layer` of their
    /// sequences' KV caches.
    pub(crate) fn store(&mut self, layer: usize, k: &Buffer, v: &Buffer) -> Result<(), OpError> {
        for span in self.plan.spans(Subset::All) {
            let kv = &mut self.kv[span.sequence];
            let layers = kv.layers.len();
            let Some(positions) = kv.layers.get_mut(layer) else {
                return Err(no_layer(layer, layers));
            };
            let (width, end) = (positions.width(), span.first + span.rows);
            k.need("attention", span.at + span.rows, width)?;
            v.need("attention", span.at + span.rows, width)?;
            for (store, of) in [(&mut positions.k, k), (&mut positions.v, v)] {
                store.resize(store.len().max(end * width), 0);
                let src = &of.values[span.at * width..][..span.rows * width];
                for (to, &x) in store[span.first * width..].iter_mut().zip(src) {
                    *to = f16::from_f32(x);
                }
            }
        }
        Ok(())
    }

    /// Checks the operands of attention. Returns, for each sequence with rows in the
    /// query buffer, those rows (a span) and the attended layer of the sequence's KV
    /// cache.
    pub(crate) fn attended(
        &self,
        layer: usize,
        desc: &Attention,
        subset: Subset,
        q: &Buffer,
        out: &Buffer,
    ) -> Result<Vec<(Span, &Positions)>, OpError> {
        let rows = self.plan.count(subset);
        q.need("attention", rows, desc.heads * desc.head_dim)?;
        out.need("attention", rows, desc.heads * desc.head_dim)?;
        let spans = self.plan.spans(subset).filter(|span| span.rows > 0);
        spans
            .map(|span| {
                let kv = &self.kv[span.sequence];
                let positions = kv.layers.get(layer);
                let positions = positions.ok_or_else(|| no_layer(layer, kv.layers.len()))?;
                let (width, want) = (positions.width(), desc.kv_heads * desc.head_dim);
                OpError::check("attention", "KV width", width, want)?;
                Ok((span, positions))
            })
            .collect()
    }
}

/// Makes the error for a layer that the KV cache does not have.
fn no_layer(layer: usize, layers: usize) -> OpError {
    OpError::Shape {
        op: "attention",
        what: "layers of the cache",
        expected: layer + 1,
        found: layers,
    }
}

/// Makes the empty KV cache of a sequence, with these layers, for the oracle backend (the
/// scalar functions that define each operation's bits).
pub(crate) fn kv(layers: &[KvLayout]) -> Kv {
    let empty = |&layout: &KvLayout| Positions {
        layout,
        k: Vec::new(),
        v: Vec::new(),
    };
    Kv {
        layers: layers.iter().map(empty).collect(),
        end: 0,
    }
}

/// Makes a batch of the oracle backend (the scalar functions that define each operation's
/// bits), after checking that the KV caches have room for its rows.
pub(crate) fn batch<'kv>(plan: Plan, mut kv: Vec<&'kv mut Kv>) -> Result<Batch<'kv>, OpError> {
    OpError::check("batch", "caches", plan.runs().len(), kv.len())?;
    for (run, kv) in plan.runs().iter().zip(&kv) {
        let layouts: Vec<KvLayout> = kv.layers.iter().map(|l| l.layout).collect();
        check_room(run, &layouts, kv.end)?;
    }
    for (run, kv) in plan.runs().iter().zip(&mut kv) {
        kv.end = kv.end.max(run.first + run.rows);
    }
    Ok(Batch { plan, kv })
}

/// Checks that a KV cache of these layers has room for a run (one sequence's rows of a
/// batch). `end` is one past the highest position stored.
///
/// # Errors
/// The run ends beyond the context, begins after a gap, or has more rows than a ring
/// has room for.
pub fn check_room(run: &Run, layers: &[KvLayout], end: usize) -> Result<(), OpError> {
    let outside = |position, context| Err(OpError::Position { position, context });
    let last = run.first + run.rows;
    for layout in layers {
        if last > layout.context {
            return outside(last - 1, layout.context);
        }
        if run.first > end {
            return outside(run.first, end);
        }
        if layout.window.is_some() {
            let what = "rows that a ring has room for";
            OpError::check_room("batch", what, run.rows, layout.max_batch)?;
        }
    }
    Ok(())
}

/// Returns the first `rows` rows of a buffer of activations of the oracle backend (the
/// scalar functions that define each operation's bits).
pub(crate) fn read(buffer: &Buffer, rows: usize) -> Result<Cow<'_, [f32]>, OpError> {
    buffer.need("read", rows, buffer.width)?;
    Ok(Cow::Borrowed(&buffer.values[..rows * buffer.width]))
}

/// Checks a projection set (matrices that multiply the same input) and returns its
/// weights. Matrices with a bias are refused.
pub(crate) fn bind_set(set: Vec<Matrix>) -> Result<Vec<Weight>, OpError> {
    let set = set.into_iter().map(Matrix::without_bias);
    let set = set.collect::<Result<Vec<_>, _>>()?;
    check_set(&set)?;
    Ok(set)
}

/// Returns the matrices of a projection set (matrices that multiply the same input) whose
/// indices are in `which`.
///
/// # Errors
/// The set has no such matrices, or there are not as many outputs.
pub(crate) fn chosen(
    set: &[Weight],
    which: Range<usize>,
    outputs: usize,
) -> Result<&[Weight], OpError> {
    OpError::check_room("project", "matrices in the set", which.end, set.len())?;
    let set = set.get(which).unwrap_or_default();
    OpError::check("project", "outputs in the set", set.len(), outputs)?;
    Ok(set)
}

impl Backend for Oracle {
    type Buffer = Buffer;
    type Set = Vec<Weight>;
    type Table = Weight;
    type Vector = Vec<f32>;
    type Rope = RopeFrequencies;
    type Kv = Kv;
    type Batch<'kv> = Batch<'kv>;

    fn info(&self) -> BackendInfo {
        BackendInfo {
            name: "oracle",
            lane: Lane::Strict,
            level: "oracle".to_owned(),
            threads: 1,
        }
    }

    fn bind_set(&self, set: Vec<Matrix>) -> Result<Vec<Weight>, OpError> {
        bind_set(set)
    }

    fn bind_table(&self, table: Weight) -> Result<Weight, OpError> {
        Ok(table)
    }

    fn bind_vector(&self, values: Vec<f32>) -> Result<Vec<f32>, OpError> {
        Ok(values)
    }

    fn bind_rope(&self, rope: RopeSpec) -> Result<RopeFrequencies, OpError> {
        Ok(RopeFrequencies::new(Lane::Strict, rope))
    }

    fn matrices(&self, set: &Vec<Weight>) -> Vec<MatrixInfo> {
        set.iter().map(Weight::info).collect()
    }

    fn table(&self, table: &Weight) -> MatrixInfo {
        table.info()
    }

    fn vector_len(&self, vector: &Vec<f32>) -> usize {
        vector.len()
    }

    fn width(&self, buffer: &Buffer) -> usize {
        buffer.width
    }

    fn plan<'a>(&self, batch: &'a Batch<'_>) -> &'a Plan {
        &batch.plan
    }

    fn buffer(&self, rows: usize, width: usize) -> Result<Buffer, OpError> {
        Ok(Buffer {
            width,
            values: vec![0.0; rows * width],
        })
    }

    fn write(&self, buffer: &mut Buffer, values: &[f32]) -> Result<(), OpError> {
        let room = buffer.values.len();
        OpError::check_room("write", "values in the buffer", values.len(), room)?;
        buffer.values[..values.len()].copy_from_slice(values);
        Ok(())
    }

    fn read<'a>(&self, buffer: &'a Buffer, rows: usize) -> Result<Cow<'a, [f32]>, OpError> {
        read(buffer, rows)
    }

    fn kv(&self, layers: &[KvLayout]) -> Kv {
        kv(layers)
    }

    fn batch<'kv>(&self, plan: Plan, kv: Vec<&'kv mut Kv>) -> Result<Batch<'kv>, OpError> {
        batch(plan, kv)
    }

    fn copy_rows(
        &self,
        rows: usize,
        src: &Buffer,
        from: usize,
        dst: &mut Buffer,
        to: usize,
    ) -> Result<(), OpError> {
        src.need("copy_rows", from + rows, dst.width)?;
        dst.need("copy_rows", to + rows, src.width)?;
        let (n, width) = (rows * src.width, src.width);
        dst.values[to * width..][..n].copy_from_slice(&src.values[from * width..][..n]);
        Ok(())
    }

    fn gather(&self, batch: &Batch<'_>, src: &Buffer, dst: &mut Buffer) -> Result<(), OpError> {
        src.need("gather", batch.plan.count(Subset::All), dst.width)?;
        dst.need("gather", batch.plan.count(Subset::Kept), src.width)?;
        for (to, &from) in batch.plan.kept().iter().enumerate() {
            dst.row_mut(to).copy_from_slice(src.row(from));
        }
        Ok(())
    }

    fn embed(&self, batch: &Batch<'_>, table: &Weight, out: &mut Buffer) -> Result<(), OpError> {
        let tokens = batch.plan.tokens();
        out.need("embed", tokens.len(), table.cols())?;
        for (r, &t) in tokens.iter().enumerate() {
            embed::embed(table, t, out.row_mut(r))?;
        }
        Ok(())
    }

    fn project(
        &self,
        rows: usize,
        set: &Vec<Weight>,
        which: Range<usize>,
        x: &Buffer,
        out: &mut [&mut Buffer],
    ) -> Result<(), OpError> {
        for (w, o) in chosen(set, which, out.len())?.iter().zip(out) {
            x.need("project", rows, w.cols())?;
            o.need("project", rows, w.rows())?;
            for r in 0..rows {
                project::project(w, x.row(r), o.row_mut(r));
            }
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
        let width = weight.map_or(x.width, Vec::len);
        x.need("rms_norm", rows, width)?;
        out.need("rms_norm", rows, width)?;
        for r in 0..rows {
            norm::rms_norm(x.row(r), weight.map(Vec::as_slice), eps, out.row_mut(r));
        }
        Ok(())
    }

    fn head_norm(
        &self,
        rows: usize,
        x: &mut Buffer,
        weight: &Vec<f32>,
        eps: f32,
    ) -> Result<(), OpError> {
        OpError::check(
            "head_norm",
            "values past whole heads",
            0,
            x.width % weight.len().max(1),
        )?;
        x.need("head_norm", rows, x.width)?;
        for r in 0..rows {
            norm::head_norm(x.row_mut(r), weight, eps);
        }
        Ok(())
    }

    fn add_rms_norm(
        &self,
        rows: usize,
        x: &mut Buffer,
        y: &Buffer,
        weight: &Vec<f32>,
        eps: f32,
    ) -> Result<(), OpError> {
        x.need("add_rms_norm", rows, weight.len())?;
        y.need("add_rms_norm", rows, weight.len())?;
        for r in 0..rows {
            norm::add_rms_norm(x.row_mut(r), y.row(r), weight, eps);
        }
        Ok(())
    }

    fn add(&self, rows: usize, x: &mut Buffer, y: &Buffer) -> Result<(), OpError> {
        x.need("add", rows, y.width)?;
        y.need("add", rows, x.width)?;
        let n = rows * x.width;
        elementwise::add(&mut x.values[..n], &y.values[..n]);
        Ok(())
    }

    fn rope(
        &self,
        batch: &Batch<'_>,
        subset: Subset,
        rope: &RopeFrequencies,
        x: &mut Buffer,
    ) -> Result<(), OpError> {
        let head = (2 * rope.pairs()).max(1);
        OpError::check("rope", "values past whole heads", 0, x.width % head)?;
        let rows = batch.plan.count(subset);
        x.need("rope", rows, x.width)?;
        for r in 0..rows {
            let table = rope.table(batch.plan.position(subset, r), 1);
            rope::rope(x.row_mut(r), &table, 0);
        }
        Ok(())
    }

    fn attention(
        &self,
        batch: &mut Batch<'_>,
        layer: usize,
        desc: &Attention,
        subset: Subset,
        q: &Buffer,
        k: &Buffer,
        v: &Buffer,
        out: &mut Buffer,
    ) -> Result<(), OpError> {
        batch.store(layer, k, v)?;
        let d = desc.head_dim;
        let group = desc.heads / desc.kv_heads.max(1);
        for (span, kv) in batch.attended(layer, desc, subset, q, out)? {
            for r in 0..span.rows {
                for h in 0..desc.heads {
                    let head = h * d..(h + 1) * d;
                    attention::attend(
                        desc,
                        span.first + r,
                        &q.row(span.at + r)[head.clone()],
                        |t| kv.k(h / group, d, t),
                        |t| kv.v(h / group, d, t),
                        &mut out.row_mut(span.at + r)[head],
                    );
                }
            }
        }
        Ok(())
    }

    fn sigmoid_gate(&self, rows: usize, x: &mut Buffer, gate: &Buffer) -> Result<(), OpError> {
        x.need("sigmoid_gate", rows, gate.width)?;
        gate.need("sigmoid_gate", rows, x.width)?;
        let n = rows * x.width;
        elementwise::sigmoid_gate(&mut x.values[..n], &gate.values[..n]);
        Ok(())
    }

    fn silu_product(&self, rows: usize, gate: &mut Buffer, up: &Buffer) -> Result<(), OpError> {
        gate.need("silu_product", rows, up.width)?;
        up.need("silu_product", rows, gate.width)?;
        let n = rows * up.width;
        elementwise::silu_product(&mut gate.values[..n], &up.values[..n]);
        Ok(())
    }

    fn soft_cap(
        &self,
        rows: usize,
        x: &mut Buffer,
        scale: f32,
        cap: Option<f32>,
    ) -> Result<(), OpError> {
        x.need("soft_cap", rows, x.width)?;
        let n = rows * x.width;
        elementwise::soft_cap(&mut x.values[..n], scale, cap);
        Ok(())
    }
}
