//! The matrix-vector family: a tile of rows of one packed matrix with one or
//! many vectors.
//!
//! Contract: [`muser_ops::project`]. One folder a weight format, one file a
//! level. K-quants meet quantised activations and share a driver:
//!
//! ```text
//! for the columns (vectors) in blocks of N = 8, 4, 2, 1:
//!   for the rows of the tile, four at a time:
//!     acc[N][4] = accm[N][4] = 0
//!     for superblock b, ascending:
//!       for each of the four rows:
//!         unpack 256 codes once; for each column: integer sum of lanes
//!       for each column: fold the lanes of four rows into four integers,
//!         one link of both chains, four rows side by side
//! ```
//!
//! Four rows side by side make the horizontal sums cheap (one tree for four)
//! and the float chains vertical; the order within a row is the contract's.
//! The last rows of a tile that is not a multiple of four are computed with
//! their last row repeated, and only what exists is written.
//!
//! Four rows are four streams of a page each, too short for the hardware's
//! prefetchers, so each step asks for the same span of the next four rows: the
//! weights of a tile, and of the tile after it, are one linear stream.
//!
//! Traffic, one column: every weight byte once, 144, 176 or 210 bytes a
//! superblock; the quantised input (320 bytes a superblock) stays in L1. More
//! columns read the weights again from L2 for every 8.

pub(crate) mod bf16;
pub(crate) mod f16;
pub(crate) mod f32;
pub(crate) mod q4_k;
pub(crate) mod q5_k;
pub(crate) mod q6_k;

/// Rows that a K-quant kernel computes side by side.
pub(crate) const ROWS: usize = 4;

/// The driver of a K-quant kernel: needs `quad::<N>(rows, x, ahead) -> [[f32;
/// 4]; N]` and `BYTES` in scope; `ahead` begins at the first of the four rows.
#[cfg(target_arch = "x86_64")]
macro_rules! k_quant_driver {
    ($features:literal) => {
        /// A tile of rows (`w`) with `columns` vectors of `blocks` blocks.
        #[target_feature(enable = $features)]
        pub(crate) fn matvec(
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
                    1 => block_of::<1>(w, x, blocks, c, tile),
                    2 | 3 => block_of::<2>(w, x, blocks, c, tile),
                    4..8 => block_of::<4>(w, x, blocks, c, tile),
                    _ => block_of::<8>(w, x, blocks, c, tile),
                };
            }
        }

        /// The columns `c .. c + N`; gives N.
        #[target_feature(enable = $features)]
        fn block_of<const N: usize>(
            w: &[u8],
            x: &[Block],
            blocks: usize,
            c: usize,
            tile: &mut Tile<'_>,
        ) -> usize {
            let x: [&[Block]; N] = std::array::from_fn(|i| &x[i * blocks..][..blocks]);
            let row_bytes = blocks * BYTES;
            for r in (0..tile.rows()).step_by(ROWS) {
                let rows: [&[[u8; BYTES]]; ROWS] = std::array::from_fn(|i| {
                    let row = (r + i).min(tile.rows() - 1);
                    w[row * row_bytes..][..row_bytes].as_chunks().0
                });
                let ahead = &w[r * row_bytes..];
                for (i, values) in quad(rows, x, ahead).iter().enumerate() {
                    tile.set(c + i, r, values);
                }
            }
            N
        }
    };
}

/// The scalar kernel of a K-quant: needs `BYTES`, and
/// `unpack(&[u8; BYTES]) -> Unpacked` with `dot(&Block) -> (i32, i32)`, `d`
/// and `dmin`.
macro_rules! k_quant_scalar {
    () => {
        /// A tile of rows (`w`) with `columns` vectors of `blocks` blocks.
        pub(crate) fn matvec(
            w: &[u8],
            x: &[Block],
            blocks: usize,
            columns: usize,
            tile: &mut Tile<'_>,
        ) {
            let row_bytes = blocks * BYTES;
            let mut chains = vec![[0.0f32; 2]; columns];
            for r in 0..tile.rows() {
                chains.fill([0.0; 2]);
                let row = w[r * row_bytes..][..row_bytes].as_chunks::<BYTES>().0;
                for (b, bytes) in row.iter().enumerate() {
                    let block = unpack(bytes);
                    for (c, [acc, accm]) in chains.iter_mut().enumerate() {
                        let x = &x[c * blocks + b];
                        let (sum, min) = block.dot(x);
                        *acc = (sum as f32).mul_add(block.d * x.d, *acc);
                        *accm = (min as f32).mul_add(block.dmin * x.d, *accm);
                    }
                }
                for (c, [acc, accm]) in chains.iter().enumerate() {
                    tile.set(c, r, &[result(*acc, *accm)]);
                }
            }
        }
    };
}

/// The kernel of a float format, whose values `$load` reads.
macro_rules! float_kernel {
    ($level:ident, $load:ident, $bytes:literal $(, $features:literal)?) => {
        use crate::rows::Tile;
        use crate::simd::$level as v;
        use muser_ops::reduce::LANES;

        const VECTORS: usize = LANES / v::LANES;

        /// A tile of rows (`w`) with `columns` vectors of `cols` values.
        $(#[target_feature(enable = $features)])?
        pub(crate) fn matvec(
            w: &[u8],
            x: &[f32],
            cols: usize,
            columns: usize,
            tile: &mut Tile<'_>,
        ) {
            for r in 0..tile.rows() {
                let row = &w[r * cols * $bytes..][..cols * $bytes];
                for c in 0..columns {
                    let sum = dot(row, &x[c * cols..][..cols]);
                    tile.set(c, r, &[sum]);
                }
            }
        }

        /// Σ w · x in the order of `muser_ops::reduce`.
        #[inline]
        $(#[target_feature(enable = $features)])?
        fn dot(w: &[u8], x: &[f32]) -> f32 {
            let mut acc = [v::splat(0.0); VECTORS];
            let (blocks, rest) = x.as_chunks::<LANES>();
            for (x, w) in blocks.iter().zip(w.as_chunks::<{ LANES * $bytes }>().0) {
                for (i, a) in acc.iter_mut().enumerate() {
                    let at = i * v::LANES;
                    *a = v::fma(v::$load(w, at), v::load(x, at), *a);
                }
            }
            let w = &w[blocks.len() * LANES * $bytes..];
            let whole = rest.len() / v::LANES;
            for (i, a) in acc.iter_mut().enumerate().take(whole) {
                let at = i * v::LANES;
                *a = v::fma(v::$load(w, at), v::load(rest, at), *a);
            }
            let n = rest.len() - whole * v::LANES;
            if n > 0 {
                // A padded vector would add +0 to lanes that have no value, and
                // -0 + +0 is +0: only the lanes that exist are replaced.
                let at = whole * v::LANES;
                let (mut xs, mut ws) = ([0.0; v::LANES], [0; v::LANES * $bytes]);
                xs[..n].copy_from_slice(&rest[at..]);
                ws[..n * $bytes].copy_from_slice(&w[at * $bytes..][..n * $bytes]);
                let (mut sum, mut kept) = ([0.0; v::LANES], [0.0; v::LANES]);
                v::store(&mut kept, 0, acc[whole]);
                v::store(&mut sum, 0, v::fma(v::$load(&ws, 0), v::load(&xs, 0), acc[whole]));
                kept[..n].copy_from_slice(&sum[..n]);
                acc[whole] = v::load(&kept, 0);
            }
            let mut width = VECTORS / 2;
            while width > 0 {
                for i in 0..width {
                    acc[i] = v::add(acc[i], acc[i + width]);
                }
                width /= 2;
            }
            v::halve_lanes(acc[0])
        }
    };
}

#[cfg(target_arch = "x86_64")]
pub(crate) use k_quant_driver;
pub(crate) use {float_kernel, k_quant_scalar};
