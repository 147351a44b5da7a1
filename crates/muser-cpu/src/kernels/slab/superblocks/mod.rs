//! Slab products for weights in superblocks of 256 (Q4_K, Q5_K, Q6_K), with any number of
//! activation vectors; a slab is a few rows transposed, each vector element one row.
//!
//! Contract (the scalar functions that define the bits): [`muser_ops::project`] and, in
//! the pinned lane (llama.cpp's arithmetic), those routes of
//! [`muser_ops::pinned::project`] that have one chain for each output. The loops are
//! written once ([`driver`]); each instruction-set level has its own transposition:
//!
//! ```text
//! for the rows of the tile, L (16, or 8 at avx2 and scalar) at a time:
//!   for superblock b, ascending:
//!     transpose and unpack 256 codes of L rows to a slab     once for all columns
//!     for the columns in blocks of N:                        the slab stays in L1
//!       for sub-block j:
//!         a = Σ_k slab.codes[k] · x[4 k .. 4 k + 4]          four products per element
//!         S += slab.scales[j] · a
//!       M = Σ_pairs slab.pairs[t] · (sum_2t, sum_2t+1)
//!       acc = fma(f32(S), d · y, acc); accm likewise
//! ```
//!
//! No sum crosses vector elements, activations are broadcast four at a time straight from
//! the quantised block, and the float chains of L rows are one vector. The price is the
//! transposition, which all columns share. Its shuffles and insertions for each
//! superblock and row: 10 (Q4_K), 12 (Q5_K) and 16 (Q6_K) at avx512; 16, 19 and 23 at
//! avx2.
//!
//! L rows are L memory streams, each too short for the hardware's prefetchers. So while a
//! slab is unpacked, the same part of the next L rows is prefetched, one cache line at a
//! time: the rows of a tile, and those of the tile after it, are consecutive in memory.
//! At avx512 this prefetches into L2, and another prefetch moves the next block of the
//! slab's own rows from there into L1. If the number of rows in a tile is not a multiple
//! of L, the last slab begins earlier and computes some rows again; a tile of fewer than L
//! rows repeats its last row.
//!
//! At avx512, from [`paired`] columns on, two slabs (32 rows) are computed side by side.
//! A broadcast of activations then serves both: 10 loads for 16 products instead of 9 for
//! 8. The sums of two slabs are more than the registers hold and go through memory once
//! for each scale. Q6_K has twice as many scales, so there it pays in wide batches only.
//!
//! Traffic: every weight byte once, except for rows computed again; 320 bytes for each
//! superblock of the input, from L1 or, in wide batches, from L2, once for every L rows;
//! the slab takes 4.9 KB (Q6_K 5.7) of L1 at avx512, half of that at other levels.

#[cfg(target_arch = "x86_64")]
pub(crate) mod avx2;
#[cfg(target_arch = "x86_64")]
pub(crate) mod avx512;
pub(crate) mod driver;
pub(crate) mod scalar;

#[cfg(target_arch = "x86_64")]
use muser_quant::SuperCodes;
use muser_quant::Superblock;

/// A slab: one superblock (256 weights) of `L` rows, unpacked and transposed, so that a
/// line has one element for each row.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub(crate) struct Slab<const L: usize> {
    /// The slab's quantised weights (codes), four in a word; line k has the codes 4 k
    /// .. 4 k + 4 of every row.
    pub(crate) codes: [[[u8; 4]; L]; 64],
    /// The scales of the superblock's sub-blocks (8, or 16 for Q6_K): a line for each
    /// sub-block, an element for each row, in the form that the instruction-set level
    /// multiplies by.
    pub(crate) scales: [[i32; L]; 16],
    /// The integers that multiply the sums of activations, in pairs: minima (4 lines), or
    /// the scales of Q6_K (8 lines), which serve to subtract the codes' bias (zero
    /// point).
    pub(crate) pairs: [[[i16; 2]; L]; 8],
    /// The f32 factor d by which the superblock's integer scales are multiplied, for each
    /// row.
    pub(crate) d: [f32; L],
    /// The f32 factor dmin by which the superblock's integer minima are multiplied, for
    /// each row.
    pub(crate) dmin: [f32; L],
}

impl<const L: usize> Slab<L> {
    /// A slab (weight rows transposed, one vector element per row) of zeros, before any
    /// weights are unpacked into it.
    pub(crate) const ZERO: Self = Self {
        codes: [[[0; 4]; L]; 64],
        scales: [[0; L]; 16],
        pairs: [[[0; 2]; L]; 8],
        d: [0.0; L],
        dmin: [0.0; L],
    };
}

/// The address of the weight bytes to prefetch for the next slab (the next weight rows,
/// which will be transposed): `at` bytes after the beginning of `from`, inside it or
/// past its end. They are prefetched a few cache lines at a time, between the steps of
/// unpacking; more outstanding lines than the cache supports would stall the core.
#[derive(Clone, Copy)]
#[cfg_attr(
    not(target_arch = "x86_64"),
    expect(dead_code, reason = "portable code prefetches nothing")
)]
pub(crate) struct Ahead<'a> {
    /// The weight bytes of a tile's rows, from the first row of the current slab
    /// (weight rows transposed, one vector element per row) on.
    pub(crate) from: &'a [u8],
    /// The distance in bytes from the beginning of `from` to the bytes to prefetch.
    pub(crate) at: usize,
}

/// The two f32 chains (running sums by fused multiply-adds) of `L` rows with one column
/// of activations: that of the scaled products, and that of the minima.
pub(crate) type Chains<const L: usize> = [[f32; L]; 2];

/// The rules by which the integer sums of a superblock (256 weights) are added to the f32
/// chains (running sums) of an output. Kernels take the rule as a constant parameter.
pub(crate) mod link {
    /// One multiply-add for each superblock in both chains (running sums of scaled
    /// products and of minima): the strict lane (muser's own arithmetic), and
    /// [`Interleaved`](muser_ops::pinned::project::Route::Interleaved) in the pinned lane
    /// (llama.cpp's).
    pub(crate) const STRICT: u8 = 0;
    /// Four multiply-adds for each superblock in both chains (running sums of scaled
    /// products and of minima), one for each 64 codes, as
    /// [`InterleavedFour`](muser_ops::pinned::project::Route::InterleavedFour) in the
    /// pinned lane (llama.cpp's arithmetic) demands.
    pub(crate) const FOURS: u8 = 1;
    /// One chain (running sum) for each output, to which one multiply-add for each
    /// superblock adds scaled products and minima together, as
    /// [`Tiled`](muser_ops::pinned::project::Route::Tiled) in the pinned lane
    /// (llama.cpp's arithmetic) demands.
    pub(crate) const TILED: u8 = 2;
}

/// Returns how many pairs of products of a weight format's codes with activations can be
/// added in i16 without overflow. A pair is at most 2 · 15 · 127 = 3,810 (8 fit), 2 · 31
/// · 127 = 7,874 (4 fit) or 2 · 63 · 127 = 16,002 (2 fit).
#[cfg(target_arch = "x86_64")]
pub(crate) const fn together<F: Superblock>() -> usize {
    match F::CODES {
        SuperCodes::Nibbles => 8,
        SuperCodes::NibblesAndBits => 4,
        SuperCodes::NibblesAndPairs => 2,
    }
}

/// Returns the number of activation columns from which on the avx512 kernel computes two
/// slabs (16 transposed rows each) side by side.
pub(crate) const fn paired<F: Superblock>() -> usize {
    if F::SUB_BLOCKS > 8 { 32 } else { 2 }
}
