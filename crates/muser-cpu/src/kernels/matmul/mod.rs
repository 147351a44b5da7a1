//! The matrix-matrix rung: a tile of rows of one K-quant matrix with panels of
//! 16 vectors.
//!
//! Contract: [`muser_ops::project`], the same bits as the matvec rung. Here a
//! vector lane is a column, so no sum is ever taken across lanes:
//!
//! ```text
//! for the rows of the tile, 64 at a time:
//!   for superblock b, ascending:
//!     unpack 256 codes of each row to bytes            once for all columns
//!     for the panels (16 columns), two at a time:      a panel's block stays in L1
//!       for the rows, R side by side:
//!         for sub-block j:
//!           a = Σ_k codes[4 k .. 4 k + 4] · panel[k]   four products a lane
//!           S += s_j · a
//!         M = Σ_pairs (m_j, m_j+1) · (sum_j, sum_j+1)
//!         acc = fma(f32(S), d · y, acc); accm likewise kept in L1 or L2
//! ```
//!
//! Traffic: the weights once; 4,928 bytes of panel a superblock from L2 for every
//! 64 rows. Arithmetic: 64 vector products a superblock, row and 16 columns; what
//! is not a product is about a third of the instructions.

pub(crate) mod q4_k;
pub(crate) mod q5_k;
pub(crate) mod q6_k;

use super::quantize::Block;

pub(crate) use crate::ladder::PANEL;

/// Rows that are unpacked together: 24 KB of a superblock each, in L1 while
/// every panel of the batch meets them.
pub(crate) const ROW_BLOCK: usize = 64;

/// One superblock of 16 quantised vectors, a lane a column.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub(crate) struct PanelBlock {
    /// Codes: `[group of 4 values][column][4]`.
    pub(crate) q: [[[i8; 4]; PANEL]; 64],
    /// Sums of 32 codes: `[pair][column][2]`.
    pub(crate) sums32: [[[i16; 2]; PANEL]; 4],
    /// Sums of 16 codes: `[pair][column][2]`.
    pub(crate) sums16: [[[i16; 2]; PANEL]; 8],
    /// Scales.
    pub(crate) d: [f32; PANEL],
}

impl PanelBlock {
    /// The panel of zeros.
    pub(crate) const ZERO: Self = Self {
        q: [[[0; 4]; PANEL]; 64],
        sums32: [[[0; 2]; PANEL]; 4],
        sums16: [[[0; 2]; PANEL]; 8],
        d: [0.0; PANEL],
    };

    /// Superblock `b` of the vectors `x` (`blocks` blocks each), at most 16 of
    /// them; the lanes of missing ones are zero.
    pub(crate) fn pack(&mut self, x: &[Block], blocks: usize, b: usize) {
        let columns = x.len() / blocks;
        if columns < PANEL {
            *self = Self::ZERO;
        }
        for (c, x) in x.chunks_exact(blocks).enumerate() {
            let x = &x[b];
            for (to, from) in self.q.iter_mut().zip(x.q.as_chunks::<4>().0) {
                to[c] = *from;
            }
            for (to, from) in self.sums32.iter_mut().zip(x.sums32.as_chunks::<2>().0) {
                to[c] = *from;
            }
            for (to, from) in self.sums16.iter_mut().zip(x.sums16.as_chunks::<2>().0) {
                to[c] = *from;
            }
            self.d[c] = x.d;
        }
    }
}

/// One unpacked superblock of a row.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub(crate) struct Unpacked {
    /// The codes in natural order, four to a word.
    pub(crate) codes: [[u8; 4]; 64],
    /// The scale of each sub-block: 8, or 16 for Q6_K.
    pub(crate) scales: [i32; 16],
    /// What meets the sums, in pairs: minima (4 pairs), or the scales of Q6_K
    /// (8 pairs).
    pub(crate) pairs: [[i16; 2]; 8],
    /// Factor of the scales.
    pub(crate) d: f32,
    /// Factor of the minima.
    pub(crate) dmin: f32,
}

impl Unpacked {
    /// Before anything is unpacked.
    pub(crate) const ZERO: Self = Self {
        codes: [[0; 4]; 64],
        scales: [0; 16],
        pairs: [[0; 2]; 8],
        d: 0.0,
        dmin: 0.0,
    };
}

/// How the integers of a superblock enter the float chains of an output. The
/// kernels have it as a constant.
pub(crate) mod link {
    /// The strict lane's: one link of both chains.
    pub(crate) const STRICT: u8 = 0;
    /// [`InterleavedFour`](muser_ops::pinned::project::Route::InterleavedFour):
    /// four links of both chains, of 64 codes each.
    pub(crate) const FOURS: u8 = 1;
    /// [`Tiled`](muser_ops::pinned::project::Route::Tiled): one chain, whose
    /// link joins codes and minima first.
    pub(crate) const TILED: u8 = 2;
}

/// The driver: needs `BYTES`, `SUB_BLOCKS`, `SIGNED`, `unpack(&[u8; BYTES], &mut
/// Unpacked)` and, of the level, `panel_step::<R, C, S, SIGNED, LINK>`,
/// `ROWS_NARROW` and `ROWS_WIDE` in scope. `ROWS_…` are the rows side by side at
/// 16 and at 32 columns. Defines one kernel for each `name = LINK`.
macro_rules! driver {
    ($level:ident $(, $features:literal)?; $($name:ident = $link:ident),*) => {
        use super::{BYTES, SIGNED, SUB_BLOCKS};
        use crate::kernels::matmul::{PANEL, PanelBlock, ROW_BLOCK, Unpacked, link};
        use crate::rows::Tile;
        use crate::simd::$level as v;
        use std::ops::Range;

        $crate::kernels::matmul::entries!($($features)?; $($name = $link,)*);

        /// A tile of rows (`w`) with `columns` columns in panels of `blocks`
        /// blocks.
        $(#[target_feature(enable = $features)])?
        fn by<const LINK: u8>(
            w: &[u8],
            panels: &[PanelBlock],
            blocks: usize,
            columns: usize,
            tile: &mut Tile<'_>,
        ) {
            if columns == 0 {
                return;
            }
            for first in (0..tile.rows()).step_by(ROW_BLOCK) {
                let rows = first..tile.rows().min(first + ROW_BLOCK);
                if LINK == link::FOURS {
                    rows_by::<{ v::FOURS_WIDE }, { v::FOURS_NARROW }, LINK>(
                        w, panels, blocks, columns, rows, tile,
                    );
                } else {
                    rows_by::<{ v::ROWS_WIDE }, { v::ROWS_NARROW }, LINK>(
                        w, panels, blocks, columns, rows, tile,
                    );
                }
            }
        }

        /// Some rows of the tile: `WIDE` of them side by side with two panels,
        /// `NARROW` with the last one where their number is odd.
        $(#[target_feature(enable = $features)])?
        fn rows_by<const WIDE: usize, const NARROW: usize, const LINK: u8>(
            w: &[u8],
            panels: &[PanelBlock],
            blocks: usize,
            columns: usize,
            rows: Range<usize>,
            tile: &mut Tile<'_>,
        ) {
            let row_bytes = blocks * BYTES;
            let count = columns.div_ceil(PANEL);
            let padded = rows.len().next_multiple_of(WIDE.max(NARROW));
            let mut unpacked = vec![Unpacked::ZERO; padded];
            let mut pairs = vec![[[[0.0f32; PANEL]; 2]; 2]; count / 2 * padded];
            let mut last = vec![[[[0.0f32; PANEL]; 2]; 1]; count % 2 * padded];
            for b in 0..blocks {
                for (row, to) in rows.clone().zip(&mut unpacked) {
                    let row = &w[row * row_bytes..][..row_bytes];
                    v::prefetch(row, (b + 2) * BYTES, BYTES);
                    unpack(&row.as_chunks::<BYTES>().0[b], to);
                }
                for (p, acc) in pairs.chunks_exact_mut(padded).enumerate() {
                    let two = [&panels[2 * p * blocks + b], &panels[(2 * p + 1) * blocks + b]];
                    let groups = unpacked.as_chunks::<WIDE>().0.iter();
                    for (rows, acc) in groups.zip(acc.as_chunks_mut::<WIDE>().0) {
                        v::panel_step::<WIDE, 2, SUB_BLOCKS, SIGNED, LINK>(rows, two, acc);
                    }
                }
                if count % 2 == 1 {
                    let one = [&panels[(count - 1) * blocks + b]];
                    let groups = unpacked.as_chunks::<NARROW>().0.iter();
                    for (rows, acc) in groups.zip(last.as_chunks_mut::<NARROW>().0) {
                        v::panel_step::<NARROW, 1, SUB_BLOCKS, SIGNED, LINK>(rows, one, acc);
                    }
                }
            }
            let value = |[acc, accm]: &[[f32; PANEL]; 2], lane: usize| {
                match SIGNED || LINK == link::TILED {
                    true => acc[lane],
                    false => acc[lane] - accm[lane],
                }
            };
            for column in 0..columns {
                let (p, lane) = (column / PANEL, column % PANEL);
                for (i, r) in rows.clone().enumerate() {
                    let chains = match pairs.get(p / 2 * padded + i) {
                        Some(two) => &two[p % 2],
                        None => &last[i][0],
                    };
                    tile.set(column, r, &[value(chains, lane)]);
                }
            }
        }
    };
}

/// The kernels of a [`driver`], one a link rule.
macro_rules! entries {
    ($($features:literal)?;) => {};
    ($($features:literal)?; $name:ident = $link:ident, $($rest:tt)*) => {
        /// A tile of rows (`w`) with `columns` columns in panels of `blocks`
        /// blocks.
        $(#[target_feature(enable = $features)])?
        pub(crate) fn $name(
            w: &[u8],
            panels: &[PanelBlock],
            blocks: usize,
            columns: usize,
            tile: &mut Tile<'_>,
        ) {
            by::<{ link::$link }>(w, panels, blocks, columns, tile);
        }

        $crate::kernels::matmul::entries!($($features)?; $($rest)*);
    };
}

pub(crate) use {driver, entries};
