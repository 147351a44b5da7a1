//! [`Profiled`]: what each operation counts as.

use super::{Counts, Event, Op};
use crate::{Attention, Backend, BackendInfo, KvLayout, OpError, RopeTable, Stage, Weight};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// A backend and what it did.
///
/// The stage is the backend's and not a caller's, so one forward pass at a
/// time makes sense of it.
pub struct Profiled<B> {
    inner: Arc<B>,
    origin: Instant,
    record: Mutex<Record>,
}

#[derive(Default)]
struct Record {
    stage: Option<Stage>,
    events: Vec<Event>,
}

impl<B> Profiled<B> {
    /// Measures this backend, which others may go on using.
    pub fn new(inner: Arc<B>) -> Self {
        Self {
            inner,
            origin: Instant::now(),
            record: Mutex::default(),
        }
    }

    /// Everything since the last call, in order.
    pub fn take(&self) -> Vec<Event> {
        // The record keeps its room: pages that are there already, so that the
        // next pass does not pay for new ones.
        self.record().events.drain(..).collect()
    }

    fn record(&self) -> MutexGuard<'_, Record> {
        // A push that panicked has not pushed: the record stays whole.
        self.record.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does an operation and records it unless it failed.
    fn timed(
        &self,
        op: Op,
        counts: Counts,
        matrices: impl Iterator<Item = Arc<str>>,
        run: impl FnOnce(&B) -> Result<(), OpError>,
    ) -> Result<(), OpError> {
        let start = Instant::now();
        run(&self.inner)?;
        let time = start.elapsed();
        let mut record = self.record();
        let event = Event {
            stage: record.stage,
            op,
            matrices: matrices.collect(),
            start: start.duration_since(self.origin),
            time,
            counts,
        };
        record.events.push(event);
        Ok(())
    }

    /// One that has no matrix.
    fn plain(
        &self,
        op: Op,
        counts: Counts,
        run: impl FnOnce(&B) -> Result<(), OpError>,
    ) -> Result<(), OpError> {
        self.timed(op, counts, std::iter::empty(), run)
    }
}

/// Activations and their width.
pub struct ProfiledBuffer<T> {
    inner: T,
    width: usize,
}

/// A weight and what is counted of it.
pub struct ProfiledWeight<T> {
    inner: T,
    name: Arc<str>,
    rows: usize,
    cols: usize,
    bytes: u64,
}

/// A vector of factors and its length.
pub struct ProfiledVector<T> {
    inner: T,
    len: usize,
}

/// A layer's cache and its layout.
#[derive(Clone)]
pub struct ProfiledKv<T> {
    inner: T,
    layout: KvLayout,
}

impl<T> ProfiledKv<T> {
    /// Bytes of K and V of so many positions, in f16.
    fn bytes(&self, positions: usize) -> u64 {
        let values = 2 * self.layout.kv_heads * self.layout.head_dim;
        positions as u64 * (values * size_of::<u16>()) as u64
    }
}

impl<B: Backend> Backend for Profiled<B> {
    type Buffer = ProfiledBuffer<B::Buffer>;
    type Weight = ProfiledWeight<B::Weight>;
    type Vector = ProfiledVector<B::Vector>;
    type Kv = ProfiledKv<B::Kv>;

    fn info(&self) -> BackendInfo {
        self.inner.info()
    }

    fn mark(&self, stage: Stage) {
        self.record().stage = Some(stage);
        self.inner.mark(stage);
    }

    fn bind(&self, weight: Weight) -> Result<Self::Weight, OpError> {
        Ok(ProfiledWeight {
            name: weight.name().into(),
            rows: weight.rows(),
            cols: weight.cols(),
            bytes: weight.bytes().len() as u64,
            inner: self.inner.bind(weight)?,
        })
    }

    fn bind_vector(&self, values: Vec<f32>) -> Self::Vector {
        ProfiledVector {
            len: values.len(),
            inner: self.inner.bind_vector(values),
        }
    }

    fn buffer(&self, rows: usize, width: usize) -> Self::Buffer {
        ProfiledBuffer {
            inner: self.inner.buffer(rows, width),
            width,
        }
    }

    fn write(&self, buffer: &mut Self::Buffer, values: &[f32]) -> Result<(), OpError> {
        let counts = Counts {
            dispatches: 0,
            ..Counts::values(2 * values.len())
        };
        let run = |b: &B| b.write(&mut buffer.inner, values);
        self.plain(Op::Write, counts, run)
    }

    fn read(&self, buffer: &Self::Buffer, out: &mut [f32]) -> Result<(), OpError> {
        let counts = Counts {
            dispatches: 0,
            ..Counts::values(2 * out.len())
        };
        self.plain(Op::Read, counts, |b| b.read(&buffer.inner, out))
    }

    fn view<'a>(&self, buffer: &'a Self::Buffer) -> Option<&'a [f32]> {
        self.inner.view(&buffer.inner)
    }

    fn copy_rows(
        &self,
        rows: usize,
        src: &Self::Buffer,
        from: usize,
        dst: &mut Self::Buffer,
        to: usize,
    ) -> Result<(), OpError> {
        let counts = Counts::values(2 * rows * src.width);
        let run = |b: &B| b.copy_rows(rows, &src.inner, from, &mut dst.inner, to);
        self.plain(Op::CopyRows, counts, run)
    }

    fn kv(&self, layout: KvLayout) -> Self::Kv {
        ProfiledKv {
            inner: self.inner.kv(layout),
            layout,
        }
    }

    fn embed(
        &self,
        table: &Self::Weight,
        tokens: &[u32],
        out: &mut Self::Buffer,
    ) -> Result<(), OpError> {
        let row = table.bytes / table.rows as u64;
        let counts = Counts {
            weight_bytes: tokens.len() as u64 * row,
            ..Counts::values(tokens.len() * table.cols)
        };
        let name = std::iter::once(table.name.clone());
        let run = |b: &B| b.embed(&table.inner, tokens, &mut out.inner);
        self.timed(Op::Embed, counts, name, run)
    }

    fn project(
        &self,
        rows: usize,
        set: &[&Self::Weight],
        x: &Self::Buffer,
        out: &mut [&mut Self::Buffer],
    ) -> Result<(), OpError> {
        let outputs: usize = set.iter().map(|w| w.rows).sum();
        let inputs = set.first().map_or(0, |w| w.cols);
        let weights: u64 = set.iter().map(|w| w.rows as u64 * w.cols as u64).sum();
        let counts = Counts {
            sets: 1,
            dispatches: set.len() as u64,
            weight_bytes: set.iter().map(|w| w.bytes).sum(),
            flops: 2 * rows as u64 * weights,
            ..Counts::values(rows * (inputs + outputs))
        };
        let names = set.iter().map(|w| w.name.clone());
        let inner: Vec<&B::Weight> = set.iter().map(|w| &w.inner).collect();
        let mut out: Vec<&mut B::Buffer> = out.iter_mut().map(|o| &mut o.inner).collect();
        let run = |b: &B| b.project(rows, &inner, &x.inner, &mut out);
        self.timed(Op::Project, counts, names, run)
    }

    fn rms_norm(
        &self,
        rows: usize,
        x: &Self::Buffer,
        weight: Option<&Self::Vector>,
        eps: f32,
        out: &mut Self::Buffer,
    ) -> Result<(), OpError> {
        let counts = Counts::values(2 * rows * x.width).with_vector(weight.map_or(0, |w| w.len));
        let weight = weight.map(|w| &w.inner);
        let run = |b: &B| b.rms_norm(rows, &x.inner, weight, eps, &mut out.inner);
        self.plain(Op::RmsNorm, counts, run)
    }

    fn head_norm(
        &self,
        rows: usize,
        x: &mut Self::Buffer,
        weight: &Self::Vector,
        eps: f32,
    ) -> Result<(), OpError> {
        let counts = Counts::values(2 * rows * x.width).with_vector(weight.len);
        let run = |b: &B| b.head_norm(rows, &mut x.inner, &weight.inner, eps);
        self.plain(Op::HeadNorm, counts, run)
    }

    fn add_rms_norm(
        &self,
        rows: usize,
        x: &mut Self::Buffer,
        y: &Self::Buffer,
        weight: &Self::Vector,
        eps: f32,
    ) -> Result<(), OpError> {
        let counts = Counts::values(3 * rows * x.width).with_vector(weight.len);
        let run = |b: &B| b.add_rms_norm(rows, &mut x.inner, &y.inner, &weight.inner, eps);
        self.plain(Op::AddRmsNorm, counts, run)
    }

    fn rope(&self, rows: usize, x: &mut Self::Buffer, table: &RopeTable) -> Result<(), OpError> {
        let counts = Counts::values(2 * rows * (x.width + table.pairs()));
        self.plain(Op::Rope, counts, |b| b.rope(rows, &mut x.inner, table))
    }

    fn kv_store(
        &self,
        kv: &mut Self::Kv,
        first: usize,
        rows: usize,
        k: &Self::Buffer,
        v: &Self::Buffer,
    ) -> Result<(), OpError> {
        let counts = Counts {
            kv_written: kv.bytes(rows),
            ..Counts::values(rows * (k.width + v.width))
        };
        let run = |b: &B| b.kv_store(&mut kv.inner, first, rows, &k.inner, &v.inner);
        self.plain(Op::KvStore, counts, run)
    }

    fn attention(
        &self,
        desc: &Attention,
        first: usize,
        rows: usize,
        q: &Self::Buffer,
        kv: &Self::Kv,
        out: &mut Self::Buffer,
    ) -> Result<(), OpError> {
        let seen = |p: usize| (p + 1 - desc.first_visible(p)) as u64;
        let pairs: u64 = (first..first + rows).map(seen).sum();
        let counts = Counts {
            kv_read: kv.bytes((first + rows).saturating_sub(desc.first_visible(first))),
            flops: 4 * pairs * (desc.heads * desc.head_dim) as u64,
            ..Counts::values(rows * (q.width + out.width))
        };
        let run = |b: &B| b.attention(desc, first, rows, &q.inner, &kv.inner, &mut out.inner);
        self.plain(Op::Attention, counts, run)
    }

    fn sigmoid_gate(
        &self,
        rows: usize,
        x: &mut Self::Buffer,
        gate: &Self::Buffer,
    ) -> Result<(), OpError> {
        let counts = Counts::values(3 * rows * x.width);
        let run = |b: &B| b.sigmoid_gate(rows, &mut x.inner, &gate.inner);
        self.plain(Op::SigmoidGate, counts, run)
    }

    fn silu_product(
        &self,
        rows: usize,
        gate: &mut Self::Buffer,
        up: &Self::Buffer,
    ) -> Result<(), OpError> {
        let counts = Counts::values(3 * rows * gate.width);
        let run = |b: &B| b.silu_product(rows, &mut gate.inner, &up.inner);
        self.plain(Op::SiluProduct, counts, run)
    }

    fn soft_cap(
        &self,
        rows: usize,
        x: &mut Self::Buffer,
        scale: f32,
        cap: Option<f32>,
    ) -> Result<(), OpError> {
        let counts = Counts::values(2 * rows * x.width);
        let run = |b: &B| b.soft_cap(rows, &mut x.inner, scale, cap);
        self.plain(Op::SoftCap, counts, run)
    }
}
