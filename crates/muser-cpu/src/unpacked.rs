//! [`Unpacked`]: a superblock of a row, unpacked by the portable kernels.

/// One unpacked superblock of a row.
#[derive(Clone, Copy)]
pub(crate) struct Unpacked {
    /// The codes in natural order, four in a word.
    pub(crate) codes: [[u8; 4]; 64],
    /// The scale of each sub-block: 8, or 16 for Q6_K.
    pub(crate) scales: [i32; 16],
    /// The factors of the activations' sums, in pairs: minima (4 pairs), or the scales
    /// of Q6_K (8 pairs), which serve to subtract the bias.
    pub(crate) pairs: [[i16; 2]; 8],
    /// The factor of the scales.
    pub(crate) d: f32,
    /// The factor of the minima.
    pub(crate) dmin: f32,
}

impl Unpacked {
    /// The value before anything is unpacked.
    pub(crate) const ZERO: Self = Self {
        codes: [[0; 4]; 64],
        scales: [0; 16],
        pairs: [[0; 2]; 8],
        d: 0.0,
        dmin: 0.0,
    };
}
