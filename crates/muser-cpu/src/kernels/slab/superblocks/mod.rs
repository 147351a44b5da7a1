//! Rows of superblocks with any number of vectors, a vector lane a row.
//!
//! Contract: [`muser_ops::project`] and, in the pinned lane, the routes of
//! [`muser_ops::pinned::project`] whose sums are whole. The way is
//! written once ([`driver`]); a level has the transposition:
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
//! unpacking prefetches the same span of the next L rows, a line here and a line
//! there: the weights of a tile, and of the tile after it, are one linear stream.
//! (At avx512 they go to the second cache, and the next block of the slab's own
//! rows from there to the first.) The last slab of a tile that is no multiple of
//! L moves back and computes some rows again; a tile of fewer rows is padded with
//! its last one.
//!
//! At avx512 two slabs, of 32 rows, lie side by side from
//! [`paired`] columns on: a broadcast of activations serves both, 10 loads
//! for 16 products instead of 9 for 8. Q6_K has a scale for every 16 codes, so the
//! sums of two slabs, which are more than the registers hold, would go through
//! memory twice as often; there it pays in wide batches alone.
//!
//! Traffic: every weight byte once, but for those rows; 320 bytes an input
//! superblock, from L1 or, in wide batches, from L2 once for every L rows; 4.9 KB
//! of slab (Q6_K 5.7) in L1 at avx512, half of it elsewhere.

#[cfg(target_arch = "x86_64")]
pub(crate) mod avx2;
#[cfg(target_arch = "x86_64")]
pub(crate) mod avx512;
pub(crate) mod driver;
pub(crate) mod scalar;

#[cfg(target_arch = "x86_64")]
use muser_quant::SuperCodes;
use muser_quant::Superblock;

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
/// beginning of `from`, in it or past its end. It is prefetched line by line
/// between the parts of an unpacking: more lines at once than the cache can wait
/// for would hold up the core.
#[derive(Clone, Copy)]
#[cfg_attr(
    not(target_arch = "x86_64"),
    expect(dead_code, reason = "portable code prefetches nothing")
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

/// Words of codes whose products with activations fit in i16 together, in pairs:
/// 2 · 15 · 127 = 3,810 (8 fit), 2 · 31 · 127 = 7,874 (4), 2 · 63 · 127 = 16,002
/// (2).
#[cfg(target_arch = "x86_64")]
pub(crate) const fn together<F: Superblock>() -> usize {
    match F::CODES {
        SuperCodes::Nibbles => 8,
        SuperCodes::NibblesAndBits => 4,
        SuperCodes::NibblesAndPairs => 2,
    }
}

/// From this many columns on, a level with registers for it computes two slabs
/// side by side.
pub(crate) const fn paired<F: Superblock>() -> usize {
    if F::SUB_BLOCKS > 8 { 32 } else { 2 }
}
