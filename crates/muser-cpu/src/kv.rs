//! The KV cache of one sequence: pages of 64 positions from one pool.
//!
//! ```text
//! layer: the page of chunk c lies in slot c % slots    slots: KvLayout::chunks
//! page:  for each KV head:
//!            K [dimension][position]    f16
//!            V [position][dimension]    f16, dimensions padded to 64
//! ```
//!
//! A layer with a sliding window has a ring of slots whose pages are reused. A layer with
//! full attention has a slot for every chunk (64 positions) of the context; a slot gets
//! its page when it is first written. Pages are reference-counted: a clone of a cache
//! shares them, and the first batch that writes to a shared page copies it.
//!
//! [`prepare`] allocates all pages that a batch will write when the batch is made, so
//! that storing K and V cannot fail. Only when there is memory for all of them does any
//! cache change.

use muser_ops::attention::CHUNK;
use muser_ops::oracle::check_room;
use muser_ops::{KvLayout, OpError, Run};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The dimensions of V in the KV cache are padded to a multiple of this number, so that
/// kernels of every instruction-set level work in whole blocks.
pub(crate) const PAD: usize = 64;

/// Counts the bytes of all pages in a backend's KV caches, and limits them.
#[derive(Debug)]
pub(crate) struct Pool {
    limit: u64,
    used: AtomicU64,
}

/// A page of the KV cache: K and V, as f16, of 64 positions in one layer.
#[derive(Debug)]
struct Page {
    values: Vec<u16>,
    pool: Arc<Pool>,
}

impl Drop for Page {
    fn drop(&mut self) {
        let bytes = size_of_val(&self.values[..]) as u64;
        // Relaxed: the counter orders no access to memory.
        self.pool.used.fetch_sub(bytes, Ordering::Relaxed);
    }
}

impl Pool {
    /// Makes a pool that lets KV cache pages take at most `limit` bytes; `None` sets no
    /// limit.
    pub(crate) fn new(limit: Option<u64>) -> Arc<Self> {
        Arc::new(Self {
            limit: limit.unwrap_or(u64::MAX),
            used: AtomicU64::new(0),
        })
    }

    /// Returns the number of bytes that the pages of all KV caches take.
    pub(crate) fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }

    /// Allocates a page of the KV cache with `len` zeros, as f16.
    ///
    /// # Errors
    /// The limit would be exceeded, or there is no memory.
    fn page(self: &Arc<Self>, len: usize) -> Result<Page, OpError> {
        let bytes = (len * size_of::<u16>()) as u64;
        let refused = |left: String| OpError::Memory {
            what: "a page of the KV cache",
            bytes,
            left,
        };
        let more = |used: u64| used.checked_add(bytes).filter(|&n| n <= self.limit);
        let taken = self
            .used
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
        if let Err(used) = taken {
            let (left, limit) = (self.limit - used, self.limit);
            return Err(refused(format!("{left} of the pool's {limit}")));
        }
        let mut page = Page {
            values: Vec::new(),
            pool: Arc::clone(self),
        };
        if page.values.try_reserve_exact(len).is_err() {
            self.used.fetch_sub(bytes, Ordering::Relaxed);
            return Err(refused("no more memory".to_owned()));
        }
        page.values.resize(len, 0);
        Ok(page)
    }
}

/// The KV cache pages of one layer and one sequence.
#[derive(Clone, Debug)]
pub(crate) struct Layer {
    layout: KvLayout,
    padded: usize,
    slots: Vec<Option<Arc<Page>>>,
}

/// The KV cache of one sequence on the CPU.
#[derive(Clone, Debug)]
pub struct Kv {
    layouts: Vec<KvLayout>,
    layers: Vec<Layer>,
    pool: Arc<Pool>,
    /// One past the highest position whose K and V a batch has stored.
    end: usize,
}

impl Kv {
    /// Makes an empty KV cache for a model's layers.
    pub(crate) fn new(layers: &[KvLayout], pool: Arc<Pool>) -> Self {
        let layer = |&layout: &KvLayout| Layer {
            layout,
            padded: layout.head_dim.next_multiple_of(PAD),
            slots: vec![None; layout.chunks()],
        };
        Self {
            layouts: layers.to_vec(),
            layers: layers.iter().map(layer).collect(),
            pool,
            end: 0,
        }
    }

    /// Returns the KV cache pages of a layer.
    pub(crate) fn layer(&self, layer: usize) -> Result<&Layer, OpError> {
        let layers = self.layers.len();
        self.layers
            .get(layer)
            .ok_or_else(|| no_layer(layer, layers))
    }

    /// Returns the KV cache pages of a layer, for writing.
    pub(crate) fn layer_mut(&mut self, layer: usize) -> Result<&mut Layer, OpError> {
        let layers = self.layers.len();
        let found = self.layers.get_mut(layer);
        found.ok_or_else(|| no_layer(layer, layers))
    }
}

/// A newly allocated page for a batch, before it becomes part of the KV cache.
struct New {
    /// The index, among the KV caches of the batch, of the one that gets the page.
    cache: usize,
    layer: usize,
    chunk: usize,
    page: Page,
}

/// Allocates the KV cache pages in which a batch will store its rows, those of
/// `runs[i]` in `caches[i]`: pages that a cache does not have yet, and copies of those
/// that it shares with another cache.
///
/// # Errors
/// A cache has no room for the positions, or there is no memory. No cache has changed
/// then.
pub(crate) fn prepare(runs: &[Run], caches: &mut [&mut Kv]) -> Result<(), OpError> {
    // Empty in most passes, so that it takes nothing from the heap.
    let mut new = Vec::new();
    for (cache, (run, kv)) in runs.iter().zip(&*caches).enumerate() {
        check_room(run, &kv.layouts, kv.end)?;
        for (layer, of) in kv.layers.iter().enumerate() {
            for chunk in chunks(run).filter(|&chunk| !of.owns(chunk)) {
                let page = kv.pool.page(of.layout.kv_heads * of.head_len())?;
                new.push(New {
                    cache,
                    layer,
                    chunk,
                    page,
                });
            }
        }
    }
    for n in new {
        let begun = n.chunk * CHUNK >= runs[n.cache].first;
        caches[n.cache].layers[n.layer].put(n.chunk, begun, n.page);
    }
    for (run, kv) in runs.iter().zip(caches) {
        if run.rows > 0 {
            kv.end = kv.end.max(run.first + run.rows);
        }
    }
    Ok(())
}

/// Returns the error for the number of a layer that the KV cache does not have.
fn no_layer(layer: usize, layers: usize) -> OpError {
    OpError::Shape {
        op: "attention",
        what: "layers of the cache",
        expected: layer + 1,
        found: layers,
    }
}

/// Returns the chunks (64 positions each) of the KV cache in which these rows' positions
/// lie.
fn chunks(run: &Run) -> Range<usize> {
    let end = match run.rows {
        0 => run.first / CHUNK,
        rows => (run.first + rows).div_ceil(CHUNK),
    };
    run.first / CHUNK..end
}

impl Layer {
    /// Returns the layout of the layer's KV cache: its heads, head size and window.
    pub(crate) fn layout(&self) -> &KvLayout {
        &self.layout
    }

    /// Returns the number of f16 values that a KV cache page holds for one KV head.
    fn head_len(&self) -> usize {
        (self.layout.head_dim + self.padded) * CHUNK
    }

    /// Returns whether the layer's KV cache has a page of its own for the chunk (64
    /// positions), one that no other cache shares.
    fn owns(&self, chunk: usize) -> bool {
        let slot = &self.slots[chunk % self.slots.len()];
        slot.as_ref()
            .is_some_and(|page| Arc::strong_count(page) == 1)
    }

    /// Puts a new page in the KV cache slot of a chunk (64 positions), and copies the
    /// values of the page that was there. If `begun`, the batch writes the chunk from
    /// its first position on, and nothing is copied.
    fn put(&mut self, chunk: usize, begun: bool, mut page: Page) {
        let slots = self.slots.len();
        let slot = &mut self.slots[chunk % slots];
        if let Some(shared) = slot.as_ref().filter(|_| !begun) {
            page.values.copy_from_slice(&shared.values);
        }
        *slot = Some(Arc::new(page));
    }

    /// Returns the prepared KV cache pages of these chunks (64 positions each), for
    /// writing: for each head, K `[dimension][64]` and V `[64][padded dimension]`.
    pub(crate) fn pages_mut(
        &mut self,
        chunks: Range<usize>,
    ) -> impl Iterator<Item = (usize, impl Iterator<Item = (&mut [u16], &mut [u16])>)> {
        let (n, k_len) = (self.head_len(), self.layout.head_dim * CHUNK);
        let start = chunks.start % self.slots.len();
        let (before, from) = self.slots.split_at_mut(start);
        let slots = from.iter_mut().chain(before);
        chunks.zip(slots).map(move |(chunk, slot)| {
            let page = slot.as_mut().and_then(Arc::get_mut);
            let page = page.expect("`prepare` made the page this cache's own");
            let heads = page.values.chunks_exact_mut(n);
            (chunk, heads.map(move |head| head.split_at_mut(k_len)))
        })
    }

    /// Returns a view of one KV head's K and V in the layer's KV cache.
    pub(crate) fn head(&self, head: usize) -> HeadView<'_> {
        HeadView { layer: self, head }
    }
}

/// A view of one KV head's K and V in a layer's KV cache.
pub(crate) struct HeadView<'a> {
    layer: &'a Layer,
    head: usize,
}

impl HeadView<'_> {
    /// Returns the number of dimensions in a cached row of V, padding included.
    pub(crate) fn padded_dim(&self) -> usize {
        self.layer.padded
    }

    /// Returns the cached K `[dimension][64]` and V `[64][padded dimension]` of a chunk
    /// (64 positions), at least one position of which is stored.
    pub(crate) fn chunk(&self, chunk: usize) -> (&[u16], &[u16]) {
        let n = self.layer.head_len();
        let slot = &self.layer.slots[chunk % self.layer.slots.len()];
        let page = slot.as_deref().map_or(&[][..], |page| &page.values[..]);
        page[self.head * n..][..n].split_at(self.layer.layout.head_dim * CHUNK)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LAYOUT: KvLayout = KvLayout {
        kv_heads: 1,
        head_dim: 64,
        window: None,
        context: 256,
        max_batch: 64,
    };

    fn run(first: usize, rows: usize) -> Run {
        Run {
            first,
            rows,
            keep: 0,
        }
    }

    impl Kv {
        fn prepare(&mut self, run: &Run) -> Result<(), OpError> {
            prepare(&[*run], &mut [self])
        }
    }

    /// Refuses a batch of two sequences when the pool's limit leaves room for the first
    /// KV cache's page but not for the second one's.
    #[test]
    fn a_refused_batch_leaves_every_cache_as_it_was() {
        let page = LAYOUT.chunk_bytes() as u64;
        let pool = Pool::new(Some(3 * page));
        let [mut a, mut b] = [1, 1].map(|_| Kv::new(&[LAYOUT], Arc::clone(&pool)));
        a.prepare(&run(0, 64)).unwrap();
        b.prepare(&run(0, 64)).unwrap();
        let runs = [run(64, 1), run(64, 1)];
        prepare(&runs, &mut [&mut a, &mut b]).unwrap_err();
        assert_eq!(pool.used(), 2 * page);
        assert_eq!((a.end, b.end), (64, 64));
        assert!(a.layers[0].slots[1].is_none());
        drop(b);
        prepare(&runs[..1], &mut [&mut a]).unwrap();
        assert_eq!(a.end, 65);
    }

    #[test]
    fn pages_are_counted_shared_and_given_back() {
        let page = LAYOUT.chunk_bytes() as u64;
        let pool = Pool::new(Some(3 * page));
        let mut a = Kv::new(&[LAYOUT], Arc::clone(&pool));
        a.prepare(&run(0, 65)).unwrap();
        assert_eq!(pool.used(), 2 * page);
        let mut b = a.clone();
        assert_eq!(pool.used(), 2 * page, "a clone shares its pages");
        b.prepare(&run(65, 1)).unwrap();
        assert_eq!(pool.used(), 3 * page, "the page that is written is copied");
        // The next page exceeds the pool's limit.
        let error = b.prepare(&run(66, 64)).unwrap_err().to_string();
        let bytes = page;
        assert_eq!(
            error,
            format!(
                "a page of the KV cache: expected room for {bytes} bytes, found 0 of the pool's {}",
                3 * page
            )
        );
        drop(a);
        assert_eq!(pool.used(), 2 * page);
        b.prepare(&run(66, 64)).unwrap();
        drop(b);
        assert_eq!(pool.used(), 0);
    }

    #[test]
    fn writes_of_a_clone_and_of_its_original_are_separate() {
        let pool = Pool::new(None);
        let mut a = Kv::new(&[LAYOUT], pool);
        let put = |kv: &mut Kv, value: u16| {
            let mut pages = kv.layer_mut(0).unwrap().pages_mut(0..1);
            pages.next().unwrap().1.next().unwrap().0[0] = value;
        };
        let get = |kv: &Kv| kv.layer(0).unwrap().head(0).chunk(0).0[0];
        a.prepare(&run(0, 1)).unwrap();
        put(&mut a, 1);
        let mut b = a.clone();
        b.prepare(&run(1, 1)).unwrap();
        put(&mut b, 2);
        assert_eq!((get(&a), get(&b)), (1, 2));
        a.prepare(&run(1, 1)).unwrap();
        put(&mut a, 3);
        assert_eq!((get(&a), get(&b)), (3, 2));
    }

    #[test]
    fn gaps_and_positions_beyond_the_context_are_refused() {
        let mut kv = Kv::new(&[LAYOUT], Pool::new(None));
        assert!(kv.prepare(&run(1, 1)).is_err(), "position 0 is not stored");
        kv.prepare(&run(0, 64)).unwrap();
        assert!(
            kv.prepare(&run(64, 193)).is_err(),
            "one position beyond the context of 256"
        );
        kv.prepare(&run(64, 192)).unwrap();
        assert!(kv.layer(1).is_err());
    }
}
