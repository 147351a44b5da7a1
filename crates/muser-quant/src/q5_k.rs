//! Q5_K: 256 weights in 176 bytes; Q4_K with a fifth bit in each quantised value (code).
//!
//! ```text
//!  byte 0    2      4            16            48                   176
//!       | d  | dmin | 8 s, 8 m   | fifth bits  | nibbles             |
//!       | f16| f16  | 12 bytes   | 32 bytes    | 128 bytes           |
//!
//!  nibbles: as in Q4_K; value 64 g + i in the low nibble of byte 32 g + i,
//!           value 64 g + 32 + i in the high one
//!  fifth bits: bit j of byte i is bit 4 of value i of sub-block j
//! ```
//!
//! Value `i` of sub-block `j` is `w = (d · s_j) · q - (dmin · m_j)`; d, dmin: the
//! factors of scales and minima, s_j, m_j: scale and minimum of the sub-block, q: the
//! code, in `0..=31`. Each product, and then the difference, is rounded to f32.
//!
//! ```
//! use muser_quant::q5_k::BlockQ5K;
//! let mut bytes = [0u8; 176];
//! bytes[0..2].copy_from_slice(&0x3c00u16.to_le_bytes()); // d = 1.0
//! bytes[4] = 2; // s_0
//! bytes[5] = 1; // s_1
//! bytes[16] = 0b10; // value 0: bit of sub-block 1 only
//! bytes[48] = 0x3_7;
//! let w = BlockQ5K::from_bytes(&bytes).decode();
//! assert_eq!(w[0], 2.0 * 7.0);
//! assert_eq!(w[32], 16.0 + 3.0);
//! ```

use crate::formats::{Format, Layout, Sums, SuperCodes, Superblock};
use crate::q8_k::BlockQ8K;
use crate::{DType, QK, f16, field, packed_scales, whole};

/// The number of bytes in one Q5_K superblock of 256 weights.
pub const BYTES: usize = 176;

/// One Q5_K superblock of 256 weights, with its fields as a GGUF file stores them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct BlockQ5K {
    /// The float factor of the Q5_K superblock's integer scales, as f16 bits.
    pub d: u16,
    /// The float factor of the Q5_K superblock's integer minima, as f16 bits.
    pub dmin: u16,
    /// The eight 6-bit scales and eight 6-bit minima of a Q5_K superblock, packed.
    pub scales: [u8; 12],
    /// The fifth bit of each quantised value (code) of a Q5_K superblock.
    pub high: [u8; QK / 8],
    /// The low four bits of each quantised value (code) of a Q5_K superblock, two codes
    /// in a byte.
    pub low: [u8; QK / 2],
}

const _: () = assert!(size_of::<BlockQ5K>() == BYTES);

impl BlockQ5K {
    /// Reads a Q5_K superblock from its bytes. Any bytes are a valid block.
    pub fn from_bytes(b: &[u8; BYTES]) -> Self {
        Self {
            d: u16::from_le_bytes(field(b, 0)),
            dmin: u16::from_le_bytes(field(b, 2)),
            scales: field(b, 4),
            high: field(b, 16),
            low: field(b, 48),
        }
    }

    /// Returns the quantised value (code) of weight `i` of the Q5_K superblock, in
    /// `0..=31`.
    pub fn code(&self, i: usize) -> u8 {
        let (group, within) = (i / 64, i % 64);
        let byte = self.low[32 * group + within % 32];
        let low = if within < 32 { byte & 15 } else { byte >> 4 };
        let fifth = self.high[i % 32] >> (i / 32) & 1;
        fifth << 4 | low
    }

    /// Unpacks the eight scales and the eight minima of a Q5_K superblock, each
    /// `0..=63`.
    pub fn scales_mins(&self) -> ([u8; 8], [u8; 8]) {
        packed_scales::unpack(&self.scales)
    }

    /// Decodes the Q5_K superblock to its 256 weights.
    pub fn decode(&self) -> [f32; QK] {
        let (d, dmin) = (crate::f16::to_f32(self.d), crate::f16::to_f32(self.dmin));
        let (s, m) = self.scales_mins();
        std::array::from_fn(|i| {
            let j = i / 32;
            let scale = d * f32::from(s[j]);
            let min = dmin * f32::from(m[j]);
            scale * f32::from(self.code(i)) - min
        })
    }

    /// Computes the two exact sums of a Q5_K superblock with quantised activations,
    /// `(Σ_j s_j Σ_i q_ij a_ij, Σ_j m_j Σ_i a_ij)`; s_j, m_j: scale and minimum of
    /// sub-block j, q_ij: its quantised values (codes), a_ij: the quantised activations.
    ///
    /// The first sum, of products, is below 256 · 63 · 31 · 127 < 2^26 in magnitude, the
    /// second, of minima, below 256 · 63 · 127 < 2^21.
    pub fn dot(&self, a: &BlockQ8K) -> (i32, i32) {
        let (s, m) = self.scales_mins();
        let (mut sum, mut min) = (0, 0);
        for i in 0..QK {
            let j = i / 32;
            sum += i32::from(s[j]) * i32::from(self.code(i)) * i32::from(a.q[i]);
            min += i32::from(m[j]) * i32::from(a.q[i]);
        }
        (sum, min)
    }
}

impl Format for BlockQ5K {
    const DTYPE: DType = DType::Q5K;
    const VALUES: usize = QK;
    const BYTES: usize = BYTES;
    const LAYOUT: Layout = Layout {
        factors: &[0, 2],
        scales: 4..16,
        codes: 16..176,
        largest_code: 31,
    };

    fn decode(block: &[u8], out: &mut [f32]) {
        out.copy_from_slice(&Self::from_bytes(whole(block)).decode());
    }
}

impl Superblock for BlockQ5K {
    const SUB_BLOCKS: usize = 8;
    const SIGNED: bool = false;
    const CODES: SuperCodes = SuperCodes::NibblesAndBits;

    fn sums(block: &[u8], a: &BlockQ8K) -> Sums {
        let block = Self::from_bytes(whole(block));
        let (sum, min) = block.dot(a);
        Sums {
            sum,
            min,
            d: f16::to_f32(block.d),
            dmin: f16::to_f32(block.dmin),
        }
    }
}
