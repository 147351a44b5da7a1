//! Q4_0: 32 weights in 18 bytes, 4-bit quantised values (codes) with one scale.
//!
//! ```text
//!  byte 0     2               18
//!       | d   | 16 bytes       |
//!       | f16 | low nibble of byte i: value i; high nibble: value 16 + i
//! ```
//!
//! Value `i` of a block is `w = d · (q_i - 8)`, exact in f32; d: the scale, q_i: the
//! code, in `0..=15`.
//!
//! ```
//! use muser_quant::{Format as _, q4_0::BlockQ4_0};
//! let mut bytes = [0u8; 18];
//! bytes[..3].copy_from_slice(&[0x00, 0x38, 0x1f]); // d = 0.5
//! let mut w = [0.0; 32];
//! BlockQ4_0::decode(&bytes, &mut w);
//! assert_eq!((w[0], w[1], w[16]), (3.5, -4.0, -3.5));
//! ```

use crate::formats::{Format, Group, GroupCodes, Layout, decode_group};
use crate::{DType, GROUP};

/// The number of bytes in one Q4_0 block of 32 weights.
pub const BYTES: usize = 18;

/// The weight format Q4_0: 4-bit quantised values (codes) with one scale for each 32
/// weights.
#[derive(Clone, Copy, Debug)]
pub struct BlockQ4_0;

impl Format for BlockQ4_0 {
    const DTYPE: DType = DType::Q4_0;
    const VALUES: usize = GROUP;
    const BYTES: usize = BYTES;
    const LAYOUT: Layout = Layout {
        factors: &[0],
        scales: 0..0,
        codes: 2..18,
        largest_code: 8,
    };

    fn decode(block: &[u8], out: &mut [f32]) {
        decode_group::<Self>(block, out);
    }
}

impl Group for BlockQ4_0 {
    const CODES: GroupCodes = GroupCodes::Nibbles { at: 2, bias: 8 };
}
