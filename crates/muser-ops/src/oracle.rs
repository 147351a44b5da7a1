//! The backend that is nothing but the oracle functions, one row at a time.
//!
//! It is the definition made runnable: whole models run on it, slowly, and
//! every other backend is compared with it. Its cache keeps every position, so
//! a ring that forgets too early shows.

use crate::{
    Attention, Backend, BackendInfo, KvLayout, Lane, OpError, RopeTable, Weight, attention,
    elementwise, embed, norm, project, rope,
};
use muser_quant::f16;

/// The scalar oracle as a [`Backend`].
#[derive(Clone, Copy, Debug, Default)]
pub struct Oracle;

/// Activations of the oracle, `[rows, width]`.
#[derive(Clone, Debug)]
pub struct Rows {
    pub(crate) width: usize,
    pub(crate) values: Vec<f32>,
}

impl Rows {
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

/// The oracle's cache: f16 bits of every position.
#[derive(Clone, Debug)]
pub struct Positions {
    pub(crate) layout: KvLayout,
    pub(crate) k: Vec<u16>,
    pub(crate) v: Vec<u16>,
}

impl Positions {
    pub(crate) fn width(&self) -> usize {
        self.layout.kv_heads * self.layout.head_dim
    }
}

impl Backend for Oracle {
    type Buffer = Rows;
    type Weight = Weight;
    type Vector = Vec<f32>;
    type Kv = Positions;

    fn info(&self) -> BackendInfo {
        BackendInfo {
            name: "oracle",
            lane: Lane::Strict,
            level: "oracle".to_owned(),
            threads: 1,
        }
    }

    fn bind(&self, weight: Weight) -> Result<Weight, OpError> {
        Ok(weight)
    }

    fn bind_vector(&self, values: Vec<f32>) -> Vec<f32> {
        values
    }

    fn buffer(&self, rows: usize, width: usize) -> Rows {
        Rows {
            width,
            values: vec![0.0; rows * width],
        }
    }

    fn write(&self, buffer: &mut Rows, values: &[f32]) -> Result<(), OpError> {
        OpError::check_room(
            "write",
            "values in the buffer",
            values.len(),
            buffer.values.len(),
        )?;
        buffer.values[..values.len()].copy_from_slice(values);
        Ok(())
    }

    fn read(&self, buffer: &Rows, out: &mut [f32]) -> Result<(), OpError> {
        OpError::check_room(
            "read",
            "values in the buffer",
            out.len(),
            buffer.values.len(),
        )?;
        out.copy_from_slice(&buffer.values[..out.len()]);
        Ok(())
    }

    fn copy_rows(
        &self,
        rows: usize,
        src: &Rows,
        from: usize,
        dst: &mut Rows,
        to: usize,
    ) -> Result<(), OpError> {
        src.need("copy_rows", from + rows, dst.width)?;
        dst.need("copy_rows", to + rows, src.width)?;
        let (n, width) = (rows * src.width, src.width);
        dst.values[to * width..][..n].copy_from_slice(&src.values[from * width..][..n]);
        Ok(())
    }

    fn kv(&self, layout: KvLayout) -> Positions {
        Positions {
            layout,
            k: Vec::new(),
            v: Vec::new(),
        }
    }

    fn embed(&self, table: &Weight, tokens: &[u32], out: &mut Rows) -> Result<(), OpError> {
        out.need("embed", tokens.len(), table.cols())?;
        for (r, &t) in tokens.iter().enumerate() {
            embed::embed(table, t, out.row_mut(r))?;
        }
        Ok(())
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
            for r in 0..rows {
                project::project(w, x.row(r), o.row_mut(r));
            }
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
        let head = (2 * table.pairs()).max(1);
        OpError::check("rope", "values past whole heads", 0, x.width % head)?;
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
        let width = kv.width();
        k.need("kv_store", rows, width)?;
        v.need("kv_store", rows, width)?;
        let end = first + rows;
        if end > kv.layout.context {
            return Err(OpError::Position {
                position: end - 1,
                context: kv.layout.context,
            });
        }
        for (store, rows_of) in [(&mut kv.k, k), (&mut kv.v, v)] {
            store.resize(store.len().max(end * width), 0);
            let src = &rows_of.values[..rows * width];
            for (to, &x) in store[first * width..].iter_mut().zip(src) {
                *to = f16::from_f32(x);
            }
        }
        Ok(())
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
        let (d, width) = (desc.head_dim, kv.width());
        q.need("attention", rows, desc.heads * d)?;
        out.need("attention", rows, desc.heads * d)?;
        OpError::check("attention", "KV width", width, desc.kv_heads * d)?;
        let stored = kv.k.len() / width.max(1);
        if first + rows > stored {
            return Err(OpError::Position {
                position: first + rows - 1,
                context: stored,
            });
        }
        let group = desc.heads / desc.kv_heads.max(1);
        for r in 0..rows {
            for h in 0..desc.heads {
                let at = |t: usize| t * width + h / group * d;
                let head = h * d..(h + 1) * d;
                attention::attend(
                    desc,
                    first + r,
                    &q.row(r)[head.clone()],
                    |t| &kv.k[at(t)..][..d],
                    |t| &kv.v[at(t)..][..d],
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
        let n = rows * up.width;
        elementwise::silu_product(&mut gate.values[..n], &up.values[..n]);
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
