//! BF16: the upper half of binary32, `1 sign | 8 exponent | 7 mantissa`.
//!
//! The conversion to f32 is exact. The conversion from f32 rounds to nearest, ties to
//! even.
//!
//! ```
//! // 0 01111111 1000000 = 1.5
//! assert_eq!(muser_quant::bf16::to_f32(0b0_01111111_1000000), 1.5);
//! assert_eq!(muser_quant::bf16::from_f32(1.5), 0b0_01111111_1000000);
//! ```

use crate::formats::{Float, FloatCodes, Format, Layout};
use crate::{DType, field};

/// The number of bytes in one BF16 value.
pub const BYTES: usize = 2;

/// Converts the bits of a BF16 value to f32, exactly.
pub fn to_f32(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}

/// Rounds `x` to BF16, to nearest, ties to even, and returns the bits.
pub fn from_f32(x: f32) -> u16 {
    half::bf16::from_f32(x).to_bits()
}

/// The weight format BF16, whose block is one value.
#[derive(Clone, Copy, Debug)]
pub struct BF16;

impl Format for BF16 {
    const DTYPE: DType = DType::BF16;
    const VALUES: usize = 1;
    const BYTES: usize = BYTES;
    const LAYOUT: Layout = Layout {
        factors: &[],
        scales: 0..0,
        codes: 0..BYTES,
        largest_code: 0,
    };

    fn decode(block: &[u8], out: &mut [f32]) {
        out[0] = Self::value(block);
    }
}

impl Float for BF16 {
    const CODES: FloatCodes = FloatCodes::BF16;

    fn value(bytes: &[u8]) -> f32 {
        to_f32(u16::from_le_bytes(field(bytes, 0)))
    }
}
