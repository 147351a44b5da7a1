//! The form, [`Unpacked`], to which the portable kernels unpack a superblock (256
//! quantised weights) of a row.

/// A superblock of a row, unpacked: the codes of 256 quantised weights, their scales and
/// minima.
#[derive(Clone, Copy)]
pub(crate) struct Unpacked {
    /// The quantised values (codes) of the 256 weights in natural order, four in a
    /// word.
    pub(crate) codes: [[u8; 4]; 64],
    /// The scale of each sub-block of the superblock: 8, or 16 for Q6_K.
    pub(crate) scales: [i32; 16],
    /// The integers that multiply the sums of activations, in pairs: minima (4 pairs), or
    /// the scales of Q6_K (8 pairs), which serve to subtract the codes' bias (zero
    /// point).
    pub(crate) pairs: [[i16; 2]; 8],
    /// The superblock's factor d, by which its sub-blocks' scales are multiplied.
    pub(crate) d: f32,
    /// The superblock's factor dmin, by which its sub-blocks' minima are multiplied.
    pub(crate) dmin: f32,
}

impl Unpacked {
    /// An unpacked superblock of zeros, before any weights are unpacked into it.
    pub(crate) const ZERO: Self = Self {
        codes: [[0; 4]; 64],
        scales: [0; 16],
        pairs: [[0; 2]; 8],
        d: 0.0,
        dmin: 0.0,
    };
}
