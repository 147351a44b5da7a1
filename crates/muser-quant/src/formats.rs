//! The table of weight formats, and the traits that each format's type implements.
//!
//! A weight format is a row of [`formats!`](crate::formats) and a file of this crate.
//! The row names the format. The file has its diagram, decoder and exact block dot
//! product, and constants that tell kernels where codes and scales are.
//! [`DType`](crate::DType), the oracle (the scalar functions that define each result),
//! the kernels of every instruction-set level, the ladder (the table that picks a
//! kernel) and the conformance groups are generated from the table.

use crate::q8::BlockQ8;
use crate::q8_k::BlockQ8K;
use crate::{DType, GROUP, f16, field};
use std::ops::Range;

/// Calls a macro with the table of weight formats.
///
/// A row of the table has the variant of [`DType`](crate::DType), the module and the
/// type that describe the format, its name in files, its number as a `ggml_type` in
/// GGUF, and the `general.file_type` of a file whose matrices have the format. Rows are
/// listed under the variant of [`Arithmetic`] by which their products are computed.
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

/// The arithmetic in which products with a weight format are computed: which part in
/// integers and which in floats.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Arithmetic {
    /// Products of groups: weights and activations both have a float scale for each 32
    /// values.
    Groups,
    /// Products of superblocks: weights have integer scales and one float scale for each
    /// 256 values, activations a float scale for each 256 values.
    Superblocks,
    /// Products of floats: weights are floats, and activations are not quantised.
    Floats,
}

/// The trait of a weight format: the sizes of a packed block, the places of its factors,
/// scales and codes (quantised values), and its decoder.
pub trait Format {
    /// The variant of the enum [`DType`] that stands for this weight format.
    const DTYPE: DType;
    /// The number of weights in one packed block of the format.
    const VALUES: usize;
    /// The number of bytes in one packed block of the weight format.
    const BYTES: usize;
    /// The places of factors, scales and quantised values (codes) in one packed block of
    /// the weight format.
    const LAYOUT: Layout;

    /// Decodes one packed block of weights, of [`BYTES`](Self::BYTES) bytes, to its
    /// [`VALUES`](Self::VALUES) floats.
    ///
    /// # Panics
    /// If `block` or `out` has another length.
    fn decode(block: &[u8], out: &mut [f32]);
}

/// The places, in bytes, of the factors, scales and codes (quantised values) in a packed
/// block of weights, for tools that generate blocks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    /// The index of the first byte of each f16 factor in a packed block of weights.
    pub factors: &'static [usize],
    /// The range of a packed block's bytes that hold integer scales and minima; empty if
    /// the weight format has none.
    pub scales: Range<usize>,
    /// The range of a packed block's bytes that hold the codes, the quantised weights.
    pub codes: Range<usize>,
    /// The largest magnitude of a code (a quantised weight) after its bias is
    /// subtracted; 0 for float formats.
    pub largest_code: u8,
}

/// The trait of a weight format of superblocks: integer scales, and one or two float
/// factors for each 256 values.
pub trait Superblock: Format {
    /// The number of sub-blocks of a superblock, each of which has a scale.
    const SUB_BLOCKS: usize;
    /// Whether the superblock's scales are signed, its codes (quantised values) have a
    /// bias of 32 and it has no minima. Otherwise each sub-block has a minimum.
    const SIGNED: bool;
    /// The way in which a superblock packs the bits of its quantised values (codes).
    const CODES: SuperCodes;

    /// Computes the exact integer sums of the product of one superblock of weights with
    /// one block of quantised activations.
    ///
    /// # Panics
    /// If the block is not [`Format::BYTES`] long.
    fn sums(block: &[u8], a: &BlockQ8K) -> Sums;
}

/// The integer sums of the product of a superblock of weights with quantised
/// activations, and the float factors to multiply them with.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sums {
    /// The superblock's sum of scaled products, `Σ_j s_j Σ_i q_ij a_ij`; s_j: the scale
    /// of sub-block j, q_ij: its quantised value i minus the bias, a_ij: the quantised
    /// activation.
    pub sum: i32,
    /// The superblock's sum of minima, `Σ_j m_j Σ_i a_ij`; m_j: the minimum of sub-block
    /// j, a_ij: its quantised activations; 0 without minima.
    pub min: i32,
    /// The float factor that a superblock's integer scales are multiplied by.
    pub d: f32,
    /// The float factor that a superblock's integer minima are multiplied by; 0 without
    /// minima.
    pub dmin: f32,
}

/// The way in which a superblock of 256 weights packs the bits of its quantised values
/// (codes).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SuperCodes {
    /// The packing of the quantised values (codes) of a Q4_K superblock: the 4 bits of
    /// all codes.
    Nibbles,
    /// The packing of the quantised values (codes) of a Q5_K superblock: the low 4 bits
    /// of all codes, and their fifth bits.
    NibblesAndBits,
    /// The packing of the quantised values (codes) of a Q6_K superblock: the low 4 bits
    /// of all codes, then their two high bits.
    NibblesAndPairs,
}

/// The trait of a weight format of groups: one float scale for each 32 values.
pub trait Group: Format {
    /// The way in which a group of 32 weights packs the bits of its quantised values
    /// (codes).
    const CODES: GroupCodes;

    /// Computes the exact product of a group of 32 weights with quantised activations,
    /// `Σ_i q_i a_i`; q_i: the quantised weight minus its bias, a_i: the quantised
    /// activation. It is below 2^20 in magnitude.
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

    /// Returns the scale of a group of 32 weights, which its quantised values (codes) are
    /// multiplied by.
    ///
    /// # Panics
    /// If the block is not [`Format::BYTES`] long.
    fn factor(block: &[u8]) -> f32 {
        assert_eq!(block.len(), Self::BYTES, "bytes of a {} block", Self::DTYPE);
        f16::to_f32(u16::from_le_bytes(field(block, 0)))
    }
}

/// Decodes a group of 32 weights: each is the group's scale times a quantised value
/// (code), which is exact in f32.
pub(crate) fn decode_group<F: Group>(block: &[u8], out: &mut [f32]) {
    assert_eq!(out.len(), F::VALUES, "values of a {} block", F::DTYPE);
    let d = F::factor(block);
    for (i, value) in out.iter_mut().enumerate() {
        *value = d * F::CODES.code(block, i) as f32;
    }
}

/// The way in which a group packs the bits of its 32 codes (quantised values), and the
/// byte of the block where they begin. The first two bytes of a block are its scale, an
/// f16.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GroupCodes {
    /// The packing of a group's 32 quantised values (codes) as 32 signed bytes.
    Bytes {
        /// The index of the byte in a group's block where its quantised values (codes)
        /// begin.
        at: usize,
    },
    /// The packing of a group's 32 quantised values (codes) in 16 bytes: the low nibbles
    /// are codes 0 to 15, the high nibbles 16 to 31.
    Nibbles {
        /// The index of the byte in a group's block where its quantised values (codes)
        /// begin.
        at: usize,
        /// The bias to subtract from each 4-bit quantised value (code) of a group of
        /// weights.
        bias: u8,
    },
}

impl GroupCodes {
    /// Returns the quantised weight `i` (code `i`) of a group's block, minus its bias.
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

/// The trait of a weight format whose values are floats (F16, BF16, F32).
pub trait Float: Format {
    /// The encoding of one weight of a float format.
    const CODES: FloatCodes;

    /// Converts the [`BYTES`](Format::BYTES) bytes of one float weight to f32, exactly.
    ///
    /// # Panics
    /// If there are fewer bytes.
    fn value(bytes: &[u8]) -> f32;
}

/// The encoding of a float weight, in little-endian order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FloatCodes {
    /// The encoding of F16 weights: IEEE binary16.
    F16,
    /// The encoding of BF16 weights: the upper half of IEEE binary32.
    BF16,
    /// The encoding of F32 weights: IEEE binary32.
    F32,
}
