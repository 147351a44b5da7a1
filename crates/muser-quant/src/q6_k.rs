//! Q6_K: 256 weights in 210 bytes, sixteen sub-blocks of 16 with a signed
//! 8-bit scale each and no minimum.
//!
//! ```text
//!  byte 0                128                192           208   210
//!       | low nibbles    | high bit pairs   | 16 scales   | d   |
//!       | 128 bytes      | 64 bytes         | i8          | f16 |
//!
//!  two halves h of 128 values; in half h, for i in 0..32:
//!    low byte 64 h + i       low nibble: value 128 h + i        high: + 64
//!    low byte 64 h + 32 + i  low nibble: value 128 h + 32 + i   high: + 64
//!    pair byte 32 h + i      bits 1..0: value 128 h + i
//!                            bits 3..2: value 128 h + 32 + i
//!                            bits 5..4: value 128 h + 64 + i
//!                            bits 7..6: value 128 h + 96 + i
//! ```
//!
//! Value `i` of sub-block `j` is `w = (d · s_j) · (q - 32)`; d: the factor of the
//! scales, s_j: the scale, q: the code, in `0..=63`. Each product is rounded to f32.
//!
//! ```
//! use muser_quant::q6_k::BlockQ6K;
//! let mut bytes = [0u8; 210];
//! bytes[0] = 0x2_1; // value 0: 1, value 64: 2
//! bytes[128] = 0b00_11_00_10; // value 0: 2 << 4, value 64: 3 << 4
//! bytes[192] = -2i8 as u8; // s_0
//! bytes[196] = 1; // s_4, values 64..80
//! bytes[208..210].copy_from_slice(&0x4000u16.to_le_bytes()); // d = 2.0
//! let w = BlockQ6K::from_bytes(&bytes).decode();
//! assert_eq!(w[0], 2.0 * -2.0 * (33.0 - 32.0));
//! assert_eq!(w[64], 2.0 * (50.0 - 32.0));
//! ```

use crate::formats::{Format, Layout, Sums, SuperCodes, Superblock};
use crate::q8_k::BlockQ8K;
use crate::{DType, QK, f16, field, whole};

/// The number of bytes in one Q6_K superblock of 256 weights.
pub const BYTES: usize = 210;

/// One Q6_K superblock of 256 weights, with its fields as a GGUF file stores them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct BlockQ6K {
    /// The low four bits of each quantised value (code) of a Q6_K superblock, two codes
    /// in a byte.
    pub low: [u8; QK / 2],
    /// The high two bits of each quantised value (code) of a Q6_K superblock, four codes
    /// in a byte.
    pub high: [u8; QK / 4],
    /// The integer scales of a Q6_K superblock, one for each 16 weights.
    pub scales: [i8; QK / 16],
    /// The float factor of the Q6_K superblock's integer scales, as f16 bits.
    pub d: u16,
}

const _: () = assert!(size_of::<BlockQ6K>() == BYTES);

impl BlockQ6K {
    /// Reads a Q6_K superblock from its bytes. Any bytes are a valid block.
    pub fn from_bytes(b: &[u8; BYTES]) -> Self {
        Self {
            low: field(b, 0),
            high: field(b, 128),
            scales: field::<16>(b, 192).map(u8::cast_signed),
            d: u16::from_le_bytes(field(b, 208)),
        }
    }

    /// Returns the quantised value (code) of weight `i` of the Q6_K superblock, in
    /// `0..=63`; its bias of 32 is not subtracted.
    pub fn code(&self, i: usize) -> u8 {
        let (half, within) = (i / 128, i % 128);
        let byte = self.low[64 * half + within % 64];
        let low = if within < 64 { byte & 15 } else { byte >> 4 };
        let pair = self.high[32 * half + within % 32] >> (2 * (within / 32)) & 3;
        pair << 4 | low
    }

    /// Decodes the Q6_K superblock to its 256 weights.
    pub fn decode(&self) -> [f32; QK] {
        let d = crate::f16::to_f32(self.d);
        std::array::from_fn(|i| {
            let scale = d * f32::from(self.scales[i / 16]);
            scale * f32::from(i16::from(self.code(i)) - 32)
        })
    }

    /// Computes the exact product of a Q6_K superblock with quantised activations,
    /// `Σ_j s_j Σ_i (q_ij - 32) a_ij`; s_j: the scale of sub-block j, q_ij: its quantised
    /// values (codes), a_ij: the quantised activations. It is below 256 · 128 · 32 · 127
    /// < 2^27 in magnitude.
    pub fn dot(&self, a: &BlockQ8K) -> i32 {
        (0..QK)
            .map(|i| {
                let w = i32::from(self.code(i)) - 32;
                i32::from(self.scales[i / 16]) * w * i32::from(a.q[i])
            })
            .sum()
    }
}

impl Format for BlockQ6K {
    const DTYPE: DType = DType::Q6K;
    const VALUES: usize = QK;
    const BYTES: usize = BYTES;
    const LAYOUT: Layout = Layout {
        factors: &[208],
        scales: 192..208,
        codes: 0..192,
        largest_code: 32,
    };

    fn decode(block: &[u8], out: &mut [f32]) {
        out.copy_from_slice(&Self::from_bytes(whole(block)).decode());
    }
}

impl Superblock for BlockQ6K {
    const SUB_BLOCKS: usize = 16;
    const SIGNED: bool = true;
    const CODES: SuperCodes = SuperCodes::NibblesAndPairs;

    fn sums(block: &[u8], a: &BlockQ8K) -> Sums {
        let block = Self::from_bytes(whole(block));
        Sums {
            sum: block.dot(a),
            min: 0,
            d: f16::to_f32(block.d),
            dmin: 0.0,
        }
    }
}
