//! The pinned lane's operations: which kernel a width takes, and the rest that
//! it does otherwise than the strict lane.

use super::{Cpu, PANEL_FROM, Shared};
use crate::kernels::flash::Queries;
use crate::kernels::ggml_dot::Order;
use crate::kernels::matmul::PANEL;
use crate::kernels::table::KernelTable;
use crate::kv::Kv;
use crate::rows::{Output, Tile, for_chunks, for_parts, for_tiles};
use muser_ops::pinned::attention::{Form, form, tiles};
use muser_ops::pinned::project::TILED_FROM;
use muser_ops::pinned::{check_head, dot};
use muser_ops::{Attention, OpError, Profile, RopeTable, Weight};
use muser_quant::{DType, QK};

/// Values in one task of an operation that calls the math library for each.
pub(super) const TASK_CALLS: usize = 1 << 10;

/// A projection's input in every form that its set needs.
struct Input<'a> {
    shared: &'a Operands,
    x: &'a [f32],
    columns: usize,
    cols: usize,
}

/// The room for operands: see [`Shared`].
type Operands = super::Operands;

impl Cpu {
    /// A projection set.
    pub(super) fn project_pinned(
        &self,
        profile: Profile,
        columns: usize,
        set: &[&Weight],
        x: &[f32],
        outputs: &mut [Output<'_>],
    ) {
        let cols = set[0].cols();
        let shared = &mut *self.lock();
        self.prepare(shared, columns, set, x);
        let Shared { team, operands } = shared;
        let input = Input {
            shared: operands,
            x,
            columns,
            cols,
        };
        for_tiles(team, outputs, |which, range, tile| {
            let w = set[which];
            let n = w.row_bytes();
            let bytes = &w.bytes()[range.start * n..range.end * n];
            match w.dtype().is_k_quant() {
                true => input.k_quant(&self.table, w, bytes, tile),
                false => input.float(&self.table, profile, w, bytes, tile),
            }
        });
    }

    /// Quantises, packs and rounds what the set will read.
    fn prepare(&self, shared: &mut Shared, columns: usize, set: &[&Weight], x: &[f32]) {
        if set.iter().any(|w| w.dtype().is_k_quant()) {
            self.quantize(shared, x);
            let in_panels = |w: &&Weight| {
                let of_fours = is_interleaved(w) && columns >= 4;
                w.dtype().is_k_quant() && (of_fours || columns >= TILED_FROM)
            };
            if set.iter().any(in_panels) {
                self.pack(shared, columns, set[0].cols() / QK);
            }
        }
        for (i, dtype) in [DType::F16, DType::BF16].into_iter().enumerate() {
            if set.iter().all(|w| w.dtype() != dtype) {
                continue;
            }
            let room = &mut shared.operands.rounded[i];
            room.resize(x.len(), 0.0);
            for_chunks(&mut shared.team, room, super::TASK_VALUES, |i, out| {
                for (out, &x) in out.iter_mut().zip(&x[i * super::TASK_VALUES..]) {
                    *out = dot::activation(dtype, x);
                }
            });
        }
    }

    /// Attention, in the form that its rows take.
    pub(super) fn attention_pinned(
        &self,
        profile: Profile,
        desc: &Attention,
        first: usize,
        q: &[f32],
        kv: &Kv,
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
                // Tiles lie one after the other by head and row.
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
        let chunk = group * d;
        for_chunks(&mut shared.team, out, chunk, |i, out| {
            let (r, head) = (i / desc.kv_heads, i % desc.kv_heads);
            let q = &q[i * chunk..][..chunk];
            let kv = kv.head(head);
            self.table
                .flash_single(profile, desc, part, first + r, q, &kv, out);
        });
    }

    /// The SiLU product: a long single row is cut at whole vectors, rows of a
    /// batch are tasks.
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
        let whole_of_row = width / profile.lanes() * profile.lanes();
        for_chunks(&mut self.lock().team, gate, chunk, |i, gate| {
            let at = i * chunk;
            let whole = (whole_of_row - (at % width).min(whole_of_row)).min(gate.len());
            self.table
                .silu_product_pinned(profile, whole, gate, &up[at..]);
        });
    }

    /// Refuses the heads that the lane does not cover.
    pub(super) fn check_rope_pinned(table: &RopeTable) -> Result<(), OpError> {
        check_head("rope", 2 * table.pairs())
    }
}

/// Whether llama.cpp interleaves the rows of this weight.
fn is_interleaved(w: &Weight) -> bool {
    w.dtype() == DType::Q4K && w.rows().is_multiple_of(8)
}

impl Input<'_> {
    fn k_quant(&self, t: &KernelTable, w: &Weight, bytes: &[u8], tile: &mut Tile<'_>) {
        let (blocks, columns) = (self.cols / QK, self.columns);
        let (x, panels) = (&self.shared.quantized, &self.shared.panels);
        if is_interleaved(w) {
            let fours = columns / 4 * 4;
            if fours > 0 {
                t.matmul_q4_k_fours(bytes, panels, blocks, fours, tile);
            }
            let (rest, left) = (&x[fours * blocks..], columns - fours);
            return t.matvec_q4_k(bytes, rest, blocks, left, &mut tile.after(fours));
        }
        if columns < TILED_FROM {
            return match w.dtype() {
                DType::Q4K => t.lanes_q4_k(bytes, x, blocks, columns, tile),
                DType::Q5K => t.lanes_q5_k(bytes, x, blocks, columns, tile),
                _ => t.lanes_q6_k(bytes, x, blocks, columns, tile),
            };
        }
        let in_panels = in_panels(columns);
        let (rest, left) = (&x[in_panels * blocks..], columns - in_panels);
        match w.dtype() {
            DType::Q4K => {
                t.matmul_q4_k_tiled(bytes, panels, blocks, in_panels, tile);
                t.matvec_q4_k_tiled(bytes, rest, blocks, left, &mut tile.after(in_panels));
            }
            DType::Q5K => {
                t.matmul_q5_k_tiled(bytes, panels, blocks, in_panels, tile);
                t.matvec_q5_k_tiled(bytes, rest, blocks, left, &mut tile.after(in_panels));
            }
            _ => {
                t.matmul_q6_k_tiled(bytes, panels, blocks, in_panels, tile);
                t.matvec_q6_k_tiled(bytes, rest, blocks, left, &mut tile.after(in_panels));
            }
        }
    }

    fn float(
        &self,
        t: &KernelTable,
        profile: Profile,
        w: &Weight,
        bytes: &[u8],
        tile: &mut Tile<'_>,
    ) {
        let (cols, columns) = (self.cols, self.columns);
        let order = Order {
            profile,
            by_lanes: dot::by_lanes(w.rows(), columns),
        };
        let [f16, bf16] = &self.shared.rounded;
        match w.dtype() {
            DType::F16 => t.ggml_dot_f16(bytes, f16, cols, columns, order, tile),
            DType::BF16 => t.ggml_dot_bf16(bytes, bf16, cols, columns, order, tile),
            _ => t.ggml_dot_f32(bytes, self.x, cols, columns, order, tile),
        }
    }
}

/// Of so many columns, those that are worth panels: whole ones, and a last one
/// that is more than half full.
pub(super) fn in_panels(columns: usize) -> usize {
    let rest = columns % PANEL;
    if rest >= PANEL_FROM {
        columns
    } else {
        columns - rest
    }
}
