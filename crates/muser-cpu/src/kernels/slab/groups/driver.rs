//! Computes the tile of a product for weights in groups of 32: walks through its rows by
//! slabs (16 or 8 transposed rows), and for each slab through the columns by blocks.

use muser_levels::levels;

#[levels]
pub(crate) mod kernels {
    use super::super::Slab;
    use super::super::level::{step, transpose};
    use crate::kernels::quantize::Groups;
    use crate::kernels::slab::superblocks::Ahead;
    use crate::rows::Tile;
    use crate::simd::level::slab as v;
    use muser_quant::{GROUP, Group, QK};

    /// Computes one tile of a matrix product by slabs (weight rows transposed, one
    /// vector element per row): rows `w` of `cols` weights in groups of 32, times
    /// `columns` vectors of quantised activations.
    pub(crate) fn slab<F: Group, const B: usize>(
        w: &[u8],
        x: &[Groups],
        cols: usize,
        columns: usize,
        tile: &mut Tile<'_>,
    ) {
        let (rows, row_bytes) = (tile.rows(), cols / GROUP * F::BYTES);
        if rows < v::ROWS {
            // The tile has fewer rows than a slab: its last row is repeated.
            let mut padded = w[..rows * row_bytes].to_vec();
            for _ in rows..v::ROWS {
                padded.extend_from_slice(&w[(rows - 1) * row_bytes..][..row_bytes]);
            }
            slabs::<F, B, 1>(&padded, x, cols, columns, 0, &mut [Slab::ZERO], tile);
            return;
        }
        let mut room = [Slab::ZERO; v::SLABS];
        let mut r = 0;
        while r < rows {
            r += if rows - r >= v::SLABS * v::ROWS && columns >= 2 {
                slabs::<F, B, { v::SLABS }>(w, x, cols, columns, r, &mut room, tile)
            } else {
                // If the tile is no whole number of slabs, the last slab computes some
                // rows again.
                let r = r.min(rows - v::ROWS);
                let room = room.first_chunk_mut().expect("SLABS is at least 1");
                slabs::<F, B, 1>(w, x, cols, columns, r, room, tile)
            };
        }
    }

    /// Computes the products of S slabs (weight rows transposed, one vector element per
    /// row), from row `first` of the tile on, in the memory `slabs`. Returns the number
    /// of rows computed.
    fn slabs<F: Group, const B: usize, const S: usize>(
        w: &[u8],
        x: &[Groups],
        cols: usize,
        columns: usize,
        first: usize,
        slabs: &mut [Slab<{ v::ROWS }>; S],
        tile: &mut Tile<'_>,
    ) -> usize {
        let (folds, row_bytes) = (cols.div_ceil(QK), cols / GROUP * F::BYTES);
        let w = &w[first * row_bytes..];
        // A few columns use the stack: the heap would be allocated and freed for every
        // slab.
        let (mut few, mut many);
        let sums = match columns {
            ..=8 => {
                few = [[[0.0f32; v::ROWS]; S]; 8];
                &mut few[..columns]
            }
            _ => {
                many = vec![[[0.0f32; v::ROWS]; S]; columns];
                &mut many[..]
            }
        };
        let mut filled = [[0; B]; v::ROWS];
        for b in 0..folds {
            for (s, slab) in slabs.iter_mut().enumerate() {
                let rows = &w[s * v::ROWS * row_bytes + b * B..];
                let left = row_bytes - b * B;
                let rows = if left < B {
                    for (r, filled) in filled.iter_mut().enumerate() {
                        filled[..left].copy_from_slice(&rows[r * row_bytes..][..left]);
                    }
                    v::SlabRows::new(filled.as_flattened(), B)
                } else {
                    v::SlabRows::new(rows, row_bytes)
                };
                let at = (S * row_bytes + (b * S + s) * B) * v::ROWS;
                transpose::<F, B>(rows, Ahead { from: w, at }, slab);
            }
            let mut c = 0;
            while c < columns {
                let (x, sums) = (&x[c * folds + b..], &mut sums[c..]);
                let n = (columns - c).min(v::COLUMNS);
                c += match n {
                    1 => step_of::<F, S, 1>(slabs, x, folds, sums),
                    2 | 3 => step_of::<F, S, 2>(slabs, x, folds, sums),
                    4..8 => step_of::<F, S, 4>(slabs, x, folds, sums),
                    _ => step_of::<F, S, 8>(slabs, x, folds, sums),
                };
            }
        }
        for (c, sums) in sums.iter().enumerate() {
            for (s, sums) in sums.iter().enumerate() {
                tile.set(c, first + s * v::ROWS, sums);
            }
        }
        S * v::ROWS
    }

    /// Multiplies eight groups (256 weights) of the slabs (weight rows transposed, one
    /// vector element per row) with N columns of activations; those of column n are
    /// `x[n * folds]`. Returns N.
    #[inline]
    fn step_of<F: Group, const S: usize, const N: usize>(
        slabs: &[Slab<{ v::ROWS }>; S],
        x: &[Groups],
        folds: usize,
        sums: &mut [[[f32; v::ROWS]; S]],
    ) -> usize {
        let sums = sums
            .first_chunk_mut()
            .expect("the caller takes N of the columns left");
        step::<F, S, N>(slabs, x, folds, sums);
        N
    }
}
