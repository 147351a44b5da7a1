//! The interface between the forward pass and whatever computes it.

use crate::{Attention, KvLayout, Lane, OpError, RopeTable, Weight};

/// What a backend is, for people and records.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackendInfo {
    /// `oracle`, `cpu`, …
    pub name: &'static str,
    /// The arithmetic it computes.
    pub lane: Lane,
    /// The instruction set or device level: `scalar`, `avx2`, `avx512`, …
    pub level: String,
    /// Threads that share the work.
    pub threads: usize,
}

/// A part of the forward pass, for whoever measures one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Stage {
    /// The embedding and its norm.
    Embed,
    /// Attention's half of a layer.
    Attention(usize),
    /// The FFN's half of a layer.
    Ffn(usize),
    /// The last norm and the logits.
    Head,
}

/// The operations of a forward pass over buffers that the backend owns.
///
/// A buffer is `[rows, width]` f32, row after row; row r is one position of
/// the batch. An operation reads and writes the first `rows` rows of its
/// buffers and leaves everything else alone. What each one computes is written
/// in the module of its oracle; a backend equals the oracle bit for bit, or is
/// wrong. (A NaN equals any NaN: its payload is nobody's contract.)
///
/// Every method takes `&self`, so that sessions can share one backend; one
/// that has shared state locks it.
pub trait Backend: Send + Sync + 'static {
    /// Activations.
    type Buffer: Send;
    /// A weight matrix, ready for use.
    type Weight: Send + Sync;
    /// A vector of factors (norm weights).
    type Vector: Send + Sync;
    /// One layer's KV cache. A clone is another sequence with the same past:
    /// what is stored in one of them later does not show in the other. It is
    /// meant to be cheap: a backend shares the storage until it is written.
    type Kv: Send + Clone;

    /// What this backend is.
    fn info(&self) -> BackendInfo;

    /// Told which part the operations from here on belong to. Nothing that is
    /// computed depends on it; only [`crate::profile`] listens.
    fn mark(&self, stage: Stage) {
        let _ = stage;
    }

    /// Takes a weight, or refuses its format or shape by the tensor's name.
    /// Copies nothing where the device reads host memory.
    fn bind(&self, weight: Weight) -> Result<Self::Weight, OpError>;

    /// Takes a vector of factors.
    fn bind_vector(&self, values: Vec<f32>) -> Self::Vector;

    /// A buffer of zeros.
    fn buffer(&self, rows: usize, width: usize) -> Self::Buffer;

    /// Overwrites the buffer from its beginning.
    fn write(&self, buffer: &mut Self::Buffer, values: &[f32]) -> Result<(), OpError>;

    /// Reads the buffer from its beginning.
    fn read(&self, buffer: &Self::Buffer, out: &mut [f32]) -> Result<(), OpError>;

    /// The values of the buffer where they lie, if the host can see them there:
    /// what [`read`](Self::read) would copy.
    fn view<'a>(&self, buffer: &'a Self::Buffer) -> Option<&'a [f32]> {
        let _ = buffer;
        None
    }

    /// Copies rows `from ..` of `src` to the rows `to ..` of `dst`.
    fn copy_rows(
        &self,
        rows: usize,
        src: &Self::Buffer,
        from: usize,
        dst: &mut Self::Buffer,
        to: usize,
    ) -> Result<(), OpError>;

    /// An empty cache of this layout.
    fn kv(&self, layout: KvLayout) -> Self::Kv;

    /// Embedding rows of the tokens: [`crate::embed`].
    fn embed(
        &self,
        table: &Self::Weight,
        tokens: &[u32],
        out: &mut Self::Buffer,
    ) -> Result<(), OpError>;

    /// A projection set, one dispatch: [`crate::project`].
    fn project(
        &self,
        rows: usize,
        set: &[&Self::Weight],
        x: &Self::Buffer,
        out: &mut [&mut Self::Buffer],
    ) -> Result<(), OpError>;

    /// RMS norm of each row: [`crate::norm`].
    fn rms_norm(
        &self,
        rows: usize,
        x: &Self::Buffer,
        weight: Option<&Self::Vector>,
        eps: f32,
        out: &mut Self::Buffer,
    ) -> Result<(), OpError>;

    /// RMS norm of each head in place, a head as long as `weight`.
    fn head_norm(
        &self,
        rows: usize,
        x: &mut Self::Buffer,
        weight: &Self::Vector,
        eps: f32,
    ) -> Result<(), OpError>;

    /// `x += norm(y)`: [`crate::norm::add_rms_norm`].
    fn add_rms_norm(
        &self,
        rows: usize,
        x: &mut Self::Buffer,
        y: &Self::Buffer,
        weight: &Self::Vector,
        eps: f32,
    ) -> Result<(), OpError>;

    /// Rotates each head in place; row r by row r of the table:
    /// [`crate::rope`](mod@crate::rope).
    fn rope(&self, rows: usize, x: &mut Self::Buffer, table: &RopeTable) -> Result<(), OpError>;

    /// Stores rows of K and V as f16 at the positions `first ..`.
    fn kv_store(
        &self,
        kv: &mut Self::Kv,
        first: usize,
        rows: usize,
        k: &Self::Buffer,
        v: &Self::Buffer,
    ) -> Result<(), OpError>;

    /// Attention of the rows at the positions `first ..`, which are stored:
    /// [`crate::attention`].
    fn attention(
        &self,
        desc: &Attention,
        first: usize,
        rows: usize,
        q: &Self::Buffer,
        kv: &Self::Kv,
        out: &mut Self::Buffer,
    ) -> Result<(), OpError>;

    /// `x *= sigmoid(gate)`: [`crate::elementwise`].
    fn sigmoid_gate(
        &self,
        rows: usize,
        x: &mut Self::Buffer,
        gate: &Self::Buffer,
    ) -> Result<(), OpError>;

    /// `gate = silu(gate) * up`: [`crate::elementwise`].
    fn silu_product(
        &self,
        rows: usize,
        gate: &mut Self::Buffer,
        up: &Self::Buffer,
    ) -> Result<(), OpError>;

    /// Scaled, soft-capped logits in place: [`crate::elementwise::soft_cap`].
    fn soft_cap(
        &self,
        rows: usize,
        x: &mut Self::Buffer,
        scale: f32,
        cap: Option<f32>,
    ) -> Result<(), OpError>;
}
