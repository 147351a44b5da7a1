//! Computes the tile of a product for weights in superblocks of 256: walks through its
//! rows by slabs (16 or 8 transposed rows), and for each slab through the columns by
//! blocks.

use muser_levels::levels;

#[levels]
pub(crate) mod kernels {
    use super::super::level::transpose;
    use super::super::{Ahead, Chains, Slab, link, paired};
    use crate::kernels::quantize::Block;
    use crate::rows::Tile;
    use crate::simd::level::slab as v;
    use muser_quant::Superblock;

    /// Computes one tile of a matrix product by slabs (weight rows transposed, one
    /// vector element per row): rows `w` of `blocks` superblocks of 256 weights, times
    /// `columns` vectors of quantised activations.
    pub(crate) fn slab<F: Superblock, const B: usize, const LINK: u8>(
        w: &[u8],
        x: &[Block],
        blocks: usize,
        columns: usize,
        tile: &mut Tile<'_>,
    ) {
        let (rows, row_bytes) = (tile.rows(), blocks * B);
        if rows < v::ROWS {
            // The tile has fewer rows than a slab: its last row is repeated.
            let mut padded = w[..rows * row_bytes].to_vec();
            for _ in rows..v::ROWS {
                padded.extend_from_slice(&w[(rows - 1) * row_bytes..][..row_bytes]);
            }
            slabs::<F, B, 1, LINK>(&padded, x, blocks, columns, 0, &mut [Slab::ZERO], tile);
            return;
        }
        let mut room = [Slab::ZERO; v::SLABS];
        let mut r = 0;
        while r < rows {
            r += if rows - r >= v::SLABS * v::ROWS && columns >= paired::<F>() {
                slabs::<F, B, { v::SLABS }, LINK>(w, x, blocks, columns, r, &mut room, tile)
            } else {
                // If the tile is no whole number of slabs, the last slab computes some
                // rows again.
                let r = r.min(rows - v::ROWS);
                let room = room.first_chunk_mut().expect("SLABS is at least 1");
                slabs::<F, B, 1, LINK>(w, x, blocks, columns, r, room, tile)
            };
        }
    }

    /// Computes the products of S slabs (weight rows transposed, one vector element per
    /// row), from row `first` of the tile on, in the memory `slabs`. Returns the number
    /// of rows computed.
    fn slabs<F: Superblock, const B: usize, const S: usize, const LINK: u8>(
        w: &[u8],
        x: &[Block],
        blocks: usize,
        columns: usize,
        first: usize,
        slabs: &mut [Slab<{ v::ROWS }>; S],
        tile: &mut Tile<'_>,
    ) -> usize {
        let row_bytes = blocks * B;
        let w = &w[first * row_bytes..];
        // A few columns use the stack: the heap would be allocated and freed for every
        // slab.
        let (mut few, mut many);
        let chains = match columns {
            ..=8 => {
                few = [[[[0.0f32; v::ROWS]; 2]; S]; 8];
                &mut few[..columns]
            }
            _ => {
                many = vec![[[[0.0f32; v::ROWS]; 2]; S]; columns];
                &mut many[..]
            }
        };
        for b in 0..blocks {
            for (s, slab) in slabs.iter_mut().enumerate() {
                let rows = &w[s * v::ROWS * row_bytes + b * B..];
                let rows = v::SlabRows::new(rows, row_bytes);
                let at = ((blocks + b) * S + s) * v::ROWS * B;
                transpose::<F, B>(rows, Ahead { from: w, at }, slab);
            }
            let mut c = 0;
            while c < columns {
                let (x, chains) = (&x[c * blocks + b..], &mut chains[c..]);
                let n = (columns - c).min(v::COLUMNS);
                c += match n {
                    1 => step_of::<F, S, 1, LINK>(slabs, x, blocks, chains),
                    2 | 3 => step_of::<F, S, 2, LINK>(slabs, x, blocks, chains),
                    4..8 => step_of::<F, S, 4, LINK>(slabs, x, blocks, chains),
                    _ => step_of::<F, S, 8, LINK>(slabs, x, blocks, chains),
                };
            }
        }
        for (c, chains) in chains.iter().enumerate() {
            for (s, [acc, accm]) in chains.iter().enumerate() {
                let mut values = *acc;
                if !F::SIGNED && LINK != link::TILED {
                    for (value, m) in values.iter_mut().zip(accm) {
                        *value -= m;
                    }
                }
                tile.set(c, first + s * v::ROWS, &values);
            }
        }
        S * v::ROWS
    }

    /// Multiplies one superblock (256 weights) of the slabs (weight rows transposed,
    /// one vector element per row) with N columns of activations; those of column n are
    /// `x[n * blocks]`. Returns N.
    #[inline]
    fn step_of<F: Superblock, const S: usize, const N: usize, const LINK: u8>(
        slabs: &[Slab<{ v::ROWS }>; S],
        x: &[Block],
        blocks: usize,
        chains: &mut [[Chains<{ v::ROWS }>; S]],
    ) -> usize {
        let chains = chains
            .first_chunk_mut()
            .expect("the caller takes N of the columns left");
        v::step::<F, S, N, LINK>(slabs, x, blocks, chains);
        N
    }
}
