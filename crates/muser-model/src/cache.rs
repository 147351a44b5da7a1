//! Holds the KV cache of one sequence, [`Cache`], and the activation buffers that a
//! forward pass works in, [`Workspace`].

use crate::Spec;
use muser_ops::{Backend, OpError, attention::CHUNK};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The KV cache of one sequence: a ring of the last positions on layers with a sliding
/// window, growing on the others.
pub struct Cache<B: Backend> {
    /// The spec of the model that made this KV cache; the same `Arc`, so that other
    /// models' caches are refused.
    pub(crate) spec: Arc<Spec>,
    pub(crate) kv: B::Kv,
    pub(crate) context: usize,
    /// Most rows of a micro-batch (the rows computed at once), for which rings (caches
    /// of the last positions only) leave space.
    max_batch: usize,
    /// Number of positions stored in the KV cache, less those that were truncated.
    pub(crate) len: usize,
    /// One past the highest position stored since this KV cache was last empty. It
    /// says what the rings of layers with a sliding window have overwritten, also after
    /// the sequence was truncated.
    pub(crate) high: usize,
    /// The activation buffers of forward passes over this sequence alone, made by the
    /// first of them.
    pub(crate) work: Option<Box<Workspace<B>>>,
}

impl<B: Backend> Cache<B> {
    pub(crate) fn new(backend: &B, spec: &Arc<Spec>, context: usize, max_batch: usize) -> Self {
        let layout = |i| spec.kv_layout(i, context, max_batch);
        let layouts: Vec<_> = (0..spec.layers.len()).map(layout).collect();
        Self {
            spec: Arc::clone(spec),
            kv: backend.kv(&layouts),
            context,
            max_batch,
            len: 0,
            high: 0,
            work: None,
        }
    }

    /// Counts positions of the KV cache as stored though they are not, for a forward
    /// pass that computes nothing.
    pub(crate) fn pretend(&mut self, positions: usize) {
        self.len = positions.min(self.context);
        self.high = self.len;
    }

    /// Returns the number of positions stored in the KV cache.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether the KV cache has no position stored.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the most positions that the KV cache can store.
    pub fn context(&self) -> usize {
        self.context
    }

    /// Returns the bytes of K and V that the cache holds, in whole chunks of 64
    /// positions.
    pub fn bytes(&self) -> u64 {
        kv_bytes(&self.spec, self.context, self.max_batch, self.high)
    }

    /// Truncates the cached sequence to its first `to` positions and returns `true`.
    /// Returns `false` and changes nothing if fewer are stored, or if the ring (the
    /// last positions) of a layer with a sliding window no longer holds all that a
    /// token at position `to` attends to.
    pub fn truncate(&mut self, to: usize) -> bool {
        if to > self.len || !self.holds(to) {
            return false;
        }
        if to == 0 {
            self.clear();
        }
        self.len = to;
        true
    }

    /// Removes all positions from the KV cache. The memory is kept for the next ones.
    pub fn clear(&mut self) {
        self.len = 0;
        self.high = 0;
    }

    /// Returns whether the KV cache of every layer still holds the positions before
    /// `position` that a token there attends to.
    pub(crate) fn holds(&self, position: usize) -> bool {
        let layout = |i| self.spec.kv_layout(i, self.context, self.max_batch);
        position == 0 || (0..self.spec.layers.len()).all(|i| layout(i).holds(position, self.high))
    }
}

impl<B: Backend> std::fmt::Debug for Cache<B> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cache")
            .field("len", &self.len)
            .field("context", &self.context)
            .field("bytes", &self.bytes())
            .finish_non_exhaustive()
    }
}

/// Returns the bytes of the KV cache's chunks (64 positions each) that `stored`
/// positions take in all layers.
pub(crate) fn kv_bytes(spec: &Spec, context: usize, max_batch: usize, stored: usize) -> u64 {
    let layer = |i| {
        let layout = spec.kv_layout(i, context, max_batch);
        let chunks = stored.div_ceil(CHUNK).min(layout.chunks());
        (chunks as u64).saturating_mul(layout.chunk_bytes() as u64)
    };
    (0..spec.layers.len())
        .map(layer)
        .fold(0, u64::saturating_add)
}

/// Clones a KV cache as another sequence with the same past. The two share K and V
/// until one of them writes.
impl<B: Backend> Clone for Cache<B> {
    fn clone(&self) -> Self {
        Self {
            spec: Arc::clone(&self.spec),
            kv: self.kv.clone(),
            context: self.context,
            max_batch: self.max_batch,
            len: self.len,
            high: self.high,
            work: None,
        }
    }
}

/// The buffers that forward passes work in: the activations of one micro-batch (the
/// rows computed at once).
///
/// The first pass allocates the buffers. They grow to the widest batch so far and stay,
/// so decoding allocates nothing.
pub struct Workspace<B: Backend> {
    /// The spec of the model that made this workspace; the same `Arc`, so that other
    /// models' workspaces are refused.
    pub(crate) spec: Arc<Spec>,
    buffers: Option<Buffers<B>>,
}

/// The activation buffers of one micro-batch (the rows computed at once), each of
/// `[rows, width]` values.
pub(crate) struct Buffers<B: Backend> {
    /// A number that no other set of buffers in this process has; a recorded forward
    /// pass names its buffers by it.
    pub(crate) id: u64,
    rows: usize,
    head_rows: usize,
    /// The residual stream of each row (token) of the micro-batch.
    pub(crate) x: B::Buffer,
    /// A buffer of the hidden width: the normed input of attention, FFN or head, and
    /// the projected output of attention and FFN.
    pub(crate) h: B::Buffer,
    /// Scratch space of the hidden width, through which rows of the residual stream and
    /// of normed inputs are copied.
    pub(crate) tail: B::Buffer,
    pub(crate) q: B::Buffer,
    pub(crate) k: B::Buffer,
    pub(crate) v: B::Buffer,
    pub(crate) gate: B::Buffer,
    pub(crate) attended: B::Buffer,
    pub(crate) ffn_gate: B::Buffer,
    pub(crate) ffn_up: B::Buffer,
    /// The logits of one head slice (the rows for which the output projection is
    /// computed at once).
    pub(crate) logits: B::Buffer,
}

impl<B: Backend> Buffers<B> {
    fn new(b: &B, spec: &Spec, rows: usize, head_rows: usize) -> Result<Self, OpError> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let buffer = |width| b.buffer(rows, width);
        Ok(Self {
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            rows,
            head_rows,
            x: buffer(spec.hidden)?,
            h: buffer(spec.hidden)?,
            tail: buffer(spec.hidden)?,
            q: buffer(spec.attention_width())?,
            k: buffer(spec.kv_width())?,
            v: buffer(spec.kv_width())?,
            gate: buffer(spec.attention_width())?,
            attended: buffer(spec.attention_width())?,
            ffn_gate: buffer(spec.ffn_width())?,
            ffn_up: buffer(spec.ffn_width())?,
            logits: b.buffer(head_rows, spec.vocab)?,
        })
    }
}

impl<B: Backend> Workspace<B> {
    pub(crate) fn new(spec: &Arc<Spec>) -> Self {
        Self {
            spec: Arc::clone(spec),
            buffers: None,
        }
    }

    /// Returns activation buffers of at least `rows` rows, with space for at least
    /// `head_rows` rows of logits.
    pub(crate) fn reserve(
        &mut self,
        backend: &B,
        rows: usize,
        head_rows: usize,
    ) -> Result<&mut Buffers<B>, OpError> {
        // Frees buffers that are too small before their successors are allocated:
        // memory may not hold both.
        let (mut rows, mut head_rows) = (rows, head_rows.max(1));
        let mut kept = self.buffers.take();
        if let Some(old) = kept.take_if(|b| b.rows < rows || b.head_rows < head_rows) {
            (rows, head_rows) = (rows.max(old.rows), head_rows.max(old.head_rows));
        }
        let buffers = match kept {
            Some(buffers) => buffers,
            None => Buffers::new(backend, &self.spec, rows, head_rows)?,
        };
        Ok(self.buffers.insert(buffers))
    }
}

impl<B: Backend> std::fmt::Debug for Workspace<B> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let rows = self.buffers.as_ref().map(|b| (b.rows, b.head_rows));
        f.debug_struct("Workspace")
            .field("rows", &rows)
            .finish_non_exhaustive()
    }
}
