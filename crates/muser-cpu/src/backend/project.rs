//! Projection sets: the operands that the rungs read, and the rungs.

use super::{Cpu, Operands, Shared, TASK_VALUES};
use crate::kernels::ggml_dot::Order;
use crate::kernels::quantize::Block;
use crate::kernels::table::KernelTable;
use crate::ladder::{Family, Rung, rungs};
use crate::rows::{Output, Tile, for_chunks, for_tiles};
use muser_ops::pinned::dot;
use muser_ops::pinned::project::Route;
use muser_ops::{OpError, Profile, Weight};
use muser_quant::{DType, QK};
use std::ops::Range;

/// The rungs of one weight of a set, with the columns of each.
type Plan = Vec<(&'static Rung, Range<usize>)>;

impl Cpu {
    /// A projection set over `columns` vectors.
    pub(super) fn project_set(
        &self,
        columns: usize,
        set: &[Weight],
        x: &[f32],
        outputs: &mut [Output<'_>],
    ) {
        let plan = |w: &Weight| rungs(self.lane, w.dtype(), w.rows(), columns).collect();
        let plans: Vec<Plan> = set.iter().map(plan).collect();
        let shared = &mut *self.lock();
        self.prepare(shared, set, x);
        let Shared { team, operands } = shared;
        let input = Input {
            table: &self.table,
            profile: self.lane.profile(),
            operands,
            x,
            cols: set[0].cols(),
        };
        for_tiles(team, outputs, |which, range, tile| {
            let w = &set[which];
            let n = w.row_bytes();
            let bytes = &w.bytes()[range.start * n..range.end * n];
            for (rung, columns) in &plans[which] {
                let tile = &mut tile.after(columns.start);
                input.run(rung, w.dtype(), bytes, columns.clone(), tile);
            }
        });
    }

    /// Quantises and rounds what the rungs will read.
    fn prepare(&self, shared: &mut Shared, set: &[Weight], x: &[f32]) {
        if set.iter().any(|w| w.dtype().is_k_quant()) {
            self.quantize(shared, x);
        }
        for (i, dtype) in [DType::F16, DType::BF16].into_iter().enumerate() {
            let rounded = |w: &Weight| w.dtype() == dtype;
            if self.lane.profile().is_none() || !set.iter().any(rounded) {
                continue;
            }
            let room = &mut shared.operands.rounded[i];
            room.resize(x.len(), 0.0);
            for_chunks(&mut shared.team, room, TASK_VALUES, |i, out| {
                for (out, &x) in out.iter_mut().zip(&x[i * TASK_VALUES..]) {
                    *out = dot::activation(dtype, x);
                }
            });
        }
    }

    /// Quantises vectors into the room.
    fn quantize(&self, shared: &mut Shared, x: &[f32]) {
        let x = x.as_chunks::<QK>().0;
        let Shared { team, operands } = shared;
        operands.quantized.resize(x.len(), Block::zeros(0.0));
        let chunk = TASK_VALUES / QK;
        for_chunks(team, &mut operands.quantized, chunk, |i, out| {
            for (block, x) in out.iter_mut().zip(&x[i * chunk..]) {
                *block = self.table.quantize(x);
            }
        });
    }
}

/// Why a float kernel is never asked for these.
const QUANTISED: &str = "quantised weights have gone the other way";

/// Refuses weights whose format no kernel multiplies with.
pub(super) fn check_product(w: &Weight) -> Result<(), OpError> {
    match w.dtype() {
        DType::Q4K | DType::Q5K | DType::Q6K | DType::F16 | DType::BF16 | DType::F32 => Ok(()),
    }
}

/// A set's input in every form that its rungs need.
struct Input<'a> {
    table: &'a KernelTable,
    /// Of the pinned lane.
    profile: Option<Profile>,
    operands: &'a Operands,
    x: &'a [f32],
    cols: usize,
}

impl Input<'_> {
    /// The columns `columns` of a tile, whose own column 0 is the first of them.
    fn run(&self, rung: &Rung, dtype: DType, w: &[u8], columns: Range<usize>, tile: &mut Tile<'_>) {
        let (t, n) = (self.table, columns.len());
        if !dtype.is_k_quant() {
            return self.float(rung, dtype, w, n, tile);
        }
        let blocks = self.cols / QK;
        let x = &self.operands.quantized[columns.start * blocks..];
        macro_rules! by_dtype {
            ($q4:ident, $q5:ident, $q6:ident) => {
                match dtype {
                    DType::Q4K => t.$q4(w, x, blocks, n, tile),
                    DType::Q5K => t.$q5(w, x, blocks, n, tile),
                    DType::Q6K => t.$q6(w, x, blocks, n, tile),
                    DType::F16 | DType::BF16 | DType::F32 => {
                        unreachable!("float weights have gone the other way")
                    }
                }
            };
        }
        match rung.family {
            Family::Matvec => by_dtype!(matvec_q4_k, matvec_q5_k, matvec_q6_k),
            Family::Slab => by_dtype!(slab_q4_k, slab_q5_k, slab_q6_k),
            Family::SlabTiled => by_dtype!(slab_q4_k_tiled, slab_q5_k_tiled, slab_q6_k_tiled),
            Family::SlabFours => t.slab_q4_k_fours(w, x, blocks, n, tile),
            Family::Lanes => by_dtype!(lanes_q4_k, lanes_q5_k, lanes_q6_k),
            Family::GgmlDot => unreachable!("the ladder has it for float weights alone"),
        }
    }

    fn float(&self, rung: &Rung, dtype: DType, w: &[u8], n: usize, tile: &mut Tile<'_>) {
        let (t, cols, x) = (self.table, self.cols, self.x);
        let Some(profile) = self.profile else {
            return match dtype {
                DType::F16 => t.matvec_f16(w, x, cols, n, tile),
                DType::BF16 => t.matvec_bf16(w, x, cols, n, tile),
                DType::F32 => t.matvec_f32(w, x, cols, n, tile),
                DType::Q4K | DType::Q5K | DType::Q6K => unreachable!("{QUANTISED}"),
            };
        };
        let order = Order {
            profile,
            by_lanes: rung.route == Some(Route::TinyBlas),
        };
        let [f16, bf16] = &self.operands.rounded;
        match dtype {
            DType::F16 => t.ggml_dot_f16(w, f16, cols, n, order, tile),
            DType::BF16 => t.ggml_dot_bf16(w, bf16, cols, n, order, tile),
            DType::F32 => t.ggml_dot_f32(w, x, cols, n, order, tile),
            DType::Q4K | DType::Q5K | DType::Q6K => unreachable!("{QUANTISED}"),
        }
    }
}
