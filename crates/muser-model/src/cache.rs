//! What one sequence keeps between forward passes: K and V of its positions,
//! and the buffers that a pass works in.

use crate::Spec;
use muser_ops::{Backend, OpError, attention::CHUNK};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// One sequence's KV cache: a ring on sliding layers, growing on full ones.
pub struct Cache<B: Backend> {
    /// The model that made it, by identity.
    pub(crate) config: Arc<Spec>,
    pub(crate) kv: B::Kv,
    pub(crate) context: usize,
    /// Rows of the widest micro-batch.
    max_batch: usize,
    /// Positions that count.
    pub(crate) len: usize,
    /// One past the highest position ever stored: what the rings have
    /// overwritten follows from it, whatever was cut off since.
    pub(crate) high: usize,
    /// Buffers of passes over this sequence alone; made by the first of them.
    pub(crate) work: Option<Box<Workspace<B>>>,
}

impl<B: Backend> Cache<B> {
    pub(crate) fn new(backend: &B, config: &Arc<Spec>, context: usize, max_batch: usize) -> Self {
        let layout = |i| config.kv_layout(i, context, max_batch);
        let layouts: Vec<_> = (0..config.layers.len()).map(layout).collect();
        Self {
            config: Arc::clone(config),
            kv: backend.kv(&layouts),
            context,
            max_batch,
            len: 0,
            high: 0,
            work: None,
        }
    }

    /// As if these positions were stored, for a pass that computes nothing.
    pub(crate) fn pretend(&mut self, positions: usize) {
        self.len = positions.min(self.context);
        self.high = self.len;
    }

    /// Positions stored.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether no position is stored.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Positions that there is room for, the stored ones included.
    pub fn context(&self) -> usize {
        self.context
    }

    /// Bytes of K and V held, in whole chunks of 64 positions.
    pub fn bytes(&self) -> u64 {
        kv_bytes(&self.config, self.context, self.max_batch, self.high)
    }

    /// Cuts the sequence back to its first `to` positions. `true`: that many
    /// are now stored. `false`, and nothing changed: there are not that many,
    /// or the ring of a sliding layer no longer holds what a token at position
    /// `to` sees.
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

    /// Forgets all positions. Memory is kept for the next ones.
    pub fn clear(&mut self) {
        self.len = 0;
        self.high = 0;
    }

    /// Whether a token at `position` finds what it sees of those before it.
    pub(crate) fn holds(&self, position: usize) -> bool {
        let layout = |i| self.config.kv_layout(i, self.context, self.max_batch);
        position == 0 || (0..self.config.layers.len()).all(|i| layout(i).holds(position, self.high))
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

/// Bytes of the chunks that `stored` positions take, over all layers.
pub(crate) fn kv_bytes(config: &Spec, context: usize, max_batch: usize, stored: usize) -> u64 {
    let layer = |i| {
        let layout = config.kv_layout(i, context, max_batch);
        let chunks = stored.div_ceil(CHUNK).min(layout.chunks());
        (chunks as u64).saturating_mul(layout.chunk_bytes() as u64)
    };
    (0..config.layers.len())
        .map(layer)
        .fold(0, u64::saturating_add)
}

/// Another sequence with the same past, which costs no copy of it: the storage
/// of K and V is shared until one of the two writes to it.
impl<B: Backend> Clone for Cache<B> {
    fn clone(&self) -> Self {
        Self {
            config: Arc::clone(&self.config),
            kv: self.kv.clone(),
            context: self.context,
            max_batch: self.max_batch,
            len: self.len,
            high: self.high,
            work: None,
        }
    }
}

/// The room that passes work in: activations of one micro-batch.
///
/// It is taken by the first pass, grows to the widest batch seen and stays:
/// decode allocates none.
pub struct Workspace<B: Backend> {
    /// The model that made it, by identity.
    pub(crate) config: Arc<Spec>,
    buffers: Option<Buffers<B>>,
}

/// Activations, `[rows, width]` each.
pub(crate) struct Buffers<B: Backend> {
    /// No other buffers of this process have the same number.
    pub(crate) id: u64,
    rows: usize,
    head_rows: usize,
    /// The residual stream.
    pub(crate) x: B::Buffer,
    /// A normed input, and the output of the projection back to hidden width.
    pub(crate) h: B::Buffer,
    /// Where rows are moved to the front.
    pub(crate) tail: B::Buffer,
    pub(crate) q: B::Buffer,
    pub(crate) k: B::Buffer,
    pub(crate) v: B::Buffer,
    pub(crate) gate: B::Buffer,
    pub(crate) attended: B::Buffer,
    pub(crate) ffn_gate: B::Buffer,
    pub(crate) ffn_up: B::Buffer,
    /// Logits of one slice of the head.
    pub(crate) logits: B::Buffer,
}

impl<B: Backend> Buffers<B> {
    fn new(b: &B, config: &Spec, rows: usize, head_rows: usize) -> Result<Self, OpError> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let buffer = |width| b.buffer(rows, width);
        Ok(Self {
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            rows,
            head_rows,
            x: buffer(config.hidden)?,
            h: buffer(config.hidden)?,
            tail: buffer(config.hidden)?,
            q: buffer(config.attention_width())?,
            k: buffer(config.kv_width())?,
            v: buffer(config.kv_width())?,
            gate: buffer(config.attention_width())?,
            attended: buffer(config.attention_width())?,
            ffn_gate: buffer(config.ffn_width())?,
            ffn_up: buffer(config.ffn_width())?,
            logits: b.buffer(head_rows, config.vocab)?,
        })
    }
}

impl<B: Backend> Workspace<B> {
    pub(crate) fn new(config: &Arc<Spec>) -> Self {
        Self {
            config: Arc::clone(config),
            buffers: None,
        }
    }

    /// Buffers of at least `rows` rows, and for the logits of `head_rows` at
    /// once.
    pub(crate) fn reserve(
        &mut self,
        backend: &B,
        rows: usize,
        head_rows: usize,
    ) -> Result<&mut Buffers<B>, OpError> {
        // What is too small goes before its successor comes: both at once might
        // be more than there is.
        let (mut rows, mut head_rows) = (rows, head_rows.max(1));
        let mut kept = self.buffers.take();
        if let Some(old) = kept.take_if(|b| b.rows < rows || b.head_rows < head_rows) {
            (rows, head_rows) = (rows.max(old.rows), head_rows.max(old.head_rows));
        }
        let buffers = match kept {
            Some(buffers) => buffers,
            None => Buffers::new(backend, &self.config, rows, head_rows)?,
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
