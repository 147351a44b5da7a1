//! [`Oracle`]: the scalar functions of the pinned lane (llama.cpp's arithmetic) as a
//! backend.

use super::{attention, elementwise, norm, project, rope};
use crate::oracle::{self, Batch, Buffer, Kv};
use crate::{
    Attention, Backend, BackendInfo, KvLayout, Lane, Matrix, MatrixInfo, OpError, Plan, Profile,
    RopeFrequencies, RopeSpec, Subset, Weight,
};
use std::borrow::Cow;
use std::ops::Range;

/// A slow [`Backend`] made of the scalar functions of the pinned lane (llama.cpp's
/// arithmetic).
#[derive(Clone, Copy, Debug)]
pub struct Oracle {
    /// The reference profile (the build of llama.cpp) whose bits the backend computes.
    pub profile: Profile,
    /// The number of threads that llama.cpp would use. From 512 slots (places of
    /// positions in the KV cache) on, it cuts the slots of a single query into as many
    /// parts.
    pub threads: usize,
}

/// The backend of scalar functions of the strict lane (muser's own arithmetic), for the
/// operations that are the same in the pinned lane (llama.cpp's).
const SHARED: oracle::Oracle = oracle::Oracle;

impl Oracle {
    /// Refuses a weight whose format the pinned lane (llama.cpp's arithmetic) does not
    /// cover.
    fn check_covered(&self, weight: &Weight) -> Result<(), OpError> {
        if project::covers(weight.dtype()) {
            return Ok(());
        }
        Err(OpError::Format {
            name: weight.name().to_owned(),
            dtype: weight.dtype(),
            lane: Lane::Pinned(self.profile),
        })
    }
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
            lane: Lane::Pinned(self.profile),
            level: "oracle".to_owned(),
            threads: self.threads,
        }
    }

    fn bind_set(&self, set: Vec<Matrix>) -> Result<Vec<Weight>, OpError> {
        let set = SHARED.bind_set(set)?;
        set.iter().try_for_each(|w| self.check_covered(w))?;
        Ok(set)
    }

    fn bind_table(&self, table: Weight) -> Result<Weight, OpError> {
        self.check_covered(&table)?;
        Ok(table)
    }

    fn bind_vector(&self, values: Vec<f32>) -> Result<Vec<f32>, OpError> {
        SHARED.bind_vector(values)
    }

    fn bind_rope(&self, rope: RopeSpec) -> Result<RopeFrequencies, OpError> {
        super::check_head("rope", rope.head_dim)?;
        Ok(RopeFrequencies::new(Lane::Pinned(self.profile), rope))
    }

    fn matrices(&self, set: &Vec<Weight>) -> Vec<MatrixInfo> {
        SHARED.matrices(set)
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
        batch.plan()
    }

    fn buffer(&self, rows: usize, width: usize) -> Result<Buffer, OpError> {
        SHARED.buffer(rows, width)
    }

    fn write(&self, buffer: &mut Buffer, values: &[f32]) -> Result<(), OpError> {
        SHARED.write(buffer, values)
    }

    fn read<'a>(&self, buffer: &'a Buffer, rows: usize) -> Result<Cow<'a, [f32]>, OpError> {
        oracle::read(buffer, rows)
    }

    fn kv(&self, layers: &[KvLayout]) -> Kv {
        SHARED.kv(layers)
    }

    fn batch<'kv>(&self, plan: Plan, kv: Vec<&'kv mut Kv>) -> Result<Batch<'kv>, OpError> {
        oracle::batch(plan, kv)
    }

    fn copy_rows(
        &self,
        rows: usize,
        src: &Buffer,
        from: usize,
        dst: &mut Buffer,
        to: usize,
    ) -> Result<(), OpError> {
        SHARED.copy_rows(rows, src, from, dst, to)
    }

    fn gather(&self, batch: &Batch<'_>, src: &Buffer, dst: &mut Buffer) -> Result<(), OpError> {
        SHARED.gather(batch, src, dst)
    }

    fn embed(&self, batch: &Batch<'_>, table: &Weight, out: &mut Buffer) -> Result<(), OpError> {
        SHARED.embed(batch, table, out)
    }

    fn project(
        &self,
        rows: usize,
        set: &Vec<Weight>,
        which: Range<usize>,
        x: &Buffer,
        out: &mut [&mut Buffer],
    ) -> Result<(), OpError> {
        for (w, o) in oracle::chosen(set, which, out.len())?.iter().zip(out) {
            x.need("project", rows, w.cols())?;
            o.need("project", rows, w.rows())?;
            let x = &x.values[..rows * w.cols()];
            project::project(self.profile, w, x, &mut o.values[..rows * w.rows()]);
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
        let rest = x.width % weight.len().max(1);
        OpError::check("head_norm", "values past whole heads", 0, rest)?;
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
        SHARED.add(rows, x, y)
    }

    fn rope(
        &self,
        batch: &Batch<'_>,
        subset: Subset,
        rope: &RopeFrequencies,
        x: &mut Buffer,
    ) -> Result<(), OpError> {
        let rest = x.width % (2 * rope.pairs()).max(1);
        OpError::check("rope", "values past whole heads", 0, rest)?;
        let plan = batch.plan();
        x.need("rope", plan.count(subset), x.width)?;
        for r in 0..plan.count(subset) {
            let table = rope.table(plan.position(subset, r), 1);
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
        super::check_head("attention", desc.head_dim)?;
        batch.store(layer, k, v)?;
        let (d, width) = (desc.head_dim, desc.heads * desc.head_dim);
        let group = desc.heads / desc.kv_heads.max(1);
        for (span, kv) in batch.attended(layer, desc, subset, q, out)? {
            let end = span.first + span.rows;
            let form = attention::form(span.rows, end, self.threads);
            let q = |r: usize, h: usize| &q.row(span.at + r)[h * d..(h + 1) * d];
            if form == attention::Form::Tiled {
                for (h, tile) in attention::tiles(desc.heads, span.rows, self.threads) {
                    let queries: Vec<&[f32]> = tile.clone().map(|r| q(r, h)).collect();
                    let at = (span.at + tile.start) * width..(span.at + tile.end) * width;
                    let rows = out.values[at].chunks_exact_mut(width);
                    let mut rows: Vec<&mut [f32]> =
                        rows.map(|o| &mut o[h * d..(h + 1) * d]).collect();
                    attention::attend_tile(
                        self.profile,
                        desc,
                        span.first + tile.start..span.first + tile.end,
                        end,
                        &queries,
                        |t| kv.k(h / group, d, t),
                        |t| kv.v(h / group, d, t),
                        &mut rows,
                    );
                }
                continue;
            }
            for r in 0..span.rows {
                for h in 0..desc.heads {
                    attention::attend(
                        self.profile,
                        desc,
                        form,
                        span.first + r,
                        q(r, h),
                        |t| kv.k(h / group, d, t),
                        |t| kv.v(h / group, d, t),
                        &mut out.row_mut(span.at + r)[h * d..(h + 1) * d],
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
        for r in 0..rows {
            elementwise::silu_product(self.profile, gate.row_mut(r), up.row(r));
        }
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
