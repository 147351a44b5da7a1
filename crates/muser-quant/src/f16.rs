//! F16: IEEE binary16, `1 sign | 5 exponent (bias 15) | 10 mantissa`.
//!
//! The conversion to f32 is exact. The conversion from f32 rounds to nearest, ties to
//! even, and overflows to infinity.
//!
//! ```
//! // 0 01111 1000000000 = 1.5
//! assert_eq!(muser_quant::f16::to_f32(0b0_01111_1000000000), 1.5);
//! assert_eq!(muser_quant::f16::from_f32(1.5), 0b0_01111_1000000000);
//! ```

use crate::formats::{Float, FloatCodes, Format, Layout};
use crate::{DType, field};

/// The number of bytes in one F16 value.
pub const BYTES: usize = 2;

/// Converts the bits of an F16 value to f32, exactly.
pub fn to_f32(bits: u16) -> f32 {
    half::f16::from_bits(bits).to_f32()
}

/// Rounds `x` to F16, to nearest, ties to even, and returns the bits.
pub fn from_f32(x: f32) -> u16 {
    half::f16::from_f32(x).to_bits()
}

/// The weight format F16, whose block is one value.
#[derive(Clone, Copy, Debug)]
pub struct F16;

impl Format for F16 {
    const DTYPE: DType = DType::F16;
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

impl Float for F16 {
    const CODES: FloatCodes = FloatCodes::F16;

    fn value(bytes: &[u8]) -> f32 {
        to_f32(u16::from_le_bytes(field(bytes, 0)))
    }
}
