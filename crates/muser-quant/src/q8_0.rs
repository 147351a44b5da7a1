//! Q8_0: 32 weights in 34 bytes, signed bytes with one scale.
//!
//! ```text
//!  byte 0     2             34
//!       | d   | q_0 … q_31   |
//!       | f16 | i8           |
//! ```
//!
//! Value `i` of a block is `w = d · q_i`, exact in f32; d: the scale, q_i: the code.
//!
//! ```
//! use muser_quant::{Format as _, q8_0::BlockQ8_0};
//! let mut bytes = [0u8; 34];
//! bytes[..6].copy_from_slice(&[0x00, 0x38, 0x01, 0xff, 0x7f, 0x80]); // d = 0.5
//! let mut w = [0.0; 32];
//! BlockQ8_0::decode(&bytes, &mut w);
//! assert_eq!(w[..5], [0.5, -0.5, 63.5, -64.0, 0.0]);
//! ```

use crate::formats::{Format, Group, GroupCodes, Layout, decode_group};
use crate::{DType, GROUP};

/// The number of bytes in one Q8_0 block of 32 weights.
pub const BYTES: usize = 34;

/// The weight format Q8_0: signed bytes with one scale for each 32 weights.
#[derive(Clone, Copy, Debug)]
pub struct BlockQ8_0;

impl Format for BlockQ8_0 {
    const DTYPE: DType = DType::Q8_0;
    const VALUES: usize = GROUP;
    const BYTES: usize = BYTES;
    const LAYOUT: Layout = Layout {
        factors: &[0],
        scales: 0..0,
        codes: 2..34,
        largest_code: 128,
    };

    fn decode(block: &[u8], out: &mut [f32]) {
        decode_group::<Self>(block, out);
    }
}

impl Group for BlockQ8_0 {
    const CODES: GroupCodes = GroupCodes::Bytes { at: 2 };
}
