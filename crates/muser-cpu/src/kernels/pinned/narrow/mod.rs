//! The pinned lane's narrow rung: K-quant rows with one to seven vectors, eight
//! float lanes an output.
//!
//! Contract: [`muser_ops::pinned::project`], [`Route::Narrow`]. Float lane l takes
//! every eighth quad of codes, which is what a 256-bit register of integer sums
//! holds, so that a superblock costs a conversion and one fma, and lanes are
//! added to each other once a row:
//!
//! ```text
//! for the columns in blocks of N = 4, 2, 1:
//!   for each row of the tile:
//!     acc[N] = 0                                    eight lanes each
//!     for superblock b, ascending:
//!       unpack 256 codes once; for each column:
//!         sum = integer sums of quads, by lane      (Q6_K: less 32 times the sums)
//!         acc = fma(f32(sum), d · y, acc);  the minima likewise
//!     fold the lanes
//! ```
//!
//! A lane of a superblock sums 32 products of a code (15, 31 or 63), an activation
//! (127) and a scale (63, or 128 of Q6_K): below 2^22, 2^23 and 2^25; Q6_K's part
//! of the bias is below 2^23.
//!
//! Traffic: as the matvec family's. One row is one stream of 144, 176 or 210
//! bytes a superblock, prefetched [`AHEAD`] bytes before its use.
//!
//! [`Route::Narrow`]: muser_ops::pinned::project::Route::Narrow

#[cfg(target_arch = "x86_64")]
pub(crate) mod avx2;
#[cfg(target_arch = "x86_64")]
pub(crate) mod avx512;
pub(crate) mod driver;
pub(crate) mod scalar;

/// How far ahead of the stream its bytes are prefetched.
#[cfg(target_arch = "x86_64")]
pub(crate) const AHEAD: usize = 4096;

/// What stands beside the codes.
pub(crate) mod minima {
    /// Q4_K: four more float lanes, of two sub-blocks each.
    pub(crate) const FOUR_CHAINS: u8 = 0;
    /// Q5_K: one more chain.
    pub(crate) const ONE_CHAIN: u8 = 1;
    /// Q6_K: nothing; the bias of the codes is an integer matter.
    pub(crate) const NONE: u8 = 2;
}
