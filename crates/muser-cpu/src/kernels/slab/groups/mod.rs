//! Slab products for weights in groups of 32 (Q4_0, Q8_0), with any number of activation
//! vectors; a slab is a few rows transposed, each vector element one row.
//!
//! The loops are as in [`superblocks`](super::superblocks), with a sum for each group:
//!
//! ```text
//! for the rows of the tile, L at a time:
//!   for eight groups, ascending:                     256 values
//!     transpose and unpack 256 codes of L rows to a slab
//!     for the columns in blocks of N:
//!       for group g:
//!         S = Σ_k slab.codes[k] · x[4 k .. 4 k + 4], minus the bias · Σ x
//!         p_g = f32(S) · (slab.d[g] · y_g)
//!       acc += ((p0 + p4) + (p2 + p6)) + ((p1 + p5) + (p3 + p7))
//! ```
//!
//! If the length of the rows is not a multiple of 256, their last groups are copied to
//! blocks padded with zeros. At avx2, signed bytes are multiplied as magnitudes with
//! activations that take their sign: two instructions more for each line and column than
//! for nibbles.
//!
//! Traffic: as for superblocks; the slab takes 2.3 KB at avx2, 4.6 KB at avx512.

#[cfg(target_arch = "x86_64")]
pub(crate) mod avx2;
#[cfg(target_arch = "x86_64")]
pub(crate) mod avx512;
pub(crate) mod driver;
pub(crate) mod scalar;

/// A slab: eight groups (256 weights) of `L` rows, unpacked and transposed, so that a
/// line has one element for each row.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub(crate) struct Slab<const L: usize> {
    /// The slab's quantised weights (codes), four in a word; line k has the codes 4 k
    /// .. 4 k + 4 of every row, in the form that the instruction-set level multiplies.
    pub(crate) codes: [[[u8; 4]; L]; 64],
    /// The slab's scale factors, for eight groups of each weight row: a line for each
    /// group, an element for each row.
    pub(crate) d: [[f32; L]; 8],
}

impl<const L: usize> Slab<L> {
    /// A slab (weight rows transposed, one vector element per row) of zeros, before any
    /// weights are unpacked into it.
    pub(crate) const ZERO: Self = Self {
        codes: [[[0; 4]; L]; 64],
        d: [[0.0; L]; 8],
    };
}

/// Adds eight vectors of products, one of each group, to one vector by halves: ((p0 + p4)
/// + (p2 + p6)) + ((p1 + p5) + (p3 + p7)).
macro_rules! fold {
    ($add:path, $p:expr) => {{
        let p = $p;
        let even = $add($add(p[0], p[4]), $add(p[2], p[6]));
        let odd = $add($add(p[1], p[5]), $add(p[3], p[7]));
        $add(even, odd)
    }};
}

pub(crate) use fold;
