//! Products of narrow batches in the pinned lane (llama.cpp's arithmetic): rows of
//! K-quants with one to seven vectors, in eight partial sums for each output. The
//! inventory names these kernels `lanes/…`.
//!
//! Contract (the scalar functions that define the bits):
//! [`muser_ops::pinned::project`], [`Route::Narrow`]. Partial sum l has every eighth
//! quad of codes, as element l of a 256-bit register of integer sums has. So a
//! superblock costs a conversion and one fma, and the partial sums are added once for
//! each row:
//!
//! ```text
//! for the columns in blocks of N = 4, 2, 1:
//!   for each row of the tile:
//!     acc[N] = 0                                    eight partial sums each
//!     for superblock b, ascending:
//!       unpack 256 codes once; for each column:
//!         sum = eight integer sums of quads         (Q6_K: minus 32 times the sums)
//!         acc = fma(f32(sum), d · y, acc);  the minima likewise
//!     fold the partial sums
//! ```
//!
//! Bounds: a partial sum of a superblock has 32 products of a code (15, 31 or 63), an
//! activation (127) and a scale (63, or 128 for Q6_K): below 2^22, 2^23 and 2^25; Q6_K's
//! part of the bias is below 2^23.
//!
//! Traffic: as in the matvec family. One row is one stream of 144, 176 or 210 bytes for
//! each superblock, prefetched [`AHEAD`] bytes before its use.
//!
//! [`Route::Narrow`]: muser_ops::pinned::project::Route::Narrow

#[cfg(target_arch = "x86_64")]
pub(crate) mod avx2;
#[cfg(target_arch = "x86_64")]
pub(crate) mod avx512;
pub(crate) mod driver;
pub(crate) mod scalar;

/// How many bytes ahead of its use a row of weights is prefetched.
#[cfg(target_arch = "x86_64")]
pub(crate) const AHEAD: usize = 4096;

/// The ways in which llama.cpp adds the minima of a weight format. Kernels take one as a
/// constant parameter.
pub(crate) mod minima {
    /// The minima of Q4_K are added in four running f32 sums (chains), each for two
    /// sub-blocks of every superblock (256 weights).
    pub(crate) const FOUR_CHAINS: u8 = 0;
    /// The minima of Q5_K are added in one running f32 sum (chain).
    pub(crate) const ONE_CHAIN: u8 = 1;
    /// There are no minima to add: Q6_K has none, and its codes' bias (zero point) is
    /// subtracted in integers.
    pub(crate) const NONE: u8 = 2;
}
