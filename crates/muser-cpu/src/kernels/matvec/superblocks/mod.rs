//! Rows of superblocks with one Q8_K vector, four superblocks at a time, so that
//! one tree makes their horizontal sums.
//!
//! ```text
//! avx512: for the rows of the tile, four at a time:
//!   for superblock b, ascending:
//!     for each of the four rows: unpack 256 codes, integer sum of lanes
//!     fold the lanes of four rows into four integers,
//!     one link of both chains, four rows side by side
//! avx2: for each row of the tile:
//!   for superblocks b .. b + 4, ascending:
//!     for each: unpack 256 codes, integer sum of lanes
//!     fold the lanes of four superblocks into four integers,
//!     four links of both chains, one after the other
//! ```
//!
//! A row at a time is the faster form at avx2 (1.0 to 1.2 times), which has no
//! registers for four. The order within a row is the contract's. The last rows of
//! a tile that is not a multiple of four are computed with their last row
//! repeated, and only what exists is written.
//!
//! Four rows are four streams of a page each, too short for the hardware's
//! prefetchers, so each step prefetches the same span of the next four rows: the
//! weights of a tile, and of the tile after it, are one linear stream. One row is
//! one stream, prefetched [`AHEAD`] bytes before its use.
//!
//! Bounds: four products of a code and an activation (127) are below 2^13 (Q4_K,
//! 15) and 2^14 (Q5_K, 31) and at most 32,004 (Q6_K, 63), so that quads fit in
//! i16; the sum of a superblock is below 2^25, 2^26 and, before the bias is taken
//! off, 2^28.
//!
//! Traffic: every weight byte once, 144, 176 or 210 bytes a superblock; the
//! quantised input (320 bytes a superblock) stays in L1.

#[cfg(target_arch = "x86_64")]
pub(crate) mod avx2;
#[cfg(target_arch = "x86_64")]
pub(crate) mod avx512;
pub(crate) mod scalar;

/// Rows, or superblocks of one row, that a kernel computes side by side.
#[cfg(target_arch = "x86_64")]
pub(crate) const SIDE: usize = 4;

/// How far ahead of a row's stream its bytes are prefetched.
#[cfg(target_arch = "x86_64")]
pub(crate) const AHEAD: usize = 4096;
