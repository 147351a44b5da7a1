//! F32: IEEE binary32, little-endian.
//!
//! ```
//! assert_eq!(muser_quant::f32::read(&[0, 0, 0xc0, 0x3f]), vec![1.5]);
//! ```

use crate::formats::{Float, FloatCodes, Format, Layout};
use crate::{DType, field};

/// The number of bytes in one F32 value.
pub const BYTES: usize = 4;

/// Reads f32 values from their little-endian bytes. An incomplete value at the end is
/// ignored.
pub fn read(bytes: &[u8]) -> Vec<f32> {
    bytes
        .as_chunks::<4>()
        .0
        .iter()
        .map(|&b| f32::from_le_bytes(b))
        .collect()
}

/// The weight format F32, whose block is one value.
#[derive(Clone, Copy, Debug)]
pub struct F32;

impl Format for F32 {
    const DTYPE: DType = DType::F32;
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

impl Float for F32 {
    const CODES: FloatCodes = FloatCodes::F32;

    fn value(bytes: &[u8]) -> f32 {
        f32::from_le_bytes(field(bytes, 0))
    }
}
