//! The table of weight formats, and what each of its rows has to say of itself.
//!
//! A format is a row of [`formats!`](crate::formats) and a file of this crate.
//! The row names it; the file has the diagram, the decoder and the exact block
//! dot product, and describes in constants how kernels find codes and scales.
//! [`DType`](crate::DType), the oracle, the kernels of every level, the ladder
//! and the conformance groups are made from the table.

use crate::q8::BlockQ8;
use crate::q8_k::BlockQ8K;
use crate::{DType, GROUP, f16, field};
use std::ops::Range;

/// Calls a macro with the table of formats.
///
/// A row is the variant of [`DType`](crate::DType), the module and the type that
/// describe the format, its name in files, its number as a `ggml_type` in GGUF,
/// and the `general.file_type` of a file made of it. Rows stand under the
/// arithmetic of their products, a variant of [`Arithmetic`].
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

/// How products of a format are computed: where integers end and floats begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Arithmetic {
    /// A float scale for each 32 values, with activations of 32 values a scale.
    Groups,
    /// Integer scales and one float scale for each 256 values, with activations
    /// of 256 values a scale.
    Superblocks,
    /// Floats, with activations as they are.
    Floats,
}

/// What every format says of itself.
pub trait Format {
    /// The format.
    const DTYPE: DType;
    /// Values of a block.
    const VALUES: usize;
    /// Bytes of a block.
    const BYTES: usize;
    /// Where the parts of a block lie.
    const LAYOUT: Layout;

    /// Decodes one block of [`BYTES`](Self::BYTES) to its
    /// [`VALUES`](Self::VALUES).
    ///
    /// # Panics
    /// If one of the slices has another length.
    fn decode(block: &[u8], out: &mut [f32]);
}

/// Where the parts of a block lie, in bytes: for tools that make blocks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Where an f16 factor begins.
    pub factors: &'static [usize],
    /// Integer scales, and minima with them; empty if there are none.
    pub scales: Range<usize>,
    /// Codes.
    pub codes: Range<usize>,
    /// The largest magnitude of a code, its bias taken off; 0 for floats.
    pub largest_code: u8,
}

/// A format of superblocks: integer scales, and floats once for 256 values.
pub trait Superblock: Format {
    /// Sub-blocks with a scale of their own.
    const SUB_BLOCKS: usize;
    /// Whether scales are signed and codes 32 too large, without minima; else
    /// each sub-block has a minimum.
    const SIGNED: bool;
    /// How the codes are packed.
    const CODES: SuperCodes;

    /// The exact sums of one block with one block of activations.
    ///
    /// # Panics
    /// If the block has another length than [`Format::BYTES`].
    fn sums(block: &[u8], a: &BlockQ8K) -> Sums;
}

/// The integers of a superblock's product, and the factors that they meet.
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

/// How a superblock's codes are packed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SuperCodes {
    /// Q4_K: 4 bits.
    Nibbles,
    /// Q5_K: 4 bits, and the fifth of all codes apart.
    NibblesAndBits,
    /// Q6_K: 4 bits, and the two high ones of all codes apart.
    NibblesAndPairs,
}

/// A format of groups: a float scale for each 32 values.
pub trait Group: Format {
    /// How the codes are packed.
    const CODES: GroupCodes;

    /// `Σ_i q_i a_i`, exact, the bias of the codes taken off; below 2^20 in
    /// magnitude.
    ///
    /// # Panics
    /// If the block has another length than [`Format::BYTES`].
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
    /// As [`dot`](Self::dot).
    fn factor(block: &[u8]) -> f32 {
        assert_eq!(block.len(), Self::BYTES, "bytes of a {} block", Self::DTYPE);
        f16::to_f32(u16::from_le_bytes(field(block, 0)))
    }
}

/// Decodes a group: each value is the factor times a code, exact.
pub(crate) fn decode_group<F: Group>(block: &[u8], out: &mut [f32]) {
    assert_eq!(out.len(), F::VALUES, "values of a {} block", F::DTYPE);
    let d = F::factor(block);
    for (i, value) in out.iter_mut().enumerate() {
        *value = d * F::CODES.code(block, i) as f32;
    }
}

/// How the 32 codes of a group are packed, and from which byte of the block on.
/// The factor, an f16, is the block's first two bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GroupCodes {
    /// 32 signed bytes.
    Bytes {
        /// Their first byte.
        at: usize,
    },
    /// 16 bytes: the low nibbles are codes 0 to 15, the high ones 16 to 31.
    Nibbles {
        /// Their first byte.
        at: usize,
        /// What each code is too large by.
        bias: u8,
    },
}

impl GroupCodes {
    /// Code `i` of a block, its bias taken off.
    ///
    /// # Panics
    /// If `i` is not below 32, or the block too short.
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
    /// How a value is encoded.
    const CODES: FloatCodes;

    /// The value in these [`BYTES`](Format::BYTES), exactly.
    ///
    /// # Panics
    /// If there are fewer.
    fn value(bytes: &[u8]) -> f32;
}

/// How a float is encoded, in little-endian order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FloatCodes {
    /// IEEE binary16.
    F16,
    /// The upper half of binary32.
    BF16,
    /// IEEE binary32.
    F32,
}
