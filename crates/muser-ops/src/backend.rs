//! The interface between the forward pass and whatever computes it.

use crate::{
    Attention, Choice, KvLayout, Lane, Matrix, MatrixInfo, OpError, Plan, RopeSpec, Subset, Weight,
};
use std::borrow::Cow;
use std::ops::Range;

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

/// How a backend wants long calls cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// Rows of one micro-batch: longer calls are cut into pieces of so many.
    pub micro_batch: usize,
    /// Rows of logits computed at once. A multiple of 4: with that, and with a
    /// short end joined to the slice before it, a slice of the head takes the
    /// pinned lane's routes of the whole.
    pub head_rows: usize,
}

impl Sizes {
    /// The lane's micro-batch, and heads of 64 rows: 52 MB of logits at a
    /// vocabulary of 202,048.
    pub fn of(lane: Lane) -> Self {
        Self {
            micro_batch: lane.micro_batch(),
            head_rows: 64,
        }
    }
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

/// Names a recorded pass: of two passes with the same name, each operation and
/// each buffer is the same, and so is each number of rows. What differs is in
/// their batches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Recording {
    /// The buffers that the pass works in, and so its model; no two sets of
    /// buffers of a process ever have the same number.
    pub buffers: u64,
    /// Rows of the batch.
    pub rows: usize,
    /// Rows that are kept.
    pub keep: usize,
    /// Whether the pass ends with logits.
    pub logits: bool,
}

/// The operations of a forward pass over buffers that the backend owns.
///
/// A buffer is `[rows, width]` f32, row after row; row r is one position of
/// the batch. An operation reads and writes the first `rows` rows of its
/// buffers and leaves everything else alone. What each one computes is written
/// in the module of its oracle; a backend equals the oracle bit for bit, or is
/// wrong. (A NaN equals any NaN: its payload is nobody's contract.)
///
/// # Order and waiting
///
/// Operations take effect in the order of their calls, but a call need not wait
/// for its result: a device enqueues. Only [`read`](Self::read) (and
/// [`write`](Self::write), which may have to wait for room) waits, so an error
/// that a device finds late surfaces there. What can be refused is refused
/// early: formats and shapes when a weight is bound, memory and positions when
/// [`batch`](Self::batch) is called, before any of the pass's work.
///
/// # What varies
///
/// Everything that differs between two passes of one shape is in the
/// [`Plan`] of a [`Batch`](Self::Batch): tokens, positions, which rows are of
/// which sequence, which are kept. So a pass over a batch can be recorded once
/// and played again ([`record`](Self::record)).
///
/// Every method takes `&self`, so that sessions can share one backend; one
/// that has shared state locks it.
pub trait Backend: Send + Sync + 'static {
    /// Activations.
    type Buffer: Send;
    /// Weight matrices that read one input, ready for use.
    type Set: Send + Sync;
    /// An embedding table.
    type Table: Send + Sync;
    /// A vector of factors (norm weights).
    type Vector: Send + Sync;
    /// A rotary encoding.
    type Rope: Send + Sync;
    /// K and V of one sequence, all layers. A clone is another sequence with
    /// the same past: what is stored in one of them later does not show in the
    /// other. It is meant to be cheap: a backend shares the pages until they
    /// are written.
    type Kv: Send + Clone;
    /// A plan where the backend reads it, with the caches of its sequences,
    /// which nobody else touches while it lives.
    type Batch<'kv>;

    /// What this backend is.
    fn info(&self) -> BackendInfo;

    /// How it wants calls cut. In the pinned lane the cut decides bits, so there
    /// it is the lane's own.
    fn sizes(&self) -> Sizes {
        Sizes::of(self.info().lane)
    }

    /// Told which part the operations from here on belong to. Nothing that is
    /// computed depends on it; [`crate::profile`] listens.
    fn mark(&self, stage: Stage) {
        let _ = stage;
    }

    /// Takes the matrices of a projection set, or refuses one by its tensor's
    /// name: a format, shape or bias that there is no kernel for, no memory.
    /// Copies nothing where the device reads host memory.
    fn bind_set(&self, set: Vec<Matrix>) -> Result<Self::Set, OpError>;

    /// Takes an embedding table, or refuses it by name.
    fn bind_table(&self, table: Weight) -> Result<Self::Table, OpError>;

    /// Takes a vector of factors.
    fn bind_vector(&self, values: Vec<f32>) -> Result<Self::Vector, OpError>;

    /// Takes a rotary encoding. Its angles are computed here or when their
    /// positions first occur, once for all passes and layers.
    fn bind_rope(&self, rope: RopeSpec) -> Result<Self::Rope, OpError>;

    /// The matrices of a set, in its order.
    fn matrices(&self, set: &Self::Set) -> Vec<MatrixInfo>;

    /// The table.
    fn table(&self, table: &Self::Table) -> MatrixInfo;

    /// Values of a vector.
    fn vector_len(&self, vector: &Self::Vector) -> usize;

    /// Values in a row of a buffer.
    fn width(&self, buffer: &Self::Buffer) -> usize;

    /// The plan of a batch.
    fn plan<'a>(&self, batch: &'a Self::Batch<'_>) -> &'a Plan;

    /// A buffer of zeros, if there is memory for it.
    fn buffer(&self, rows: usize, width: usize) -> Result<Self::Buffer, OpError>;

    /// Overwrites the buffer from its beginning.
    fn write(&self, buffer: &mut Self::Buffer, values: &[f32]) -> Result<(), OpError>;

    /// The first `rows` rows of a buffer, once everything that was asked for
    /// before is done: the one wait of a pass, and where an error that a device
    /// found since the last one surfaces. Borrowed where the host can see them.
    fn read<'a>(&self, buffer: &'a Self::Buffer, rows: usize) -> Result<Cow<'a, [f32]>, OpError>;

    /// Chooses tokens from rows of logits: for each pair (row, choice), stores the
    /// outcome in the choice ([`crate::choose`]). Waits like
    /// [`read`](Self::read), and returns what a device found late.
    ///
    /// A row that no token can be chosen from is an outcome, not an error of the
    /// call: the other choices are made. The default reads the logits and chooses
    /// on the host. A backend that chooses elsewhere stores the same outcomes.
    fn choose(
        &self,
        logits: &Self::Buffer,
        choices: &mut [(usize, &mut Choice<'_>)],
    ) -> Result<(), OpError> {
        let rows = choices.iter().map(|(row, _)| row + 1).max();
        let values = self.read(logits, rows.unwrap_or(0))?;
        let width = self.width(logits);
        for (row, choice) in choices {
            choice.choose(&values[*row * width..][..width]);
        }
        Ok(())
    }

    /// The empty cache of one sequence: a layout for each layer, all of one
    /// context. It takes no pages before a batch needs them.
    fn kv(&self, layers: &[KvLayout]) -> Self::Kv;

    /// Prepares a batch: all that a pass uploads, and room in each sequence's
    /// cache for its rows. `kv` has one cache for each run of the plan.
    ///
    /// # Errors
    /// Before any work: a position that a cache is not laid out for, or that
    /// would leave a gap behind what is stored; no memory for the pages. The
    /// caches hold what they held then.
    fn batch<'kv>(
        &self,
        plan: Plan,
        kv: Vec<&'kv mut Self::Kv>,
    ) -> Result<Self::Batch<'kv>, OpError>;

    /// Does a pass over a batch. `pass` may be left out where one of this name
    /// was recorded: then what was recorded runs, on this batch.
    fn record<'kv>(
        &self,
        name: Recording,
        batch: &mut Self::Batch<'kv>,
        pass: &mut dyn FnMut(&mut Self::Batch<'kv>) -> Result<(), OpError>,
    ) -> Result<(), OpError> {
        let _ = name;
        pass(batch)
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

    /// Copies the rows that the batch keeps, of `src` with all its rows, to the
    /// beginning of `dst`.
    fn gather(
        &self,
        batch: &Self::Batch<'_>,
        src: &Self::Buffer,
        dst: &mut Self::Buffer,
    ) -> Result<(), OpError>;

    /// Embedding rows of the batch's tokens: [`crate::embed`].
    fn embed(
        &self,
        batch: &Self::Batch<'_>,
        table: &Self::Table,
        out: &mut Self::Buffer,
    ) -> Result<(), OpError>;

    /// The matrices `which` of a projection set, one dispatch:
    /// [`crate::project`].
    fn project(
        &self,
        rows: usize,
        set: &Self::Set,
        which: Range<usize>,
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

    /// `x += y`: [`crate::elementwise::add`].
    fn add(&self, rows: usize, x: &mut Self::Buffer, y: &Self::Buffer) -> Result<(), OpError>;

    /// Rotates each head of these rows of the batch in place, by its position:
    /// [`crate::rope`](mod@crate::rope).
    fn rope(
        &self,
        batch: &Self::Batch<'_>,
        subset: Subset,
        rope: &Self::Rope,
        x: &mut Self::Buffer,
    ) -> Result<(), OpError>;

    /// Stores K and V of all the batch's rows in the caches' layer `layer`, as
    /// f16, then computes attention of the rows `subset`, of which there may be
    /// none: [`crate::attention`](mod@crate::attention).
    ///
    /// `k` and `v` hold all rows; `q` and `out` hold the subset.
    #[expect(clippy::too_many_arguments, reason = "attention reads three inputs")]
    fn attention(
        &self,
        batch: &mut Self::Batch<'_>,
        layer: usize,
        desc: &Attention,
        subset: Subset,
        q: &Self::Buffer,
        k: &Self::Buffer,
        v: &Self::Buffer,
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
