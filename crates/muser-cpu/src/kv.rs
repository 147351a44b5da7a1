//! The KV cache of one layer: chunks of 64 positions, made when first needed.
//!
//! ```text
//! chunk c lies in slot c % slots            slots: KvLayout::chunks
//! slot:  K [kv_head][dimension][position]   f16
//!        V [kv_head][position][dimension]   f16, dimensions padded to 64
//! ```
//!
//! A clone shares the chunks; the first write to a shared one copies it.
//!
//! On a sliding layer the slots are a ring; on a full layer there is one for
//! every chunk of the context and only those in use have memory.

use muser_ops::attention::CHUNK;
use muser_ops::{KvLayout, OpError};
use std::sync::Arc;

/// Dimensions of V are padded to a multiple of this, so that every level works
/// in whole blocks.
pub(crate) const PAD: usize = 64;

/// One layer's cache.
#[derive(Clone, Debug)]
pub struct Kv {
    layout: KvLayout,
    padded: usize,
    slots: Vec<Arc<Vec<u16>>>,
    /// One past the highest position ever stored.
    end: usize,
}

impl Kv {
    /// An empty cache.
    pub(crate) fn new(layout: KvLayout) -> Self {
        let padded = layout.head_dim.next_multiple_of(PAD);
        Self {
            layout,
            padded,
            slots: vec![Arc::default(); layout.chunks()],
            end: 0,
        }
    }

    /// The layout.
    pub(crate) fn layout(&self) -> &KvLayout {
        &self.layout
    }

    /// One past the highest position ever stored.
    pub(crate) fn end(&self) -> usize {
        self.end
    }

    fn head_len(&self) -> usize {
        (self.layout.head_dim + self.padded) * CHUNK
    }

    /// The K chunk and the V row of a head at `position`, for writing.
    pub(crate) fn slot_mut(
        &mut self,
        position: usize,
        head: usize,
    ) -> Result<(&mut [u16], &mut [u16]), OpError> {
        let context = self.layout.context;
        if position >= context {
            return Err(OpError::Position { position, context });
        }
        let (head_len, heads) = (self.head_len(), self.layout.kv_heads);
        let slots = self.slots.len();
        let slot = Arc::make_mut(&mut self.slots[position / CHUNK % slots]);
        if slot.is_empty() {
            slot.resize(heads * head_len, 0);
        }
        self.end = self.end.max(position + 1);
        let (k, v) = slot[head * head_len..][..head_len].split_at_mut(self.layout.head_dim * CHUNK);
        Ok((
            k,
            &mut v[position % CHUNK * self.padded..][..self.layout.head_dim],
        ))
    }

    /// One head's view of the cache.
    pub(crate) fn head(&self, head: usize) -> HeadView<'_> {
        HeadView { kv: self, head }
    }
}

/// One KV head of a layer.
pub(crate) struct HeadView<'a> {
    kv: &'a Kv,
    head: usize,
}

impl HeadView<'_> {
    /// Dimensions of a row of V, with padding.
    pub(crate) fn padded_dim(&self) -> usize {
        self.kv.padded
    }

    /// K `[dimension][64]` and V `[64][padded dimension]` of a chunk that holds
    /// a stored position.
    pub(crate) fn chunk(&self, chunk: usize) -> (&[u16], &[u16]) {
        let n = self.kv.head_len();
        let slot = &self.kv.slots[chunk % self.kv.slots.len()];
        slot[self.head * n..][..n].split_at(self.kv.layout.head_dim * CHUNK)
    }
}
