//! The table of weight formats, and the traits that a format implements.
//!
//! A format is a row of [`formats!`](crate::formats) and a file of this crate. The row
//! names the format. The file has its diagram, decoder and exact block dot product, and
//! constants that tell kernels where codes and scales are. [`DType`](crate::DType), the
//! oracle, the kernels of every level, the ladder and the conformance groups are
//! generated from the table.

use crate::q8::BlockQ8;
use crate::q8_k::BlockQ8K;
use crate::{DType, GROUP, f16, field};
use std::ops::Range;

/// Calls a macro with the table of formats.
///
/// A row has the variant of [`DType`](crate::DType), the module and the type that
/// describe the format, its name in files, its number as a `ggml_type` in GGUF, and the
/// `general.file_type` of a file whose matrices have the format. Rows are listed under
/// the variant of [`Arithmetic`] by which their products are computed.
///
/// ```
/// macro_rules! names {
///     ($($arithmetic:ident { $($variant:ident $module:ident $block:ident
///         $name:literal $ggml:literal $file:literal;)* })*) => { [$($($name,)*)*] };
/// }
/// assert!(muser_quant::formats!(names).contains(&"Q4_K"));
/// ```
#[macro_export]
macro_rules! formats {
    ($then:ident) => {
        $then! {
            // variant  module  type  name  ggml_type  file_type
            Groups {
                Q4_0 q4_0 BlockQ4_0 "Q4_0" 2 2;
                Q8_0 q8_0 BlockQ8_0 "Q8_0" 8 7;
            }
            Superblocks {
                Q4K q4_k BlockQ4K "Q4_K" 12 14;
                Q5K q5_k BlockQ5K "Q5_K" 13 16;
                Q6K q6_k BlockQ6K "Q6_K" 14 18;
            }
            Floats {
                F16 f16 F16 "F16" 1 1;
                BF16 bf16 BF16 "BF16" 30 32;
                F32 f32 F32 "F32" 0 0;
            }
        }
    };
}

/// The arithmetic of products with a format: which part is computed in integers and
/// which in floats.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Arithmetic {
    /// Weights and activations both have a float scale for each 32 values.
    Groups,
    /// Weights have integer scales and one float scale for each 256 values, activations
    /// a float scale for each 256 values.
    Superblocks,
    /// Weights are floats, and activations are not quantised.
    Floats,
}

/// A weight format.
pub trait Format {
    /// The format's variant of [`DType`].
    const DTYPE: DType;
    /// The number of values in a block.
    const VALUES: usize;
    /// The number of bytes in a block.
    const BYTES: usize;
    /// The places of a block's parts.
    const LAYOUT: Layout;

    /// Decodes one block of [`BYTES`](Self::BYTES) bytes to its [`VALUES`](Self::VALUES)
    /// values.
    ///
    /// # Panics
    /// If `block` or `out` has another length.
    fn decode(block: &[u8], out: &mut [f32]);
}

/// The places of a block's parts, in bytes. For tools that generate blocks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    /// The first byte of each f16 factor.
    pub factors: &'static [usize],
    /// The bytes of integer scales and minima; empty if there are none.
    pub scales: Range<usize>,
    /// The bytes of the codes.
    pub codes: Range<usize>,
    /// The largest magnitude of a code after its bias is subtracted; 0 for floats.
    pub largest_code: u8,
}

/// A format of superblocks: integer scales, and one or two float factors for each 256
/// values.
pub trait Superblock: Format {
    /// The number of sub-blocks, which have a scale each.
    const SUB_BLOCKS: usize;
    /// Whether scales are signed, codes have a bias of 32 and there are no minima.
    /// Otherwise each sub-block has a minimum.
    const SIGNED: bool;
    /// The packing of the codes.
    const CODES: SuperCodes;

    /// Computes the exact integer sums of one block with one block of activations.
    ///
    /// # Panics
    /// If the block is not [`Format::BYTES`] long.
    fn sums(block: &[u8], a: &BlockQ8K) -> Sums;
}

/// The integer sums of a superblock's product, and the float factors to multiply them
/// with.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sums {
    /// `Σ_j s_j Σ_i q_ij a_ij`.
    pub sum: i32,
    /// `Σ_j m_j Σ_i a_ij`; 0 without minima.
    pub min: i32,
    /// The factor of the scales.
    pub d: f32,
    /// The factor of the minima; 0 without minima.
    pub dmin: f32,
}

/// The packing of a superblock's codes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SuperCodes {
    /// Q4_K: the 4 bits of all codes.
    Nibbles,
    /// Q5_K: the low 4 bits of all codes, then their fifth bits.
    NibblesAndBits,
    /// Q6_K: the low 4 bits of all codes, then their two high bits.
    NibblesAndPairs,
}

/// A format of groups: a float scale for each 32 values.
pub trait Group: Format {
    /// The packing of the codes.
    const CODES: GroupCodes;

    /// Computes `Σ_i q_i a_i` exactly, for codes minus their bias; below 2^20 in
    /// magnitude.
    ///
    /// # Panics
    /// If the block is not [`Format::BYTES`] long.
    fn dot(block: &[u8], a: &BlockQ8) -> i32 {
        assert_eq!(block.len(), Self::BYTES, "bytes of a {} block", Self::DTYPE);
        let products = a.q.iter().enumerate();
        products
            .map(|(i, &a)| Self::CODES.code(block, i) * i32::from(a))
            .sum()
    }

    /// The factor of the codes.
    ///
    /// # Panics
    /// If the block is not [`Format::BYTES`] long.
    fn factor(block: &[u8]) -> f32 {
        assert_eq!(block.len(), Self::BYTES, "bytes of a {} block", Self::DTYPE);
        f16::to_f32(u16::from_le_bytes(field(block, 0)))
    }
}

/// Decodes a group: each value is the factor times a code, which is exact in f32.
pub(crate) fn decode_group<F: Group>(block: &[u8], out: &mut [f32]) {
    assert_eq!(out.len(), F::VALUES, "values of a {} block", F::DTYPE);
    let d = F::factor(block);
    for (i, value) in out.iter_mut().enumerate() {
        *value = d * F::CODES.code(block, i) as f32;
    }
}

/// The packing of a group's 32 codes, and the byte of the block where they begin. The
/// first two bytes of a block are its factor, an f16.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GroupCodes {
    /// 32 signed bytes.
    Bytes {
        /// The first byte of the codes.
        at: usize,
    },
    /// 16 bytes: the low nibbles are codes 0 to 15, the high nibbles 16 to 31.
    Nibbles {
        /// The first byte of the codes.
        at: usize,
        /// The bias to subtract from each code.
        bias: u8,
    },
}

impl GroupCodes {
    /// Returns code `i` of a block, minus its bias.
    ///
    /// # Panics
    /// If `i` is not below 32, or the block is too short.
    pub fn code(self, block: &[u8], i: usize) -> i32 {
        assert!(i < GROUP, "code {i} of a group");
        match self {
            Self::Bytes { at } => i32::from(block[at + i].cast_signed()),
            Self::Nibbles { at, bias } => {
                let byte = block[at + i % 16];
                let code = if i < 16 { byte & 15 } else { byte >> 4 };
                i32::from(code) - i32::from(bias)
            }
        }
    }
}

/// A float format.
pub trait Float: Format {
    /// The encoding of a value.
    const CODES: FloatCodes;

    /// Converts the [`BYTES`](Format::BYTES) bytes of a value to f32, exactly.
    ///
    /// # Panics
    /// If there are fewer bytes.
    fn value(bytes: &[u8]) -> f32;
}

/// The encoding of a float, in little-endian order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FloatCodes {
    /// IEEE binary16.
    F16,
    /// The upper half of binary32.
    BF16,
    /// IEEE binary32.
    F32,
}
