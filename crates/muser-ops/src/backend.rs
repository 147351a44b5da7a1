//! [`Backend`]: the operations that a model's forward pass calls, whatever hardware
//! computes them.

use crate::{
    Attention, Choice, KvLayout, Lane, Matrix, MatrixInfo, OpError, Plan, RopeSpec, Subset, Weight,
};
use std::borrow::Cow;
use std::ops::Range;

/// The description of a backend (the code that computes a model's operations), for
/// people and records.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackendInfo {
    /// The backend's name: `oracle`, `cpu`, …
    pub name: &'static str,
    /// The lane that the backend computes: muser's own arithmetic or llama.cpp's.
    pub lane: Lane,
    /// The instruction set or device that the backend's kernels run on: `scalar`,
    /// `avx2`, `avx512`, …
    pub level: String,
    /// The number of threads that share the backend's work.
    pub threads: usize,
}

/// The sizes of the pieces that a long call of the forward pass is cut into:
/// micro-batches, and slices of logits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// The largest number of rows (tokens) in a micro-batch, the most that a forward
    /// pass computes at once.
    pub micro_batch: usize,
    /// The number of rows of logits that the output projection computes at once, a
    /// multiple of 4. A last slice of a few rows is joined to the slice before it. By
    /// these two rules a slice takes the same kernels in the pinned lane (llama.cpp's
    /// arithmetic) as all rows at once would.
    pub head_rows: usize,
}

impl Sizes {
    /// Returns, for a lane (strict or pinned arithmetic), the sizes of the pieces that a
    /// long call is cut into: the lane's micro-batch, and 64 rows of logits, which are 52
    /// MB at a vocabulary of 202,048.
    pub fn of(lane: Lane) -> Self {
        Self {
            micro_batch: lane.micro_batch(),
            head_rows: 64,
        }
    }
}

/// A stage of the forward pass (embedding, attention or FFN of a layer, head). Backends
/// are told the current one for the hooks that measure each stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Stage {
    /// The stage at the start: the tokens' embeddings, their scale and their norm.
    Embed,
    /// The first half of the layer of this index: attention with its norms and
    /// projections.
    Attention(usize),
    /// The second half of the layer of this index: the FFN with its norms.
    Ffn(usize),
    /// The stage at the end: the last norm, the projection to logits and their cap.
    Head,
}

/// The name by which a backend finds a recorded forward pass again. Two passes with the
/// same name call the same operations on the same buffers with the same numbers of rows;
/// they differ only in their batches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Recording {
    /// The number that identifies the set of buffers in which the recorded pass works,
    /// and by that the model. It is never reused within a process.
    pub buffers: u64,
    /// The number of rows (tokens) in the recorded pass's batch.
    pub rows: usize,
    /// The number of kept rows (rows whose outputs are read) in the recorded pass's
    /// batch.
    pub keep: usize,
    /// Whether the recorded forward pass computes logits.
    pub logits: bool,
}

/// The trait of a backend: the operations of a model's forward pass over buffers that
/// the backend owns.
///
/// A buffer of activations is `[rows, width]` f32, row after row; row r holds the values
/// of row r of the batch. An operation reads and writes the first `rows` rows of its
/// buffers and nothing else. The module of each operation's oracle function (the scalar
/// function that defines its bits) defines its result. A backend equals the oracle bit
/// for bit, or is wrong; only the payload of a NaN is undefined.
///
/// # Order and waiting
///
/// The operations of a backend take effect in the order of their calls. A call may
/// return before its work is done: a device enqueues it. [`read`](Self::read) and
/// [`choose`](Self::choose) wait for the work before them and return the errors that a
/// device found since the last wait; [`write`](Self::write) may wait for space.
/// Everything that can be checked is refused earlier: formats and shapes when a weight
/// is bound, memory and positions by [`batch`](Self::batch), before any work of the
/// pass.
///
/// # What varies
///
/// Everything that differs between two forward passes of one shape is in the [`Plan`] of
/// a [`Batch`](Self::Batch): the tokens, their positions, the sequence of each row, and
/// the rows that are kept (whose outputs are read). So a pass can be recorded once and
/// replayed on other batches ([`record`](Self::record)).
///
/// Every method of a backend takes `&self`, so that sessions can share one backend. A
/// backend with state of its own locks it.
pub trait Backend: Send + Sync + 'static {
    /// A buffer of activations, `[rows, width]` f32, in the backend's memory.
    type Buffer: Send;
    /// A projection set: weight matrices that multiply the same input, prepared for this
    /// backend.
    type Set: Send + Sync;
    /// An embedding table, prepared for this backend.
    type Table: Send + Sync;
    /// A vector of factors (norm weights), prepared for this backend.
    type Vector: Send + Sync;
    /// A rotary position encoding, prepared for this backend.
    type Rope: Send + Sync;
    /// The KV cache of one sequence: K and V of all layers. A clone is another sequence
    /// with the same past; later writes to one of them do not change the other. Cloning
    /// should be cheap: a backend shares pages until one of their owners writes.
    type Kv: Send + Clone;
    /// A batch: its plan (tokens, positions, rows whose outputs are read) in the
    /// backend's own form, with exclusive use of the KV caches of its sequences.
    type Batch<'kv>;

    /// Returns a description of the backend: its name, arithmetic, instruction set and
    /// threads.
    fn info(&self) -> BackendInfo;

    /// Returns the sizes of micro-batches and slices of logits that long calls are cut
    /// into. In the pinned lane (llama.cpp's arithmetic) the size of a micro-batch
    /// changes the bits of results, so there a backend keeps [`Sizes::of`].
    fn sizes(&self) -> Sizes {
        Sizes::of(self.info().lane)
    }

    /// Tells the backend to which part of the forward pass the operations from here on
    /// belong. No result depends on it; the profiler ([`crate::profiler`]) records it.
    fn mark(&self, stage: Stage) {
        let _ = stage;
    }

    /// Prepares a projection set (weight matrices that multiply the same input) for the
    /// backend. Copies nothing where the device reads host memory.
    ///
    /// # Errors
    /// A format, shape or bias without a kernel, by the tensor's name; no memory.
    fn bind_set(&self, set: Vec<Matrix>) -> Result<Self::Set, OpError>;

    /// Prepares an embedding table for the backend.
    ///
    /// # Errors
    /// Those of [`bind_set`](Self::bind_set).
    fn bind_table(&self, table: Weight) -> Result<Self::Table, OpError>;

    /// Prepares a vector of factors (norm weights) for the backend.
    ///
    /// # Errors
    /// No memory.
    fn bind_vector(&self, values: Vec<f32>) -> Result<Self::Vector, OpError>;

    /// Prepares a rotary position encoding for the backend. Its angles are computed once
    /// for all passes and layers: here, or when their positions first occur.
    ///
    /// # Errors
    /// An encoding that the backend does not compute; no memory.
    fn bind_rope(&self, rope: RopeSpec) -> Result<Self::Rope, OpError>;

    /// Returns names, shapes and sizes of the matrices in a projection set, in the order
    /// in which they were bound.
    fn matrices(&self, set: &Self::Set) -> Vec<MatrixInfo>;

    /// Returns the name, shape and size of an embedding table.
    fn table(&self, table: &Self::Table) -> MatrixInfo;

    /// Returns the number of values in a bound vector of norm weights.
    fn vector_len(&self, vector: &Self::Vector) -> usize;

    /// Returns the width of a buffer of activations: the number of values in a row.
    fn width(&self, buffer: &Self::Buffer) -> usize;

    /// Returns the plan of a batch: its tokens, their positions and sequences, and the
    /// rows whose outputs are read.
    fn plan<'a>(&self, batch: &'a Self::Batch<'_>) -> &'a Plan;

    /// Allocates a buffer of activations in the backend's memory, all zeros.
    ///
    /// # Errors
    /// No memory.
    fn buffer(&self, rows: usize, width: usize) -> Result<Self::Buffer, OpError>;

    /// Copies `values` from the host over the first values of a buffer of activations.
    ///
    /// # Errors
    /// More values than the buffer has.
    fn write(&self, buffer: &mut Self::Buffer, values: &[f32]) -> Result<(), OpError>;

    /// Waits for the backend's operations before this call and returns the first `rows`
    /// rows of a buffer of activations, borrowed where the host can see them.
    ///
    /// # Errors
    /// Fewer rows in the buffer; an error that a device found since the last wait.
    fn read<'a>(&self, buffer: &'a Self::Buffer, rows: usize) -> Result<Cow<'a, [f32]>, OpError>;

    /// Chooses tokens from rows of logits: for each pair of a row's index and a
    /// [`Choice`] (a sampler with one token to choose), stores in the choice the token or
    /// the error ([`crate::choose`]). Waits like [`read`](Self::read).
    ///
    /// The default reads the logits and chooses on the host. A backend that chooses
    /// elsewhere must store the same outcomes.
    ///
    /// # Errors
    /// Those of [`read`](Self::read). A row from which no token can be chosen is an
    /// outcome and no error of the call: the other choices are made.
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

    /// Makes the empty KV cache of one sequence, from the layout of each layer; all have
    /// the same context. It takes no memory pages before a batch needs them.
    fn kv(&self, layers: &[KvLayout]) -> Self::Kv;

    /// Prepares a batch for a forward pass: uploads the plan, and takes the memory pages
    /// that its rows need in the KV cache of each sequence. `kv` has one cache for each
    /// run (one sequence's rows) of the plan.
    ///
    /// # Errors
    /// A position outside the layout of a cache, or one that would leave a gap
    /// after the stored positions; no memory for the pages. The caches are unchanged
    /// then.
    fn batch<'kv>(
        &self,
        plan: Plan,
        kv: Vec<&'kv mut Self::Kv>,
    ) -> Result<Self::Batch<'kv>, OpError>;

    /// Runs a forward pass over a batch, by calling `pass`. Where a pass of this name
    /// was recorded, a backend may replay the recording on this batch instead.
    ///
    /// # Errors
    /// Those of the operations in the pass.
    fn record<'kv>(
        &self,
        name: Recording,
        batch: &mut Self::Batch<'kv>,
        pass: &mut dyn FnMut(&mut Self::Batch<'kv>) -> Result<(), OpError>,
    ) -> Result<(), OpError> {
        let _ = name;
        pass(batch)
    }

    /// Copies `rows` rows of activations from `src`, beginning at its row `from`, to
    /// `dst`, beginning at its row `to`. The two buffers have the same width.
    fn copy_rows(
        &self,
        rows: usize,
        src: &Self::Buffer,
        from: usize,
        dst: &mut Self::Buffer,
        to: usize,
    ) -> Result<(), OpError>;

    /// Copies the batch's kept rows (rows whose outputs are read) to the first rows of
    /// `dst`. `src` holds all rows of the batch.
    fn gather(
        &self,
        batch: &Self::Batch<'_>,
        src: &Self::Buffer,
        dst: &mut Self::Buffer,
    ) -> Result<(), OpError>;

    /// Looks up the embedding row of each token of the batch: [`crate::embed`].
    /// `out` is `[rows of the batch, hidden]`.
    fn embed(
        &self,
        batch: &Self::Batch<'_>,
        table: &Self::Table,
        out: &mut Self::Buffer,
    ) -> Result<(), OpError>;

    /// Multiplies `rows` rows of activations by the matrices `which` of a projection
    /// set, in one call: [`crate::project`]. `out` has one buffer for each matrix, as
    /// wide as the matrix has rows.
    fn project(
        &self,
        rows: usize,
        set: &Self::Set,
        which: Range<usize>,
        x: &Self::Buffer,
        out: &mut [&mut Self::Buffer],
    ) -> Result<(), OpError>;

    /// Normalises each row of activations by its root mean square,
    /// `out = rms(x) · weight`: [`crate::norm`]. Without `weight` the factors are 1.
    fn rms_norm(
        &self,
        rows: usize,
        x: &Self::Buffer,
        weight: Option<&Self::Vector>,
        eps: f32,
        out: &mut Self::Buffer,
    ) -> Result<(), OpError>;

    /// Normalises each attention head of each row in place by its root mean square, like
    /// [`rms_norm`](Self::rms_norm). A head has as many values as `weight`.
    fn head_norm(
        &self,
        rows: usize,
        x: &mut Self::Buffer,
        weight: &Self::Vector,
        eps: f32,
    ) -> Result<(), OpError>;

    /// Adds a row normalised by its root mean square to a row of activations,
    /// `x += rms(y) · weight`: [`crate::norm::add_rms_norm`].
    fn add_rms_norm(
        &self,
        rows: usize,
        x: &mut Self::Buffer,
        y: &Self::Buffer,
        weight: &Self::Vector,
        eps: f32,
    ) -> Result<(), OpError>;

    /// Adds rows of activations, `x += y` (the residual sum):
    /// [`crate::elementwise::add`].
    fn add(&self, rows: usize, x: &mut Self::Buffer, y: &Self::Buffer) -> Result<(), OpError>;

    /// Applies the rotary encoding: rotates each head of the batch's rows `subset` in
    /// place, by the row's position: [`crate::rope`](mod@crate::rope). `x` holds the
    /// rows of the subset.
    fn rope(
        &self,
        batch: &Self::Batch<'_>,
        subset: Subset,
        rope: &Self::Rope,
        x: &mut Self::Buffer,
    ) -> Result<(), OpError>;

    /// Stores K and V of all rows of the batch as f16 in layer `layer` of the K/V
    /// caches, then computes attention for the rows `subset`, which may be none:
    /// [`crate::attention`](mod@crate::attention).
    ///
    /// The buffers `k` and `v` hold all rows, `[rows, kv_heads · head_dim]`; `q` and
    /// `out` hold the rows of the subset, `[rows, heads · head_dim]`.
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

    /// Gates rows of activations by the sigmoid of others, `x *= sigmoid(gate)`:
    /// [`crate::elementwise`].
    fn sigmoid_gate(
        &self,
        rows: usize,
        x: &mut Self::Buffer,
        gate: &Self::Buffer,
    ) -> Result<(), OpError>;

    /// Joins the gate and up projections of an FFN, `gate = silu(gate) · up`:
    /// [`crate::elementwise`].
    fn silu_product(
        &self,
        rows: usize,
        gate: &mut Self::Buffer,
        up: &Self::Buffer,
    ) -> Result<(), OpError>;

    /// Scales and caps logits in place, `x = cap · tanh(scale · x / cap)`, or
    /// `x = scale · x` without a cap: [`crate::elementwise::soft_cap`].
    fn soft_cap(
        &self,
        rows: usize,
        x: &mut Self::Buffer,
        scale: f32,
        cap: Option<f32>,
    ) -> Result<(), OpError>;
}
