//! Rows of groups with one vector of Q8 groups, a row at a time.
//!
//! ```text
//! for each row of the tile:
//!   for eight groups, ascending:                     256 values
//!     for each: unpack 32 codes, integer sums of lanes
//!     one tree: the lanes of eight groups to eight integers, less the bias
//!     p = f32(S) · (d · y)                           a lane a group
//!     acc += the fold of p by halves
//! ```
//!
//! The eight products of a fold are one vector, so that neither a chain nor a
//! multiplication waits for the group before it. A row that is no multiple of 256
//! ends in a copy, filled up with zeros: groups of factor 0, whose products are +0.
//!
//! Bounds: 32 products of a signed code (128) and an activation (127) are below
//! 2^20. At avx2 signed bytes are multiplied as magnitudes with the sign on the
//! activation, in pairs of at most 2 · 128 · 127 = 32,512: they fit in i16.
//!
//! Traffic: every weight byte once, 144 (Q4_0) or 272 (Q8_0) for 256 values; the
//! quantised input (320 bytes for as many) stays in L1.

#[cfg(target_arch = "x86_64")]
pub(crate) mod avx2;
#[cfg(target_arch = "x86_64")]
pub(crate) mod avx512;
pub(crate) mod scalar;

use muser_quant::{GROUP, QK};

/// How far ahead of a row's stream its bytes are prefetched.
#[cfg(target_arch = "x86_64")]
pub(crate) const AHEAD: usize = 4096;

/// Groups that are folded into one value.
pub(crate) const FOLD: usize = QK / GROUP;

/// The last groups of a row, fewer than [`FOLD`], filled up with zeros.
pub(crate) fn filled<const B: usize>(left: &[u8]) -> [u8; B] {
    let mut out = [0; B];
    out[..left.len()].copy_from_slice(left);
    out
}
