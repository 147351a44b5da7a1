//! The matrix-matrix rung: a tile of rows of one K-quant matrix with panels of
//! 16 vectors.
//!
//! Contract: [`muser_ops::project`], the same bits as the matvec rung. Here a
//! vector lane is a column, so no sum is ever taken across lanes:
//!
//! ```text
//! for each panel (16 columns; 32 at a time where there are as many):
//!   for superblock b, ascending:            the panel's block stays in L1
//!     for the rows of the tile, R at a time:
//!       unpack 256 codes of each row to bytes
//!       for sub-block j:
//!         a = Σ_k codes[4 k .. 4 k + 4] · panel[k]     four products a lane
//!         S += s_j · a
//!       M = Σ_pairs (m_j, m_j+1) · (sum_j, sum_j+1)
//!       acc = fma(f32(S), d · y, acc); accm likewise   kept in L1
//! ```
//!
//! Traffic: the weights once for each 32 columns, from memory the first time
//! and from L2 after; 4,928 bytes of panel a superblock from L2. Arithmetic:
//! 64 vector products a superblock, row and 16 columns; what is not a product
//! is about a third of the instructions.

pub(crate) mod q4_k;
pub(crate) mod q5_k;
pub(crate) mod q6_k;

use super::quantize::Block;

pub(crate) use crate::ladder::PANEL;

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
        use crate::kernels::matmul::{PANEL, PanelBlock, Unpacked, link};
        use crate::rows::Tile;
        use crate::simd::$level as v;

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
            let mut c = 0;
            while c < columns {
                let panels = &panels[c / PANEL * blocks..];
                let two = columns - c > PANEL;
                let (first, second) = (&panels[..blocks], &panels[blocks..]);
                let at = (c, columns);
                match (two, LINK == link::FOURS) {
                    (true, false) => {
                        let two = [first, &second[..blocks]];
                        panel_of::<{ v::ROWS_WIDE }, 2, LINK>(w, two, at, tile);
                    }
                    (true, true) => {
                        let two = [first, &second[..blocks]];
                        panel_of::<{ v::FOURS_WIDE }, 2, LINK>(w, two, at, tile);
                    }
                    (false, false) => {
                        panel_of::<{ v::ROWS_NARROW }, 1, LINK>(w, [first], at, tile);
                    }
                    (false, true) => {
                        panel_of::<{ v::FOURS_NARROW }, 1, LINK>(w, [first], at, tile);
                    }
                }
                c += if two { 2 * PANEL } else { PANEL };
            }
        }

        /// `C` panels from column `c` on, `R` rows side by side.
        $(#[target_feature(enable = $features)])?
        fn panel_of<const R: usize, const C: usize, const LINK: u8>(
            w: &[u8],
            panels: [&[PanelBlock]; C],
            (c, columns): (usize, usize),
            tile: &mut Tile<'_>,
        ) {
            let blocks = panels[0].len();
            let row_bytes = blocks * BYTES;
            let rows = tile.rows();
            let mut acc = vec![[[[0.0f32; PANEL]; 2]; C]; rows.next_multiple_of(R)];
            let mut unpacked = [Unpacked::ZERO; R];
            for b in 0..blocks {
                let panel: [&PanelBlock; C] = std::array::from_fn(|i| &panels[i][b]);
                for (quad, acc) in acc.as_chunks_mut::<R>().0.iter_mut().enumerate() {
                    for (i, to) in unpacked.iter_mut().enumerate() {
                        // A row past the tile repeats the last one.
                        let row = (quad * R + i).min(rows - 1);
                        let row = &w[row * row_bytes..][..row_bytes];
                        v::prefetch(row, (b + 2) * BYTES, BYTES);
                        unpack(&row.as_chunks::<BYTES>().0[b], to);
                    }
                    v::panel_step::<R, C, SUB_BLOCKS, SIGNED, LINK>(&unpacked, panel, acc);
                }
            }
            for (r, acc) in acc.iter().enumerate().take(rows) {
                for (i, [acc, accm]) in acc.iter().enumerate() {
                    let first = c + i * PANEL;
                    for column in first..columns.min(first + PANEL) {
                        let lane = column - first;
                        let one_chain = SIGNED || LINK == link::TILED;
                        let value = if one_chain { acc[lane] } else { acc[lane] - accm[lane] };
                        tile.set(column, r, &[value]);
                    }
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
