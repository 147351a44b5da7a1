//! Products of rows of weights in superblocks of 256 (Q4_K, Q5_K, Q6_K) with one Q8_K
//! vector, four superblocks at a time, so that one tree of additions computes four
//! horizontal sums.
//!
//! ```text
//! avx512: for the rows of the tile, four at a time:
//!   for superblock b, ascending:
//!     for each of the four rows: unpack 256 codes, a vector of integer sums
//!     fold the vectors of four rows into four integers,
//!     one link of both chains, four rows side by side
//! avx2: for each row of the tile:
//!   for superblocks b .. b + 4, ascending:
//!     for each: unpack 256 codes, a vector of integer sums
//!     fold the vectors of four superblocks into four integers,
//!     four links of both chains, one after the other
//! ```
//!
//! avx2 has too few registers for four rows side by side; there, one row at a time is
//! 1.0 to 1.2 times as fast. The order of sums within a row is the contract's. If the
//! number of rows in a tile is not a multiple of four, the last row is repeated, and the
//! repeated results are dropped.
//!
//! Four rows are four memory streams, each too short for the hardware's prefetchers. So
//! each step prefetches the same part of the next four rows: the rows of a tile, and those
//! of the tile after it, are consecutive in memory. One row is one stream, prefetched
//! [`AHEAD`] bytes before its use.
//!
//! Bounds: four products of a code and an activation (127) are below 2^13 (Q4_K,
//! 15) and 2^14 (Q5_K, 31) and at most 32,004 (Q6_K, 63), so that quads fit in
//! i16; the sum of a superblock is below 2^25, 2^26 and, before the bias is subtracted,
//! 2^28.
//!
//! Traffic: every weight byte once, 144, 176 or 210 bytes for a superblock. The quantised
//! input, 320 bytes for a superblock, stays in L1.

#[cfg(target_arch = "x86_64")]
pub(crate) mod avx2;
#[cfg(target_arch = "x86_64")]
pub(crate) mod avx512;
pub(crate) mod scalar;

/// The number of rows (avx512), or of superblocks of one row (avx2), that a matvec kernel
/// computes side by side.
#[cfg(target_arch = "x86_64")]
pub(crate) const SIDE: usize = 4;

/// How many bytes ahead of its use a row of weights is prefetched.
#[cfg(target_arch = "x86_64")]
pub(crate) const AHEAD: usize = 4096;
