//! Operations that the pinned lane (llama.cpp's arithmetic) cuts into tasks differently
//! from the strict lane.

use super::{Cpu, Shared};
use crate::kernels::pinned::attention::{Queries, Single};
use crate::kv::Layer;
use crate::rows::{for_chunks, for_parts};
use muser_ops::pinned::attention::{Form, form, tiles};
use muser_ops::{Attention, Profile};

/// The number of f32 values in one task of an operation that calls a math function
/// (such as exp) for every value.
pub(super) const TASK_CALLS: usize = 1 << 10;

impl Cpu {
    /// Computes attention in the pinned lane (llama.cpp's arithmetic) of the query rows
    /// in `q`, which begin at position `first`. The number of rows decides how: as
    /// single rows, with split contexts, or as tiles.
    pub(super) fn attention_pinned(
        &self,
        profile: Profile,
        desc: &Attention,
        first: usize,
        q: &[f32],
        kv: &Layer,
        out: &mut [f32],
    ) {
        let (d, width) = (desc.head_dim, desc.heads * desc.head_dim);
        let rows = q.len() / width;
        let end = first + rows;
        let group = desc.heads / desc.kv_heads;
        let shared = &mut *self.lock();
        let part = match form(rows, end, self.threads) {
            Form::Tiled => {
                let Shared { team, operands } = shared;
                let tiles = tiles(desc.heads, rows, self.threads);
                // The order of the tiles in `by_head`: by head, then row.
                let by_head = &mut operands.by_head;
                by_head.resize(q.len(), 0.0);
                let end_of =
                    |(head, tile): &(usize, std::ops::Range<usize>)| (head * rows + tile.end) * d;
                let ends: Vec<usize> = tiles.iter().map(end_of).collect();
                for_parts(team, by_head, &ends, |i, out| {
                    let (head, tile) = &tiles[i];
                    let queries = Queries {
                        q: &q[tile.start * width + head * d..],
                        stride: width,
                        rows: tile.len(),
                        first: first + tile.start,
                        end,
                    };
                    let kv = kv.head(head / group);
                    self.table.flash_tile(profile, desc, &queries, &kv, out);
                });
                for_chunks(team, out, width, |r, out| {
                    for (head, out) in out.chunks_exact_mut(d).enumerate() {
                        out.copy_from_slice(&by_head[(head * rows + r) * d..][..d]);
                    }
                });
                return;
            }
            Form::Split { part } => Some(part),
            Form::Single => None,
        };
        let (how, chunk) = (Single { profile, part }, group * d);
        for_chunks(&mut shared.team, out, chunk, |i, out| {
            let (r, head) = (i / desc.kv_heads, i % desc.kv_heads);
            let q = &q[i * chunk..][..chunk];
            let kv = kv.head(head);
            self.table.flash_single(how, desc, first + r, q, &kv, out);
        });
    }

    /// Computes the SiLU product in the pinned lane (llama.cpp's arithmetic). A single
    /// row is cut into tasks at whole vectors of llama.cpp's build; in a batch, each
    /// row is a task.
    pub(super) fn silu_product_pinned(
        &self,
        profile: Profile,
        width: usize,
        gate: &mut [f32],
        up: &[f32],
    ) {
        let chunk = if gate.len() == width {
            super::TASK_VALUES
        } else {
            width
        };
        let whole_of_row = width / profile.vector_width() * profile.vector_width();
        for_chunks(&mut self.lock().team, gate, chunk, |i, gate| {
            let at = i * chunk;
            let whole = (whole_of_row - (at % width).min(whole_of_row)).min(gate.len());
            self.table
                .silu_product_pinned(profile, whole, gate, &up[at..]);
        });
    }
}
