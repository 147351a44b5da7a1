//! F16: IEEE binary16, `1 sign | 5 exponent (bias 15) | 10 mantissa`.
//!
//! To f32 the conversion is exact; from f32 it rounds to nearest, ties to
//! even, and overflows to infinity.
//!
//! ```
//! // 0 01111 1000000000 = 1.5
//! assert_eq!(muser_quant::f16::to_f32(0b0_01111_1000000000), 1.5);
//! assert_eq!(muser_quant::f16::from_f32(1.5), 0b0_01111_1000000000);
//! ```

use crate::formats::{Float, FloatCodes, Format, Layout};
use crate::{DType, field};

/// Bytes of one value.
pub const BYTES: usize = 2;

/// The value of these bits, exactly.
pub fn to_f32(bits: u16) -> f32 {
    half::f16::from_bits(bits).to_f32()
}

/// The bits nearest to `x`, ties to even.
pub fn from_f32(x: f32) -> u16 {
    half::f16::from_f32(x).to_bits()
}

/// The format of one value.
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
