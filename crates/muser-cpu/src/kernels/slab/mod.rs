//! The slab family: rows of one packed K-quant matrix with any number of
//! vectors, a vector lane a row.
//!
//! Contract: [`muser_ops::project`] and, in the pinned lane, the routes of
//! [`muser_ops::pinned::project`] whose sums are whole. One folder a weight
//! format, one file a level:
//!
//! ```text
//! for the rows of the tile, L (16, or 8 at avx2 and scalar) at a time:
//!   for superblock b, ascending:
//!     transpose and unpack 256 codes of L rows to a slab     once for all columns
//!     for the columns in blocks of N:                        the slab stays in L1
//!       for sub-block j:
//!         a = Σ_k slab.codes[k] · x[4 k .. 4 k + 4]          four products a lane
//!         S += slab.scales[j] · a
//!       M = Σ_pairs slab.pairs[t] · (sum_2t, sum_2t+1)
//!       acc = fma(f32(S), d · y, acc); accm likewise
//! ```
//!
//! No sum is ever taken across lanes, four activations are broadcast from where
//! the quantiser left them, and the float chains of L rows are one vector. What
//! it costs is the transposition, shared by all columns: shuffles and insertions
//! a superblock and row 10 (Q4_K), 12 (Q5_K) and 16 (Q6_K) at avx512, 16, 19 and
//! 23 at avx2.
//!
//! L rows are L streams too short for the hardware's prefetchers, so each
//! unpacking asks for the same span of the next L rows, a line here and a line
//! there: the weights of a tile, and of the tile after it, are one linear stream.
//! (At avx512 they go to the second cache, and the next block of the slab's own
//! rows from there to the first.) The last slab of a tile that is no multiple of
//! L moves back and computes some rows again; a tile of fewer rows is padded with
//! its last one.
//!
//! At avx512 two slabs, of 32 rows, lie side by side from
//! [`Format::PAIRED`] columns on: a broadcast of activations serves both, 10 loads
//! for 16 products instead of 9 for 8. Q6_K has a scale for every 16 codes, so the
//! sums of two slabs, which are more than the registers hold, would go through
//! memory twice as often; there it pays in wide batches alone.
//!
//! Traffic: every weight byte once, but for those rows; 320 bytes an input
//! superblock, from L1 or, in wide batches, from L2 once for every L rows; 4.9 KB
//! of slab (Q6_K 5.7) in L1 at avx512, half of it elsewhere.

pub(crate) mod q4_k;
pub(crate) mod q5_k;
pub(crate) mod q6_k;

/// One superblock of `L` rows: a lane of a line is a row.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub(crate) struct Slab<const L: usize> {
    /// The codes, four to a word; line k holds codes 4 k .. 4 k + 4.
    pub(crate) codes: [[[u8; 4]; L]; 64],
    /// The scales, a line a sub-block (8, or 16 for Q6_K), in the form that the
    /// level multiplies by.
    pub(crate) scales: [[i32; L]; 16],
    /// What meets the sums, in pairs: minima (4 lines), or the scales of Q6_K (8
    /// lines).
    pub(crate) pairs: [[[i16; 2]; L]; 8],
    /// Factor of the scales.
    pub(crate) d: [f32; L],
    /// Factor of the minima.
    pub(crate) dmin: [f32; L],
}

impl<const L: usize> Slab<L> {
    /// Before anything is unpacked.
    pub(crate) const ZERO: Self = Self {
        codes: [[[0; 4]; L]; 64],
        scales: [[0; L]; 16],
        pairs: [[[0; 2]; L]; 8],
        d: [0.0; L],
        dmin: [0.0; L],
    };
}

/// What the next slab will read: the bytes that lie `at` bytes after the
/// beginning of `from`, in it or past its end. It is asked for line by line
/// between the parts of an unpacking: more lines at once than the cache can wait
/// for would hold up the core.
#[derive(Clone, Copy)]
#[cfg_attr(
    not(target_arch = "x86_64"),
    expect(dead_code, reason = "portable code asks for nothing")
)]
pub(crate) struct Ahead<'a> {
    /// The tile's rows, from the slab's first on.
    pub(crate) from: &'a [u8],
    /// Bytes from there.
    pub(crate) at: usize,
}

/// The two float chains of `L` rows with one column.
pub(crate) type Chains<const L: usize> = [[f32; L]; 2];

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

/// What the steps of a level must know of a format.
pub(crate) trait Format {
    /// Sub-blocks with a scale of their own.
    const SUB_BLOCKS: usize;
    /// Whether the codes are 32 too large and the scales signed, without minima.
    const SIGNED: bool;
    /// Words of codes whose products fit in i16 together, in pairs: 2 · 15 · 127
    /// = 3,810 (8 fit), 2 · 31 · 127 = 7,874 (4), 2 · 63 · 127 = 16,002 (2).
    #[cfg_attr(not(target_arch = "x86_64"), expect(dead_code, reason = "of avx2"))]
    const TOGETHER: usize;
    /// From this many columns on, a level with registers for it computes two
    /// slabs side by side.
    const PAIRED: usize;
}

/// The driver of a level's file: needs `build(Rows<BYTES>, Ahead, &mut
/// Slab)` in scope, and `step`, `Rows`, `LANES`, `SLABS` and `COLUMNS` of the level. Defines one
/// kernel for each `name = LINK`.
macro_rules! driver {
    ($level:ident $(, $features:literal)?; $($name:ident = $link:ident),*) => {
        use super::{BYTES, This};
        use crate::kernels::quantize::Block;
        use crate::kernels::slab::{Ahead, Chains, Format as _, Slab, link};
        use crate::rows::Tile;
        use crate::simd::$level::slab as v;

        $crate::kernels::slab::entries!($($features)?; $($name = $link,)*);

        /// A tile of rows (`w`) with `columns` vectors of `blocks` blocks.
        $(#[target_feature(enable = $features)])?
        fn by<const LINK: u8>(
            w: &[u8],
            x: &[Block],
            blocks: usize,
            columns: usize,
            tile: &mut Tile<'_>,
        ) {
            let (rows, row_bytes) = (tile.rows(), blocks * BYTES);
            if rows < v::LANES {
                // Too few for a slab: with their last one repeated.
                let mut padded = w[..rows * row_bytes].to_vec();
                for _ in rows..v::LANES {
                    padded.extend_from_slice(&w[(rows - 1) * row_bytes..][..row_bytes]);
                }
                slabs::<1, LINK>(&padded, x, blocks, columns, 0, &mut [Slab::ZERO], tile);
                return;
            }
            let mut room = [Slab::ZERO; v::SLABS];
            let mut r = 0;
            while r < rows {
                r += if rows - r >= v::SLABS * v::LANES && columns >= This::PAIRED {
                    slabs::<{ v::SLABS }, LINK>(w, x, blocks, columns, r, &mut room, tile)
                } else {
                    // The last slab of a tile that has no whole number of them
                    // computes some rows again.
                    let r = r.min(rows - v::LANES);
                    let room = room.first_chunk_mut().expect("a level has a slab");
                    slabs::<1, LINK>(w, x, blocks, columns, r, room, tile)
                };
            }
        }

        /// The rows of S slabs from `first` on, with room for the slabs; gives
        /// the number of the rows.
        $(#[target_feature(enable = $features)])?
        fn slabs<const S: usize, const LINK: u8>(
            w: &[u8],
            x: &[Block],
            blocks: usize,
            columns: usize,
            first: usize,
            slabs: &mut [Slab<{ v::LANES }>; S],
            tile: &mut Tile<'_>,
        ) -> usize {
            let row_bytes = blocks * BYTES;
            let w = &w[first * row_bytes..];
            // No room of the heap for a few columns: it would be taken and
            // given back for every 16 rows.
            let (mut few, mut many);
            let chains = match columns {
                ..=8 => {
                    few = [[[[0.0f32; v::LANES]; 2]; S]; 8];
                    &mut few[..columns]
                }
                _ => {
                    many = vec![[[[0.0f32; v::LANES]; 2]; S]; columns];
                    &mut many[..]
                }
            };
            for b in 0..blocks {
                for (s, slab) in slabs.iter_mut().enumerate() {
                    let rows = &w[s * v::LANES * row_bytes + b * BYTES..];
                    let rows = v::Rows::new(rows, row_bytes);
                    let at = ((blocks + b) * S + s) * v::LANES * BYTES;
                    build(rows, Ahead { from: w, at }, slab);
                }
                let mut c = 0;
                while c < columns {
                    let (x, chains) = (&x[c * blocks + b..], &mut chains[c..]);
                    let n = (columns - c).min(v::COLUMNS);
                    c += match n {
                        1 => step_of::<S, 1, LINK>(slabs, x, blocks, chains),
                        2 | 3 => step_of::<S, 2, LINK>(slabs, x, blocks, chains),
                        4..8 => step_of::<S, 4, LINK>(slabs, x, blocks, chains),
                        _ => step_of::<S, 8, LINK>(slabs, x, blocks, chains),
                    };
                }
            }
            for (c, chains) in chains.iter().enumerate() {
                for (s, [acc, accm]) in chains.iter().enumerate() {
                    let mut values = *acc;
                    if !This::SIGNED && LINK != link::TILED {
                        for (value, m) in values.iter_mut().zip(accm) {
                            *value -= m;
                        }
                    }
                    tile.set(c, first + s * v::LANES, &values);
                }
            }
            S * v::LANES
        }

        /// One superblock of the first N columns of `x`, which lie `blocks`
        /// apart; gives N.
        #[inline]
        $(#[target_feature(enable = $features)])?
        fn step_of<const S: usize, const N: usize, const LINK: u8>(
            slabs: &[Slab<{ v::LANES }>; S],
            x: &[Block],
            blocks: usize,
            chains: &mut [[Chains<{ v::LANES }>; S]],
        ) -> usize {
            let chains = chains.first_chunk_mut().expect("N columns are left");
            v::step::<This, S, N, LINK>(slabs, x, blocks, chains);
            N
        }
    };
}

/// The kernels of a [`driver`], one a link rule.
macro_rules! entries {
    ($($features:literal)?;) => {};
    ($($features:literal)?; $name:ident = $link:ident, $($rest:tt)*) => {
        /// A tile of rows (`w`) with `columns` vectors of `blocks` blocks.
        $(#[target_feature(enable = $features)])?
        pub(crate) fn $name(
            w: &[u8],
            x: &[Block],
            blocks: usize,
            columns: usize,
            tile: &mut Tile<'_>,
        ) {
            by::<{ link::$link }>(w, x, blocks, columns, tile);
        }

        $crate::kernels::slab::entries!($($features)?; $($rest)*);
    };
}

pub(crate) use {driver, entries};
