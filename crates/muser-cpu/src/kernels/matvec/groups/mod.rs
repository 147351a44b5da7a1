//! Products of rows of weights in groups of 32 (Q4_0, Q8_0) with one vector of Q8
//! activations, one row at a time.
//!
//! ```text
//! for each row of the tile:
//!   for eight groups, ascending:                     256 values
//!     for each: unpack 32 codes, a vector of integer sums
//!     one tree: eight vectors of sums to eight integers S, minus the bias
//!     p = f32(S) · (d · y)                           element g is group g
//!     acc += the fold of p by halves
//! ```
//!
//! The eight products of a fold are one vector, so that no group waits for the one before
//! it. If the length of a row is not a multiple of 256, its last groups are copied to a
//! block padded with zeros: groups of factor 0, whose products are +0.
//!
//! Bounds: 32 products of a signed code (at most 128 in magnitude) and an activation (127)
//! are below 2^20. At avx2, signed bytes are multiplied as magnitudes with activations
//! that take their sign. Pairs of products are at most 2 · 128 · 127 = 32,512, which fits
//! in i16.
//!
//! Traffic: every weight byte once, 144 (Q4_0) or 272 (Q8_0) bytes for 256 values. The
//! quantised input, 320 bytes for as many values, stays in L1.

#[cfg(target_arch = "x86_64")]
pub(crate) mod avx2;
#[cfg(target_arch = "x86_64")]
pub(crate) mod avx512;
pub(crate) mod scalar;

use muser_quant::{GROUP, QK};

/// How many bytes ahead of its use a row of weights is prefetched.
#[cfg(target_arch = "x86_64")]
pub(crate) const AHEAD: usize = 4096;

/// The number of groups of 32 weights whose products are added up to one value before
/// they are added to the dot product: eight.
pub(crate) const FOLD: usize = QK / GROUP;

/// Copies the last groups of a row's weights, fewer than [`FOLD`], to a block padded with
/// zeros.
pub(crate) fn filled<const B: usize>(left: &[u8]) -> [u8; B] {
    let mut out = [0; B];
    out[..left.len()].copy_from_slice(left);
    out
}
