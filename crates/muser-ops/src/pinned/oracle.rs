//! The pinned lane as a backend of scalar functions.

use super::{attention, elementwise, norm, project, rope};
use crate::oracle::{self, Positions, Rows};
use crate::{Attention, Backend, BackendInfo, KvLayout, Lane, OpError, Profile, RopeTable, Weight};

/// The scalar functions of the pinned lane as a [`Backend`], slow and obvious.
#[derive(Clone, Copy, Debug)]
pub struct Oracle {
    /// The profile.
    pub profile: Profile,
    /// The threads that llama.cpp would compute with: they cut the slots of a
    /// single query from 512 slots on.
    pub threads: usize,
}

/// What both lanes do alike.
const SHARED: oracle::Oracle = oracle::Oracle;

impl Backend for Oracle {
    type Buffer = Rows;
    type Weight = Weight;
    type Vector = Vec<f32>;
    type Kv = Positions;

    fn info(&self) -> BackendInfo {
        BackendInfo {
            name: "oracle",
            lane: Lane::Pinned(self.profile),
            level: "oracle".to_owned(),
            threads: self.threads,
        }
    }

    fn bind(&self, weight: Weight) -> Result<Weight, OpError> {
        if project::covers(weight.dtype()) {
            return Ok(weight);
        }
        Err(OpError::Format {
            name: weight.name().to_owned(),
            dtype: weight.dtype(),
            lane: Lane::Pinned(self.profile),
        })
    }

    fn bind_vector(&self, values: Vec<f32>) -> Vec<f32> {
        values
    }

    fn buffer(&self, rows: usize, width: usize) -> Rows {
        SHARED.buffer(rows, width)
    }

    fn write(&self, buffer: &mut Rows, values: &[f32]) -> Result<(), OpError> {
        SHARED.write(buffer, values)
    }

    fn read(&self, buffer: &Rows, out: &mut [f32]) -> Result<(), OpError> {
        SHARED.read(buffer, out)
    }

    fn copy_rows(
        &self,
        rows: usize,
        src: &Rows,
        from: usize,
        dst: &mut Rows,
        to: usize,
    ) -> Result<(), OpError> {
        SHARED.copy_rows(rows, src, from, dst, to)
    }

    fn kv(&self, layout: KvLayout) -> Positions {
        SHARED.kv(layout)
    }

    fn embed(&self, table: &Weight, tokens: &[u32], out: &mut Rows) -> Result<(), OpError> {
        SHARED.embed(table, tokens, out)
    }

    fn project(
        &self,
        rows: usize,
        set: &[&Weight],
        x: &Rows,
        out: &mut [&mut Rows],
    ) -> Result<(), OpError> {
        OpError::check("project", "outputs in the set", set.len(), out.len())?;
        for (w, o) in set.iter().zip(out) {
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
        x: &Rows,
        weight: Option<&Vec<f32>>,
        eps: f32,
        out: &mut Rows,
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
        x: &mut Rows,
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
        x: &mut Rows,
        y: &Rows,
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

    fn rope(&self, rows: usize, x: &mut Rows, table: &RopeTable) -> Result<(), OpError> {
        super::check_head("rope", 2 * table.pairs())?;
        let rest = x.width % (2 * table.pairs()).max(1);
        OpError::check("rope", "values past whole heads", 0, rest)?;
        OpError::check_room("rope", "positions in the table", rows, table.rows())?;
        x.need("rope", rows, x.width)?;
        for r in 0..rows {
            rope::rope(x.row_mut(r), table, r);
        }
        Ok(())
    }

    fn kv_store(
        &self,
        kv: &mut Positions,
        first: usize,
        rows: usize,
        k: &Rows,
        v: &Rows,
    ) -> Result<(), OpError> {
        SHARED.kv_store(kv, first, rows, k, v)
    }

    fn attention(
        &self,
        desc: &Attention,
        first: usize,
        rows: usize,
        q: &Rows,
        kv: &Positions,
        out: &mut Rows,
    ) -> Result<(), OpError> {
        let (d, width, end) = (desc.head_dim, kv.width(), first + rows);
        super::check_head("attention", d)?;
        q.need("attention", rows, desc.heads * d)?;
        out.need("attention", rows, desc.heads * d)?;
        OpError::check("attention", "KV width", width, desc.kv_heads * d)?;
        let stored = kv.k.len() / width.max(1);
        if end > stored {
            return Err(OpError::Position {
                position: end - 1,
                context: stored,
            });
        }
        let group = desc.heads / desc.kv_heads.max(1);
        let at = |head: usize, t: usize| t * width + head / group * d;
        let form = attention::form(rows, end, self.threads);
        if form == attention::Form::Tiled {
            for (h, tile) in attention::tiles(desc.heads, rows, self.threads) {
                let head = h * d..(h + 1) * d;
                let q: Vec<&[f32]> = tile.clone().map(|r| &q.row(r)[head.clone()]).collect();
                let n = desc.heads * d;
                let rows = out.values[tile.start * n..tile.end * n].chunks_exact_mut(n);
                let mut rows: Vec<&mut [f32]> = rows.map(|o| &mut o[head.clone()]).collect();
                attention::attend_tile(
                    self.profile,
                    desc,
                    first + tile.start..first + tile.end,
                    end,
                    &q,
                    |t| &kv.k[at(h, t)..][..d],
                    |t| &kv.v[at(h, t)..][..d],
                    &mut rows,
                );
            }
            return Ok(());
        }
        for r in 0..rows {
            for h in 0..desc.heads {
                let head = h * d..(h + 1) * d;
                attention::attend(
                    self.profile,
                    desc,
                    form,
                    first + r,
                    &q.row(r)[head.clone()],
                    |t| &kv.k[at(h, t)..][..d],
                    |t| &kv.v[at(h, t)..][..d],
                    &mut out.row_mut(r)[head],
                );
            }
        }
        Ok(())
    }

    fn sigmoid_gate(&self, rows: usize, x: &mut Rows, gate: &Rows) -> Result<(), OpError> {
        x.need("sigmoid_gate", rows, gate.width)?;
        gate.need("sigmoid_gate", rows, x.width)?;
        let n = rows * x.width;
        elementwise::sigmoid_gate(&mut x.values[..n], &gate.values[..n]);
        Ok(())
    }

    fn silu_product(&self, rows: usize, gate: &mut Rows, up: &Rows) -> Result<(), OpError> {
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
        x: &mut Rows,
        scale: f32,
        cap: Option<f32>,
    ) -> Result<(), OpError> {
        x.need("soft_cap", rows, x.width)?;
        let n = rows * x.width;
        elementwise::soft_cap(&mut x.values[..n], scale, cap);
        Ok(())
    }
}
