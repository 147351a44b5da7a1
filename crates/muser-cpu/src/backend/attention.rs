//! Stores K and V in the cache, and computes the strict lane's attention (muser's own
//! arithmetic), cut into tasks for the team of threads.
//!
//! The tasks of all sequences in a batch are one pool. A task is one query row with one
//! KV head. Where one task would be longer than a thread's share, as at decode with a
//! long context, rows are also cut by chunks (64 cached positions). The cut does not
//! change the result: a chunk's partial result is the same on any thread, and they are
//! merged in order.

use super::{Batch, Cpu, Shared};
use crate::kernels::attention::{ChunkSpan, part_len};
use crate::kv::{Layer, PAD};
use crate::rows::{for_chunks, for_parts};
use muser_ops::attention::CHUNK;
use muser_ops::{Attention, OpError, Subset};
use std::ops::Range;

/// The number of chunks (64 cached positions each) from which on attention cuts a context
/// into several tasks. For fewer chunks, giving the threads a second set of tasks, which
/// merges the chunks, would cost more than the cut gains.
const CUT_FROM: usize = 8;
/// The number of attention tasks for each thread when a long context is cut into tasks.
/// With several short tasks, the other threads wait less for one that has fallen
/// behind.
const TASKS: usize = 4;
/// The number of values of K below which the calling thread alone stores them in the
/// cache: giving tasks to the team would cost more.
const STORE_ALONE: usize = 16 << 10;

/// The rows of K and V of one KV head that a batch stores in one page (64 positions) of
/// the KV cache.
struct Store<'a> {
    k: &'a mut [u16],
    v: &'a mut [u16],
    head: usize,
    /// The batch's rows whose K and V are stored in this page of the KV cache.
    rows: Range<usize>,
    /// The place (0 to 63), in the page of the KV cache, of the first row that is
    /// stored.
    slot: usize,
}

/// A query row of attention: its position, and the KV cache pages of its sequence.
struct Query<'a> {
    p: usize,
    kv: &'a Layer,
}

impl Query<'_> {
    /// Returns the chunks (64 cached positions each) that have a position visible to the
    /// query.
    fn chunks(&self, desc: &Attention) -> Range<usize> {
        desc.first_visible(self.p) / CHUNK..self.p / CHUNK + 1
    }
}

/// Returns the query rows of a subset of the batch, in order, each with the KV cache
/// pages of its sequence in one layer.
fn queries<'a>(
    batch: &'a Batch<'_>,
    layer: usize,
    subset: Subset,
) -> Result<Vec<Query<'a>>, OpError> {
    let mut all = Vec::with_capacity(batch.plan.count(subset));
    for span in batch.plan.spans(subset) {
        let kv = batch.kv[span.sequence].layer(layer)?;
        let positions = span.first..span.first + span.rows;
        all.extend(positions.map(|p| Query { p, kv }));
    }
    Ok(all)
}

impl Cpu {
    /// Stores the batch's rows of K and V in the KV cache pages of a layer.
    pub(super) fn store(
        &self,
        batch: &mut Batch<'_>,
        layer: usize,
        desc: &Attention,
        k: &[f32],
        v: &[f32],
    ) -> Result<(), OpError> {
        let (d, width) = (desc.head_dim, desc.kv_heads * desc.head_dim);
        let padded = d.next_multiple_of(PAD);
        let mut stores = Vec::new();
        for (span, kv) in batch.plan.spans(Subset::All).zip(&mut batch.kv) {
            let (first, end) = (span.first, span.first + span.rows);
            let chunks = first / CHUNK..end.div_ceil(CHUNK);
            for (chunk, heads) in kv.layer_mut(layer)?.pages_mut(chunks) {
                let from = first.max(chunk * CHUNK);
                let to = end.min((chunk + 1) * CHUNK);
                let rows = span.at + from - first..span.at + to - first;
                stores.extend(heads.enumerate().map(|(head, (k, v))| Store {
                    k,
                    v,
                    head,
                    rows: rows.clone(),
                    slot: from % CHUNK,
                }));
            }
        }
        let store = |to: &mut Store<'_>| {
            for (r, slot) in to.rows.clone().zip(to.slot..) {
                let at = r * width + to.head * d;
                let v_row = &mut to.v[slot * padded..][..d];
                let (k, v) = (&k[at..][..d], &v[at..][..d]);
                self.table.kv_store(k, v, slot, to.k, v_row);
            }
        };
        if k.len() < STORE_ALONE {
            stores.iter_mut().for_each(store);
        } else {
            let team = &mut self.lock().team;
            for_chunks(team, &mut stores, 1, |_, s| s.iter_mut().for_each(store));
        }
        Ok(())
    }

    /// Computes the strict lane's attention (muser's own arithmetic) for the query rows
    /// of a subset of the batch. `q` and `out` hold these rows only.
    pub(super) fn attention_strict(
        &self,
        batch: &Batch<'_>,
        layer: usize,
        desc: &Attention,
        subset: Subset,
        q: &[f32],
        out: &mut [f32],
    ) -> Result<(), OpError> {
        let queries = queries(batch, layer, subset)?;
        let heads = desc.kv_heads;
        let row = desc.heads / heads.max(1) * desc.head_dim;
        let seen = queries.iter().map(|of| of.chunks(desc).len());
        let longest = seen.clone().max().unwrap_or(0);
        let all = seen.sum::<usize>() * heads;
        if longest < CUT_FROM || longest * self.threads <= all {
            for_chunks(&mut self.lock().team, out, row, |i, out| {
                let Query { p, kv } = queries[i / heads];
                let q = &q[i * row..][..row];
                self.table.attention(desc, p, q, &kv.head(i % heads), out);
            });
        } else {
            self.attention_cut(&queries, all.div_ceil(TASKS * self.threads), desc, q, out);
        }
        Ok(())
    }

    /// Computes attention with each query row's context cut into spans of at most
    /// `length` chunks (64 cached positions each), and merges the partial results.
    fn attention_cut(
        &self,
        queries: &[Query<'_>],
        length: usize,
        desc: &Attention,
        q: &[f32],
        out: &mut [f32],
    ) {
        let (d, heads) = (desc.head_dim, desc.kv_heads);
        let (group, padded) = (desc.heads / heads, d.next_multiple_of(PAD));
        let (row, part) = (group * d, part_len(group, padded));
        // The order of the partial results: by row, then KV head, then chunk.
        let (mut tasks, mut ends, mut starts) = (Vec::new(), Vec::new(), Vec::new());
        let mut end = 0;
        for (r, of) in queries.iter().enumerate() {
            let chunks = of.chunks(desc);
            for head in 0..heads {
                starts.push(end * part);
                for from in chunks.clone().step_by(length) {
                    let span = from..chunks.end.min(from + length);
                    end += span.len();
                    ends.push(end * part);
                    tasks.push((r, head, span));
                }
            }
        }
        starts.push(end * part);
        let Shared { team, operands } = &mut *self.lock();
        let parts = &mut operands.parts;
        parts.resize(end * part, 0.0);
        for_parts(team, parts, &ends, |i, out| {
            let (r, head, chunks) = tasks[i].clone();
            let Query { p, kv } = queries[r];
            let q = &q[(r * heads + head) * row..][..row];
            let span = ChunkSpan { p, chunks };
            self.table
                .attention_span(desc, &span, q, &kv.head(head), out);
        });
        let parts = &*parts;
        for_chunks(team, out, d, |i, out| {
            let (place, head) = (i / group, i % group);
            let parts = &parts[starts[place]..starts[place + 1]];
            self.table.attention_merge(parts, group, padded, head, out);
        });
    }
}
