//! The oracle with one fault: what the suite must catch.

use muser_ops::oracle::{Oracle, Positions, Rows};
use muser_ops::project::Operand;
use muser_ops::{
    Attention, Backend, BackendInfo, KvLayout, OpError, RopeTable, Weight, norm, project, reduce,
};
use muser_quant::q4_k::BlockQ4K;
use muser_quant::q5_k::BlockQ5K;
use muser_quant::q8_k::BlockQ8K;
use muser_quant::{Arithmetic, DType, Sums, Superblock as _};
use std::cell::RefCell;

/// The one thing that is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    LastRowUnwritten,
    /// In the last finite value of the last row.
    OneUlp,
    GuardRow,
    /// 64 values past the end: a store as wide as two tiles.
    LastGuard,
    /// One ulp, in batches of nine only.
    NineRows,
    InputChanged,
    NanForNumber,
    Refuses,
    /// Multiply, round, add in the chains over superblocks.
    Unfused,
    /// Activation scales that are subnormal become zero.
    FlushedScale,
    /// A block that is not finite counts as zeros.
    NonFiniteIsZero,
    /// Products of groups added in order, and not by halves.
    FoldedInOrder,
    /// 128 lanes in the float reduction.
    OtherLanes,
    SwappedOutputs,
    LastOfSetUnwritten,
    IgnoresWindow,
    ShiftedWindow,
    /// Chunks begin at the first visible position, not at multiples of 64.
    ChunksFromFirst,
    /// Beyond f16 is its largest value, not infinity.
    SaturatedHalf,
    OneHeadGroup,
    /// A ring of one chunk less.
    ShortRing,
    /// A position stored a second time keeps its first values.
    StaleAfterRewind,
    FlushToZero,
    LostNegativeZero,
    CapWithoutScale,
    TableRowZero,
    CopiesFromZero,
    CopiesToZero,
}

pub(super) struct Broken(pub(super) Fault);

/// A buffer that an operation can change even where it may only read.
pub(super) struct Buf {
    width: usize,
    len: usize,
    rows: RefCell<Rows>,
}

impl Buf {
    fn all(&self) -> Vec<f32> {
        let mut x = vec![0.0; self.len];
        Oracle.read(&self.rows.borrow(), &mut x).unwrap();
        x
    }

    fn set(&self, x: &[f32]) {
        Oracle.write(&mut self.rows.borrow_mut(), x).unwrap();
    }
}

/// The oracle's cache and the end of what is stored.
#[derive(Clone)]
pub(super) struct Kv {
    inner: Positions,
    layout: KvLayout,
    k: Vec<f32>,
    v: Vec<f32>,
}

/// This value with its last bit flipped.
fn ulp(x: f32) -> f32 {
    f32::from_bits(x.to_bits() ^ 1)
}

impl Broken {
    /// Runs the operation on the oracle, then puts the fault into its outputs
    /// and inputs.
    fn with(
        &self,
        rows: usize,
        outs: &[&Buf],
        inputs: &[&Buf],
        op: impl FnOnce() -> Result<(), OpError>,
    ) -> Result<(), OpError> {
        if self.0 == Fault::Refuses && rows == 1 {
            return Err(OpError::Unsupported {
                op: "any",
                what: "row count",
                found: rows,
                expected: "two or more",
            });
        }
        let before: Vec<_> = outs.iter().map(|o| o.all()).collect();
        op()?;
        for (out, before) in outs.iter().zip(&before) {
            let mut x = out.all();
            self.spoil(rows * out.width, out.width, before, &mut x);
            out.set(&x);
        }
        if let (Fault::LastOfSetUnwritten, [.., out]) = (self.0, outs) {
            out.set(&before[before.len() - 1]);
        }
        if let (Fault::InputChanged, Some(input)) = (self.0, inputs.first()) {
            let mut x = input.all();
            x[0] = ulp(x[0]);
            input.set(&x);
        }
        Ok(())
    }

    /// Puts the fault into the first `n` values, or behind them.
    fn spoil(&self, n: usize, width: usize, before: &[f32], x: &mut [f32]) {
        let last_finite = x[..n].iter().rposition(|v| v.is_finite());
        let replace = |x: &mut [f32], with: fn(f32) -> f32| {
            for v in x {
                *v = with(*v);
            }
        };
        match self.0 {
            Fault::LastRowUnwritten => x[n - width..n].copy_from_slice(&before[n - width..n]),
            Fault::GuardRow => x[n] = 0.0,
            Fault::LastGuard => x[n + 63] = 0.0,
            Fault::NineRows if n == 9 * width => replace(&mut x[..n], ulp),
            Fault::NanForNumber => x[0] = f32::NAN,
            Fault::OneUlp => {
                if let Some(i) = last_finite {
                    x[i] = ulp(x[i]);
                }
            }
            Fault::FlushToZero => {
                replace(&mut x[..n], |v| if v.is_subnormal() { 0.0 } else { v });
            }
            Fault::LostNegativeZero => {
                replace(&mut x[..n], |v| if v == 0.0 { 0.0 } else { v });
            }
            _ => {}
        }
    }

    /// The dot product with this fault, if it is one of a dot product.
    fn dot(&self, w: &Weight, row: &[u8], x: &[f32]) -> Option<f32> {
        let dtype = w.dtype();
        let mut y = Operand::new(dtype.arithmetic(), x);
        let unfused_with = |y: &Operand, dot: fn(&[u8], &BlockQ8K) -> Sums| match y {
            Operand::Superblocks(y) => Some(unfused(dtype, row, y, dot)),
            Operand::Groups(_) | Operand::Floats(_) => None,
        };
        match (self.0, dtype.arithmetic()) {
            (Fault::Unfused, Arithmetic::Superblocks) if dtype == DType::Q4K => {
                unfused_with(&y, BlockQ4K::sums)
            }
            (Fault::Unfused, Arithmetic::Superblocks) if dtype == DType::Q5K => {
                unfused_with(&y, BlockQ5K::sums)
            }
            (
                Fault::FlushedScale | Fault::NonFiniteIsZero,
                Arithmetic::Superblocks | Arithmetic::Groups,
            ) => {
                let scales: Vec<&mut f32> = match &mut y {
                    Operand::Superblocks(y) => y.iter_mut().map(|b| &mut b.d).collect(),
                    Operand::Groups(y) => y.iter_mut().map(|b| &mut b.d).collect(),
                    Operand::Floats(_) => Vec::new(),
                };
                for d in scales {
                    let bad = match self.0 {
                        Fault::FlushedScale => d.is_subnormal(),
                        _ => d.is_nan(),
                    };
                    if bad {
                        *d = 0.0;
                    }
                }
                Some(project::dot(dtype, row, &y))
            }
            (Fault::FoldedInOrder, Arithmetic::Groups) => Some(folded_in_order(dtype, row, &y)),
            (Fault::OtherLanes, Arithmetic::Floats) => {
                let mut w = vec![0.0; x.len()];
                dtype.decode_row(row, &mut w).expect("whole rows");
                Some(lanes_128(&w, x))
            }
            _ => None,
        }
    }
}

/// The products of groups, a group at a time: those of rows of one group are
/// right.
fn folded_in_order(dtype: DType, row: &[u8], y: &Operand) -> f32 {
    let Operand::Groups(y) = y else {
        return f32::NAN;
    };
    let groups = row.chunks(dtype.block_bytes()).zip(y);
    groups.fold(0.0, |acc, (block, y)| {
        acc + project::dot(dtype, block, &Operand::Groups(vec![*y]))
    })
}

fn unfused(dtype: DType, row: &[u8], y: &[BlockQ8K], dot: fn(&[u8], &BlockQ8K) -> Sums) -> f32 {
    let (mut acc, mut accm) = (0.0f32, 0.0f32);
    for (b, a) in row.chunks_exact(dtype.block_bytes()).zip(y) {
        let s = dot(b, a);
        acc += s.sum as f32 * (s.d * a.d);
        accm += s.min as f32 * (s.dmin * a.d);
    }
    acc - accm
}

fn lanes_128(x: &[f32], y: &[f32]) -> f32 {
    let mut p = [0.0f32; reduce::LANES];
    for (i, (&x, &y)) in x.iter().zip(y).enumerate() {
        p[i % 128] = x.mul_add(y, p[i % 128]);
    }
    reduce::halve(&mut p)
}

impl Backend for Broken {
    type Buffer = Buf;
    type Weight = Weight;
    type Vector = Vec<f32>;
    type Kv = Kv;

    fn info(&self) -> BackendInfo {
        BackendInfo {
            name: "broken",
            ..Oracle.info()
        }
    }

    fn bind(&self, weight: Weight) -> Result<Weight, OpError> {
        Oracle.bind(weight)
    }

    fn bind_vector(&self, values: Vec<f32>) -> Vec<f32> {
        values
    }

    fn buffer(&self, rows: usize, width: usize) -> Buf {
        Buf {
            width,
            len: rows * width,
            rows: RefCell::new(Oracle.buffer(rows, width)),
        }
    }

    fn write(&self, buffer: &mut Buf, values: &[f32]) -> Result<(), OpError> {
        Oracle.write(buffer.rows.get_mut(), values)
    }

    fn read(&self, buffer: &Buf, out: &mut [f32]) -> Result<(), OpError> {
        Oracle.read(&buffer.rows.borrow(), out)
    }

    fn copy_rows(
        &self,
        rows: usize,
        src: &Buf,
        from: usize,
        dst: &mut Buf,
        to: usize,
    ) -> Result<(), OpError> {
        let (from, to) = match self.0 {
            Fault::CopiesFromZero => (0, to),
            Fault::CopiesToZero => (from, 0),
            _ => (from, to),
        };
        self.with(to + rows, &[dst], &[src], || {
            let dst = &mut dst.rows.borrow_mut();
            Oracle.copy_rows(rows, &src.rows.borrow(), from, dst, to)
        })
    }

    fn kv(&self, layout: KvLayout) -> Kv {
        Kv {
            inner: Oracle.kv(layout),
            layout,
            k: Vec::new(),
            v: Vec::new(),
        }
    }

    fn embed(&self, table: &Weight, tokens: &[u32], out: &mut Buf) -> Result<(), OpError> {
        self.with(tokens.len(), &[out], &[], || {
            Oracle.embed(table, tokens, &mut out.rows.borrow_mut())
        })
    }

    fn project(
        &self,
        rows: usize,
        set: &[&Weight],
        x: &Buf,
        out: &mut [&mut Buf],
    ) -> Result<(), OpError> {
        let outs: Vec<&Buf> = out.iter().map(|o| &**o).collect();
        self.with(rows, &outs, &[x], || {
            let mut inner: Vec<_> = outs.iter().map(|o| o.rows.borrow_mut()).collect();
            let mut inner: Vec<&mut Rows> = inner.iter_mut().map(|o| &mut **o).collect();
            Oracle.project(rows, set, &x.rows.borrow(), &mut inner)
        })?;
        let x = x.all();
        for (w, o) in set.iter().zip(&outs) {
            let mut values = o.all();
            for r in 0..rows {
                for i in 0..w.rows() {
                    if let Some(v) = self.dot(w, w.row(i), &x[r * w.cols()..][..w.cols()]) {
                        values[r * w.rows() + i] = v;
                    }
                }
            }
            o.set(&values);
        }
        if let (Fault::SwappedOutputs, [.., a, b]) = (self.0, &outs[..])
            && a.width == b.width
        {
            a.rows.swap(&b.rows);
        }
        Ok(())
    }

    fn rms_norm(
        &self,
        rows: usize,
        x: &Buf,
        weight: Option<&Vec<f32>>,
        eps: f32,
        out: &mut Buf,
    ) -> Result<(), OpError> {
        self.with(rows, &[out], &[x], || {
            let (x, out) = (&x.rows.borrow(), &mut out.rows.borrow_mut());
            Oracle.rms_norm(rows, x, weight, eps, out)
        })?;
        if self.0 == Fault::OtherLanes {
            let (x, mut y) = (x.all(), out.all());
            for i in 0..rows * out.width {
                let row = &x[i / out.width * out.width..][..out.width];
                let r = norm::scale(lanes_128(row, row), out.width, eps);
                y[i] = weight.map_or(x[i] * r, |w| x[i] * r * w[i % out.width]);
            }
            out.set(&y);
        }
        Ok(())
    }

    fn head_norm(
        &self,
        rows: usize,
        x: &mut Buf,
        weight: &Vec<f32>,
        eps: f32,
    ) -> Result<(), OpError> {
        self.with(rows, &[x], &[], || {
            Oracle.head_norm(rows, &mut x.rows.borrow_mut(), weight, eps)
        })
    }

    fn add_rms_norm(
        &self,
        rows: usize,
        x: &mut Buf,
        y: &Buf,
        weight: &Vec<f32>,
        eps: f32,
    ) -> Result<(), OpError> {
        if self.0 == Fault::OtherLanes {
            let (mut to, y) = (x.all(), y.all());
            for i in 0..rows * x.width {
                let row = &y[i / x.width * x.width..][..x.width];
                let r = norm::scale(lanes_128(row, row), x.width, eps);
                to[i] += y[i] * r * weight[i % x.width];
            }
            x.set(&to);
            return Ok(());
        }
        self.with(rows, &[x], &[y], || {
            let (x, y) = (&mut x.rows.borrow_mut(), &y.rows.borrow());
            Oracle.add_rms_norm(rows, x, y, weight, eps)
        })
    }

    fn rope(&self, rows: usize, x: &mut Buf, table: &RopeTable) -> Result<(), OpError> {
        if self.0 == Fault::TableRowZero {
            let mut values = x.all();
            for row in values.chunks_mut(x.width).take(rows) {
                muser_ops::rope::rope(row, table, 0);
            }
            x.set(&values);
            return Ok(());
        }
        self.with(rows, &[x], &[], || {
            Oracle.rope(rows, &mut x.rows.borrow_mut(), table)
        })
    }

    fn kv_store(
        &self,
        kv: &mut Kv,
        first: usize,
        rows: usize,
        k: &Buf,
        v: &Buf,
    ) -> Result<(), OpError> {
        let width = k.width;
        let end = first + rows;
        for (store, from) in [(&mut kv.k, k.all()), (&mut kv.v, v.all())] {
            let stored = store.len();
            store.resize(stored.max(end * width), 0.0);
            for (i, &x) in from[..rows * width].iter().enumerate() {
                let at = first * width + i;
                if self.0 == Fault::StaleAfterRewind && at < stored {
                    continue;
                }
                store[at] = match self.0 {
                    Fault::SaturatedHalf => x.clamp(-65504.0, 65504.0),
                    Fault::OneHeadGroup => from[i / width * width + i % kv.layout.head_dim],
                    _ => x,
                };
            }
        }
        if self.0 == Fault::ShortRing && kv.layout.window.is_some() {
            let newest = end.div_ceil(64) - 1;
            let forgotten = (newest + 2).saturating_sub(kv.layout.chunks()) * 64 * width;
            let forgotten = forgotten.min(kv.k.len());
            kv.k[..forgotten].fill(0.0);
            kv.v[..forgotten].fill(0.0);
        }
        let total = kv.k.len() / width;
        store(&mut kv.inner, width, total, &kv.k, &kv.v)?;
        if self.0 == Fault::InputChanged {
            let mut x = k.all();
            x[0] = ulp(x[0]);
            k.set(&x);
        }
        Ok(())
    }

    fn attention(
        &self,
        desc: &Attention,
        first: usize,
        rows: usize,
        q: &Buf,
        kv: &Kv,
        out: &mut Buf,
    ) -> Result<(), OpError> {
        let mut desc = *desc;
        match (self.0, desc.window) {
            (Fault::IgnoresWindow, _) => desc.window = None,
            (Fault::ShiftedWindow, Some(w)) => desc.window = Some(w + 1),
            (Fault::ChunksFromFirst, Some(_)) => return shifted(&desc, first, rows, q, kv, out),
            _ => {}
        }
        self.with(rows, &[out], &[q], || {
            let (q, out) = (&q.rows.borrow(), &mut out.rows.borrow_mut());
            Oracle.attention(&desc, first, rows, q, &kv.inner, out)
        })
    }

    fn sigmoid_gate(&self, rows: usize, x: &mut Buf, gate: &Buf) -> Result<(), OpError> {
        self.with(rows, &[x], &[gate], || {
            Oracle.sigmoid_gate(rows, &mut x.rows.borrow_mut(), &gate.rows.borrow())
        })
    }

    fn silu_product(&self, rows: usize, gate: &mut Buf, up: &Buf) -> Result<(), OpError> {
        self.with(rows, &[gate], &[up], || {
            Oracle.silu_product(rows, &mut gate.rows.borrow_mut(), &up.rows.borrow())
        })
    }

    fn soft_cap(
        &self,
        rows: usize,
        x: &mut Buf,
        scale: f32,
        cap: Option<f32>,
    ) -> Result<(), OpError> {
        let scale = match self.0 {
            Fault::CapWithoutScale => 1.0,
            _ => scale,
        };
        self.with(rows, &[x], &[], || {
            Oracle.soft_cap(rows, &mut x.rows.borrow_mut(), scale, cap)
        })
    }
}

/// Stores the first `rows` rows at the positions from 0.
fn store(
    kv: &mut Positions,
    width: usize,
    rows: usize,
    k: &[f32],
    v: &[f32],
) -> Result<(), OpError> {
    let mut buffers = [Oracle.buffer(rows, width), Oracle.buffer(rows, width)];
    Oracle.write(&mut buffers[0], &k[..rows * width])?;
    Oracle.write(&mut buffers[1], &v[..rows * width])?;
    Oracle.kv_store(kv, 0, rows, &buffers[0], &buffers[1])
}

/// Attention whose chunks begin at the first visible position of each row.
fn shifted(
    desc: &Attention,
    first: usize,
    rows: usize,
    q: &Buf,
    kv: &Kv,
    out: &mut Buf,
) -> Result<(), OpError> {
    let width = desc.kv_heads * desc.head_dim;
    let all_visible = Attention {
        window: None,
        ..*desc
    };
    let (queries, mut values) = (q.all(), out.all());
    for r in 0..rows {
        let p = first + r;
        let from = desc.first_visible(p);
        let mut cache = Oracle.kv(kv.layout);
        let (k, v) = (&kv.k[from * width..], &kv.v[from * width..]);
        store(&mut cache, width, p + 1 - from, k, v)?;
        let (mut q_row, mut o_row) = (Oracle.buffer(1, q.width), Oracle.buffer(1, q.width));
        Oracle.write(&mut q_row, &queries[r * q.width..][..q.width])?;
        Oracle.attention(&all_visible, p - from, 1, &q_row, &cache, &mut o_row)?;
        Oracle.read(&o_row, &mut values[r * q.width..][..q.width])?;
    }
    out.set(&values);
    Ok(())
}
