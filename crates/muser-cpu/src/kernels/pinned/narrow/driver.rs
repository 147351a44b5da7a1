//! Computes a tile of a product with a narrow batch (one to seven columns) in the
//! pinned lane (llama.cpp's arithmetic): walks through it by blocks of columns, and for
//! each block row by row.

use muser_levels::levels;

#[levels]
pub(crate) mod kernels {
    use super::super::level::row;
    use crate::kernels::quantize::Block;
    use crate::rows::Tile;
    use muser_quant::Superblock;

    /// Computes one tile of a product with a narrow batch (one to seven columns): rows
    /// `w` of `blocks` superblocks of 256 weights, times `columns` vectors of Q8_K
    /// activations.
    pub(crate) fn narrow<F: Superblock, const B: usize, const MINIMA: u8>(
        w: &[u8],
        x: &[Block],
        blocks: usize,
        columns: usize,
        tile: &mut Tile<'_>,
    ) {
        let mut c = 0;
        while c < columns {
            let x = &x[c * blocks..];
            c += match columns - c {
                1 => block_of::<F, B, 1, MINIMA>(w, x, blocks, c, tile),
                2 | 3 => block_of::<F, B, 2, MINIMA>(w, x, blocks, c, tile),
                _ => block_of::<F, B, 4, MINIMA>(w, x, blocks, c, tile),
            };
        }
    }

    /// Computes the results of a product's tile for the activation columns `c .. c +
    /// N`, with all of the tile's weight rows. Returns N.
    fn block_of<F: Superblock, const B: usize, const N: usize, const MINIMA: u8>(
        w: &[u8],
        x: &[Block],
        blocks: usize,
        c: usize,
        tile: &mut Tile<'_>,
    ) -> usize {
        let x: [&[Block]; N] = std::array::from_fn(|i| &x[i * blocks..][..blocks]);
        for r in 0..tile.rows() {
            let values = row::<F, B, N, MINIMA>(&w[r * blocks * B..], x);
            for (i, value) in values.into_iter().enumerate() {
                tile.set(c + i, r, &[value]);
            }
        }
        N
    }
}
