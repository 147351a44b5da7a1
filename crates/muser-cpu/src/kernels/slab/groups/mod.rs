//! Rows of groups with any number of vectors, a vector lane a row.
//!
//! The way of [`superblocks`](super::superblocks), with the link of groups:
//!
//! ```text
//! for the rows of the tile, L at a time:
//!   for eight groups, ascending:                     256 values
//!     transpose and unpack 256 codes of L rows to a slab
//!     for the columns in blocks of N:
//!       for group g:
//!         S = Σ_k slab.codes[k] · x[4 k .. 4 k + 4], less the bias · Σ x
//!         p_g = f32(S) · (slab.d[g] · y_g)
//!       acc += ((p0 + p4) + (p2 + p6)) + ((p1 + p5) + (p3 + p7))
//! ```
//!
//! A row that is no multiple of 256 ends in a copy, filled up with zeros. At avx2
//! signed bytes are multiplied as magnitudes, with the sign on the activation: two
//! instructions more a line and column than nibbles take.
//!
//! Traffic: as there; 2.3 KB of slab at avx2, 4.6 KB at avx512.

#[cfg(target_arch = "x86_64")]
pub(crate) mod avx2;
#[cfg(target_arch = "x86_64")]
pub(crate) mod avx512;
pub(crate) mod driver;
pub(crate) mod scalar;

/// Eight groups of `L` rows: a lane of a line is a row.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub(crate) struct Slab<const L: usize> {
    /// The codes, four to a word; line k holds codes 4 k .. 4 k + 4, in the form
    /// that the level multiplies.
    pub(crate) codes: [[[u8; 4]; L]; 64],
    /// The factor of each group.
    pub(crate) d: [[f32; L]; 8],
}

impl<const L: usize> Slab<L> {
    /// Before anything is unpacked.
    pub(crate) const ZERO: Self = Self {
        codes: [[[0; 4]; L]; 64],
        d: [[0.0; L]; 8],
    };
}

/// Adds the fold by halves of eight vectors of products, in that order.
macro_rules! fold {
    ($add:path, $p:expr) => {{
        let p = $p;
        let even = $add($add(p[0], p[4]), $add(p[2], p[6]));
        let odd = $add($add(p[1], p[5]), $add(p[3], p[7]));
        $add(even, odd)
    }};
}

pub(crate) use fold;
