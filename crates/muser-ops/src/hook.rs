//! [`Hooked`]: a backend whose calls go through a [`Hook`], which may measure or change
//! them.
//!
//! The hook gets every operation of the backend as a [`Call`] before it runs. It may
//! measure the operation ([`crate::profiler`]), change its operands or results (the
//! defects that test the conformance suite), or leave it out. Buffers, weights and
//! caches are those of the backend inside; only the calls are wrapped.

use crate::profiler::Op;
use crate::{
    Attention, Backend, BackendInfo, Choice, KvLayout, Matrix, MatrixInfo, OpError, Plan, RopeSpec,
    Sizes, Stage, Subset, Weight,
};
use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;

/// The trait of a hook: it sees the calls of a [`Hooked`] backend and decides what
/// becomes of them. Each method has a default that passes its call on, but for
/// [`Hook::call`].
pub trait Hook<B: Backend>: Send + Sync + 'static {
    /// Returns the description of the hooked backend, made from `inner`, the description
    /// of the backend that it wraps.
    fn info(&self, inner: BackendInfo) -> BackendInfo {
        inner
    }

    /// Called before the wrapped backend's [`Backend::mark`], which names the current
    /// stage of the forward pass.
    fn mark(&self, stage: Stage) {
        let _ = stage;
    }

    /// Called before the wrapped backend's [`Backend::kv`], which makes the KV cache of a
    /// sequence.
    fn kv(&self, layers: &[KvLayout]) {
        let _ = layers;
    }

    /// Decides what becomes of an operation of the wrapped backend: `call.run(backend)`
    /// runs it; without that, it is left out.
    fn call(&self, backend: &B, call: Call<'_, '_, B>) -> Result<(), OpError>;

    /// Runs [`Backend::read`], which returns the first rows of a buffer of activations;
    /// the default passes it on.
    fn read<'a>(
        &self,
        backend: &B,
        buffer: &'a B::Buffer,
        rows: usize,
    ) -> Result<Cow<'a, [f32]>, OpError> {
        backend.read(buffer, rows)
    }

    /// Runs [`Backend::choose`], which chooses tokens from logits; the default passes it
    /// on.
    fn choose(
        &self,
        backend: &B,
        logits: &B::Buffer,
        choices: &mut [(usize, &mut Choice<'_>)],
    ) -> Result<(), OpError> {
        backend.choose(logits, choices)
    }
}

/// A call: one operation with its operands, that is, a method of [`Backend`] that
/// computes or moves values in buffers, with its parameters.
#[expect(missing_docs, reason = "the names are those of the methods")]
pub enum Call<'a, 'kv, B: Backend> {
    Write {
        buffer: &'a mut B::Buffer,
        values: &'a [f32],
    },
    CopyRows {
        rows: usize,
        src: &'a B::Buffer,
        from: usize,
        dst: &'a mut B::Buffer,
        to: usize,
    },
    Gather {
        batch: &'a B::Batch<'kv>,
        src: &'a B::Buffer,
        dst: &'a mut B::Buffer,
    },
    Embed {
        batch: &'a B::Batch<'kv>,
        table: &'a B::Table,
        out: &'a mut B::Buffer,
    },
    Project {
        rows: usize,
        set: &'a B::Set,
        which: Range<usize>,
        x: &'a B::Buffer,
        out: Vec<&'a mut B::Buffer>,
    },
    RmsNorm {
        rows: usize,
        x: &'a B::Buffer,
        weight: Option<&'a B::Vector>,
        eps: f32,
        out: &'a mut B::Buffer,
    },
    HeadNorm {
        rows: usize,
        x: &'a mut B::Buffer,
        weight: &'a B::Vector,
        eps: f32,
    },
    AddRmsNorm {
        rows: usize,
        x: &'a mut B::Buffer,
        y: &'a B::Buffer,
        weight: &'a B::Vector,
        eps: f32,
    },
    Add {
        rows: usize,
        x: &'a mut B::Buffer,
        y: &'a B::Buffer,
    },
    Rope {
        batch: &'a B::Batch<'kv>,
        subset: Subset,
        rope: &'a B::Rope,
        x: &'a mut B::Buffer,
    },
    Attention {
        batch: &'a mut B::Batch<'kv>,
        layer: usize,
        desc: &'a Attention,
        subset: Subset,
        q: &'a B::Buffer,
        k: &'a B::Buffer,
        v: &'a B::Buffer,
        out: &'a mut B::Buffer,
    },
    SigmoidGate {
        rows: usize,
        x: &'a mut B::Buffer,
        gate: &'a B::Buffer,
    },
    SiluProduct {
        rows: usize,
        gate: &'a mut B::Buffer,
        up: &'a B::Buffer,
    },
    SoftCap {
        rows: usize,
        x: &'a mut B::Buffer,
        scale: f32,
        cap: Option<f32>,
    },
}

impl<B: Backend> Call<'_, '_, B> {
    /// Returns which of the backend's operations this call runs.
    pub fn op(&self) -> Op {
        match self {
            Self::Write { .. } => Op::Write,
            Self::CopyRows { .. } => Op::CopyRows,
            Self::Gather { .. } => Op::Gather,
            Self::Embed { .. } => Op::Embed,
            Self::Project { .. } => Op::Project,
            Self::RmsNorm { .. } => Op::RmsNorm,
            Self::HeadNorm { .. } => Op::HeadNorm,
            Self::AddRmsNorm { .. } => Op::AddRmsNorm,
            Self::Add { .. } => Op::Add,
            Self::Rope { .. } => Op::Rope,
            Self::Attention { .. } => Op::Attention,
            Self::SigmoidGate { .. } => Op::SigmoidGate,
            Self::SiluProduct { .. } => Op::SiluProduct,
            Self::SoftCap { .. } => Op::SoftCap,
        }
    }

    /// Runs the call's operation, with the operands that the call holds, on the backend
    /// `b`.
    pub fn run(&mut self, b: &B) -> Result<(), OpError> {
        match self {
            Self::Write { buffer, values } => b.write(buffer, values),
            Self::CopyRows {
                rows,
                src,
                from,
                dst,
                to,
            } => b.copy_rows(*rows, src, *from, dst, *to),
            Self::Gather { batch, src, dst } => b.gather(batch, src, dst),
            Self::Embed { batch, table, out } => b.embed(batch, table, out),
            Self::Project {
                rows,
                set,
                which,
                x,
                out,
            } => {
                let mut out: Vec<&mut B::Buffer> = out.iter_mut().map(|o| &mut **o).collect();
                b.project(*rows, set, which.clone(), x, &mut out)
            }
            Self::RmsNorm {
                rows,
                x,
                weight,
                eps,
                out,
            } => b.rms_norm(*rows, x, *weight, *eps, out),
            Self::HeadNorm {
                rows,
                x,
                weight,
                eps,
            } => b.head_norm(*rows, x, weight, *eps),
            Self::AddRmsNorm {
                rows,
                x,
                y,
                weight,
                eps,
            } => b.add_rms_norm(*rows, x, y, weight, *eps),
            Self::Add { rows, x, y } => b.add(*rows, x, y),
            Self::Rope {
                batch,
                subset,
                rope,
                x,
            } => b.rope(batch, *subset, rope, x),
            Self::Attention {
                batch,
                layer,
                desc,
                subset,
                q,
                k,
                v,
                out,
            } => b.attention(batch, *layer, desc, *subset, q, k, v, out),
            Self::SigmoidGate { rows, x, gate } => b.sigmoid_gate(*rows, x, gate),
            Self::SiluProduct { rows, gate, up } => b.silu_product(*rows, gate, up),
            Self::SoftCap {
                rows,
                x,
                scale,
                cap,
            } => b.soft_cap(*rows, x, *scale, *cap),
        }
    }

    /// Returns the number of rows of activations, counted from the first, that the call's
    /// operation may write in its output buffers; 0 for [`Call::Write`], which has no
    /// rows.
    pub fn rows(&self, b: &B) -> usize {
        match self {
            Self::Write { .. } => 0,
            Self::CopyRows { rows, to, .. } => to + rows,
            Self::Gather { batch, .. } => b.plan(batch).count(Subset::Kept),
            Self::Embed { batch, .. } => b.plan(batch).count(Subset::All),
            Self::Rope { batch, subset, .. } => b.plan(batch).count(*subset),
            Self::Attention { batch, subset, .. } => b.plan(batch).count(*subset),
            Self::Project { rows, .. }
            | Self::RmsNorm { rows, .. }
            | Self::HeadNorm { rows, .. }
            | Self::AddRmsNorm { rows, .. }
            | Self::Add { rows, .. }
            | Self::SigmoidGate { rows, .. }
            | Self::SiluProduct { rows, .. }
            | Self::SoftCap { rows, .. } => *rows,
        }
    }

    /// Returns the buffers of activations that the operation writes.
    pub fn outputs(&mut self) -> Vec<&mut B::Buffer> {
        match self {
            Self::Project { out, .. } => out.iter_mut().map(|o| &mut **o).collect(),
            Self::Write { buffer: out, .. }
            | Self::CopyRows { dst: out, .. }
            | Self::Gather { dst: out, .. }
            | Self::Embed { out, .. }
            | Self::RmsNorm { out, .. }
            | Self::HeadNorm { x: out, .. }
            | Self::AddRmsNorm { x: out, .. }
            | Self::Add { x: out, .. }
            | Self::Rope { x: out, .. }
            | Self::Attention { out, .. }
            | Self::SigmoidGate { x: out, .. }
            | Self::SiluProduct { gate: out, .. }
            | Self::SoftCap { x: out, .. } => vec![out],
        }
    }

    /// Returns the buffers of activations that the operation reads and does not write.
    pub fn inputs(&self) -> Vec<&B::Buffer> {
        match self {
            Self::CopyRows { src: x, .. }
            | Self::Gather { src: x, .. }
            | Self::Project { x, .. }
            | Self::RmsNorm { x, .. }
            | Self::AddRmsNorm { y: x, .. }
            | Self::Add { y: x, .. }
            | Self::SigmoidGate { gate: x, .. }
            | Self::SiluProduct { up: x, .. } => vec![x],
            Self::Attention { q, k, v, .. } => vec![q, k, v],
            Self::Write { .. }
            | Self::Embed { .. }
            | Self::HeadNorm { .. }
            | Self::Rope { .. }
            | Self::SoftCap { .. } => Vec::new(),
        }
    }
}

/// A backend whose calls go through a hook, which may measure or change them.
pub struct Hooked<B, H> {
    inner: Arc<B>,
    hook: H,
}

impl<B, H> Hooked<B, H> {
    /// Puts a hook in front of a backend, so that it sees the backend's calls. Other
    /// users of `inner` are not affected.
    pub fn over(inner: Arc<B>, hook: H) -> Self {
        Self { inner, hook }
    }

    /// Returns the hook that the backend's calls go through.
    pub fn hook(&self) -> &H {
        &self.hook
    }
}

impl<B: Backend, H: Hook<B>> Backend for Hooked<B, H> {
    type Buffer = B::Buffer;
    type Set = B::Set;
    type Table = B::Table;
    type Vector = B::Vector;
    type Rope = B::Rope;
    type Kv = B::Kv;
    type Batch<'kv> = B::Batch<'kv>;

    fn info(&self) -> BackendInfo {
        self.hook.info(self.inner.info())
    }

    fn sizes(&self) -> Sizes {
        self.inner.sizes()
    }

    fn mark(&self, stage: Stage) {
        self.hook.mark(stage);
        self.inner.mark(stage);
    }

    fn bind_set(&self, set: Vec<Matrix>) -> Result<B::Set, OpError> {
        self.inner.bind_set(set)
    }

    fn bind_table(&self, table: Weight) -> Result<B::Table, OpError> {
        self.inner.bind_table(table)
    }

    fn bind_vector(&self, values: Vec<f32>) -> Result<B::Vector, OpError> {
        self.inner.bind_vector(values)
    }

    fn bind_rope(&self, rope: RopeSpec) -> Result<B::Rope, OpError> {
        self.inner.bind_rope(rope)
    }

    fn matrices(&self, set: &B::Set) -> Vec<MatrixInfo> {
        self.inner.matrices(set)
    }

    fn table(&self, table: &B::Table) -> MatrixInfo {
        self.inner.table(table)
    }

    fn vector_len(&self, vector: &B::Vector) -> usize {
        self.inner.vector_len(vector)
    }

    fn width(&self, buffer: &B::Buffer) -> usize {
        self.inner.width(buffer)
    }

    fn plan<'a>(&self, batch: &'a B::Batch<'_>) -> &'a Plan {
        self.inner.plan(batch)
    }

    fn buffer(&self, rows: usize, width: usize) -> Result<B::Buffer, OpError> {
        self.inner.buffer(rows, width)
    }

    fn write(&self, buffer: &mut B::Buffer, values: &[f32]) -> Result<(), OpError> {
        self.hook.call(&self.inner, Call::Write { buffer, values })
    }

    fn read<'a>(&self, buffer: &'a B::Buffer, rows: usize) -> Result<Cow<'a, [f32]>, OpError> {
        self.hook.read(&self.inner, buffer, rows)
    }

    fn choose(
        &self,
        logits: &B::Buffer,
        choices: &mut [(usize, &mut Choice<'_>)],
    ) -> Result<(), OpError> {
        self.hook.choose(&self.inner, logits, choices)
    }

    fn kv(&self, layers: &[KvLayout]) -> B::Kv {
        self.hook.kv(layers);
        self.inner.kv(layers)
    }

    fn batch<'kv>(&self, plan: Plan, kv: Vec<&'kv mut B::Kv>) -> Result<B::Batch<'kv>, OpError> {
        self.inner.batch(plan, kv)
    }

    fn copy_rows(
        &self,
        rows: usize,
        src: &B::Buffer,
        from: usize,
        dst: &mut B::Buffer,
        to: usize,
    ) -> Result<(), OpError> {
        let call = Call::CopyRows {
            rows,
            src,
            from,
            dst,
            to,
        };
        self.hook.call(&self.inner, call)
    }

    fn gather(
        &self,
        batch: &B::Batch<'_>,
        src: &B::Buffer,
        dst: &mut B::Buffer,
    ) -> Result<(), OpError> {
        let call = Call::Gather { batch, src, dst };
        self.hook.call(&self.inner, call)
    }

    fn embed(
        &self,
        batch: &B::Batch<'_>,
        table: &B::Table,
        out: &mut B::Buffer,
    ) -> Result<(), OpError> {
        let call = Call::Embed { batch, table, out };
        self.hook.call(&self.inner, call)
    }

    fn project(
        &self,
        rows: usize,
        set: &B::Set,
        which: Range<usize>,
        x: &B::Buffer,
        out: &mut [&mut B::Buffer],
    ) -> Result<(), OpError> {
        let out = out.iter_mut().map(|o| &mut **o).collect();
        let call = Call::Project {
            rows,
            set,
            which,
            x,
            out,
        };
        self.hook.call(&self.inner, call)
    }

    fn rms_norm(
        &self,
        rows: usize,
        x: &B::Buffer,
        weight: Option<&B::Vector>,
        eps: f32,
        out: &mut B::Buffer,
    ) -> Result<(), OpError> {
        let call = Call::RmsNorm {
            rows,
            x,
            weight,
            eps,
            out,
        };
        self.hook.call(&self.inner, call)
    }

    fn head_norm(
        &self,
        rows: usize,
        x: &mut B::Buffer,
        weight: &B::Vector,
        eps: f32,
    ) -> Result<(), OpError> {
        let call = Call::HeadNorm {
            rows,
            x,
            weight,
            eps,
        };
        self.hook.call(&self.inner, call)
    }

    fn add_rms_norm(
        &self,
        rows: usize,
        x: &mut B::Buffer,
        y: &B::Buffer,
        weight: &B::Vector,
        eps: f32,
    ) -> Result<(), OpError> {
        let call = Call::AddRmsNorm {
            rows,
            x,
            y,
            weight,
            eps,
        };
        self.hook.call(&self.inner, call)
    }

    fn add(&self, rows: usize, x: &mut B::Buffer, y: &B::Buffer) -> Result<(), OpError> {
        self.hook.call(&self.inner, Call::Add { rows, x, y })
    }

    fn rope(
        &self,
        batch: &B::Batch<'_>,
        subset: Subset,
        rope: &B::Rope,
        x: &mut B::Buffer,
    ) -> Result<(), OpError> {
        let call = Call::Rope {
            batch,
            subset,
            rope,
            x,
        };
        self.hook.call(&self.inner, call)
    }

    fn attention(
        &self,
        batch: &mut B::Batch<'_>,
        layer: usize,
        desc: &Attention,
        subset: Subset,
        q: &B::Buffer,
        k: &B::Buffer,
        v: &B::Buffer,
        out: &mut B::Buffer,
    ) -> Result<(), OpError> {
        let call = Call::Attention {
            batch,
            layer,
            desc,
            subset,
            q,
            k,
            v,
            out,
        };
        self.hook.call(&self.inner, call)
    }

    fn sigmoid_gate(
        &self,
        rows: usize,
        x: &mut B::Buffer,
        gate: &B::Buffer,
    ) -> Result<(), OpError> {
        self.hook
            .call(&self.inner, Call::SigmoidGate { rows, x, gate })
    }

    fn silu_product(
        &self,
        rows: usize,
        gate: &mut B::Buffer,
        up: &B::Buffer,
    ) -> Result<(), OpError> {
        self.hook
            .call(&self.inner, Call::SiluProduct { rows, gate, up })
    }

    fn soft_cap(
        &self,
        rows: usize,
        x: &mut B::Buffer,
        scale: f32,
        cap: Option<f32>,
    ) -> Result<(), OpError> {
        let call = Call::SoftCap {
            rows,
            x,
            scale,
            cap,
        };
        self.hook.call(&self.inner, call)
    }
}
