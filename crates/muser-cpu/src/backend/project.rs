//! Computes projection sets (matrices that multiply the same input, such as Q, K and V):
//! converts the input to the forms that the kernels read, and runs the kernels that the
//! ladder (the table of kernels) chooses.

use super::{Cpu, Operands, Shared, TASK_VALUES};
use crate::kernels::pinned::float::Order;
use crate::kernels::products::{Kernel, Product};
use crate::kernels::quantize::{Block, Groups};
use crate::kernels::table::KernelTable;
use crate::ladder::{Rung, rungs};
use crate::rows::{Output, Tile, for_chunks, for_tiles};
use muser_ops::pinned::dot;
use muser_ops::pinned::project::Route;
use muser_ops::{Profile, Weight};
use muser_quant::{Arithmetic, DType, QK};
use std::ops::Range;

/// The float formats to which the pinned lane (llama.cpp's arithmetic) rounds
/// activations.
const ROUNDED: [DType; 2] = [DType::F16, DType::BF16];

/// A piece of a matrix product: some columns of the batch, with the kernel that the
/// ladder (the table of kernels) chooses for them.
struct Piece<'a> {
    rung: &'static Rung,
    product: &'a Product,
    columns: Range<usize>,
}

impl Cpu {
    /// Computes a projection set (matrices that multiply the same input) over the
    /// `columns` vectors in `x`.
    pub(super) fn project_set(
        &self,
        columns: usize,
        set: &[Weight],
        x: &[f32],
        outputs: &mut [Output<'_>],
    ) {
        let piece = |w: &Weight, (rung, columns): (&'static Rung, Range<usize>)| {
            let product = self.table.product(rung.family, w.dtype());
            Piece {
                rung,
                product: product.expect("a test of the ladder: every rung has its kernel"),
                columns,
            }
        };
        let pieces_of = |w: &Weight| -> Vec<Piece<'_>> {
            let rungs = rungs(self.lane, w.dtype(), w.rows(), columns);
            rungs.map(|rung| piece(w, rung)).collect()
        };
        let pieces: Vec<Vec<Piece<'_>>> = set.iter().map(pieces_of).collect();
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
            for piece in &pieces[which] {
                input.run(piece, bytes, &mut tile.after(piece.columns.start));
            }
        });
    }

    /// Quantises and rounds the input activations to every form that the kernels of a
    /// projection set (matrices with the same input) read.
    fn prepare(&self, shared: &mut Shared, set: &[Weight], x: &[f32]) {
        let meets = |arithmetic| set.iter().any(|w| w.dtype().arithmetic() == arithmetic);
        if meets(Arithmetic::Superblocks) {
            self.quantize(shared, x);
        }
        if meets(Arithmetic::Groups) {
            self.quantize_groups(shared, set[0].cols(), x);
        }
        for (i, dtype) in ROUNDED.into_iter().enumerate() {
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

    /// Quantises the activation vectors in `x` to blocks of 256 values.
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

    /// Quantises the activation vectors of `cols` values in `x` to groups of 32 values,
    /// each vector padded with zeros to a multiple of 256 values.
    fn quantize_groups(&self, shared: &mut Shared, cols: usize, x: &[f32]) {
        let folds = cols.div_ceil(QK);
        let Shared { team, operands } = shared;
        operands.groups.resize(x.len() / cols * folds, Groups::ZERO);
        let chunk = TASK_VALUES / QK;
        for_chunks(team, &mut operands.groups, chunk, |i, out| {
            for (j, groups) in out.iter_mut().enumerate() {
                let (column, fold) = ((i * chunk + j) / folds, (i * chunk + j) % folds);
                let x = &x[column * cols..][..cols][fold * QK..];
                *groups = match x.first_chunk() {
                    Some(x) => self.table.quantize_groups(x),
                    None => {
                        let mut filled = [0.0; QK];
                        filled[..x.len()].copy_from_slice(x);
                        self.table.quantize_groups(&filled)
                    }
                };
            }
        });
    }
}

/// The input of a projection set (matrices that multiply the same activations) in every
/// form that its kernels read.
struct Input<'a> {
    table: &'a KernelTable,
    /// The profile (build of llama.cpp) whose bits the pinned lane (llama.cpp's
    /// arithmetic) computes; `None` in the strict lane (muser's own).
    profile: Option<Profile>,
    operands: &'a Operands,
    x: &'a [f32],
    cols: usize,
}

impl Input<'_> {
    /// Computes one piece of a matrix product (some columns of the batch) for a tile of
    /// weight rows, whose bytes are `w`. Column 0 of the tile is the first column of
    /// the piece.
    fn run(&self, piece: &Piece<'_>, w: &[u8], tile: &mut Tile<'_>) {
        let (cols, n) = (self.cols, piece.columns.len());
        self.table.called(piece.product.name);
        match piece.product.kernel {
            Kernel::Superblocks(kernel) => {
                let blocks = cols / QK;
                let x = &self.operands.quantized[piece.columns.start * blocks..];
                kernel(w, x, blocks, n, tile);
            }
            Kernel::Groups(kernel) => {
                let folds = cols.div_ceil(QK);
                let x = &self.operands.groups[piece.columns.start * folds..];
                kernel(w, x, cols, n, tile);
            }
            Kernel::Floats(kernel) => {
                kernel(w, &self.x[piece.columns.start * cols..], cols, n, tile)
            }
            Kernel::OrderedFloats(kernel) => {
                let profile = self
                    .profile
                    .expect("only rungs of the pinned lane have such kernels");
                let order = Order {
                    profile,
                    tiny_blas: piece.rung.route == Some(Route::TinyBlas),
                };
                let x = self.rounded(piece.product.dtype);
                kernel(w, &x[piece.columns.start * cols..], cols, n, order, tile);
            }
        }
    }

    /// Returns the input activations in the precision in which the pinned lane
    /// (llama.cpp's arithmetic) multiplies them with float weights of this format.
    fn rounded(&self, dtype: DType) -> &[f32] {
        let [f16, bf16] = &self.operands.rounded;
        let rounded = ROUNDED.into_iter().zip([f16, bf16]);
        let mut found = rounded.filter(|(of, _)| *of == dtype);
        found.next().map_or(self.x, |(_, x)| x)
    }
}
