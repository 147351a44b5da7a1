//! F32: IEEE binary32, little-endian, as it stands in a file.
//!
//! ```
//! assert_eq!(muser_quant::f32::read(&[0, 0, 0xc0, 0x3f]), vec![1.5]);
//! ```

/// Bytes of one value.
pub const BYTES: usize = 4;

/// The values in these bytes; a last incomplete value is left out.
pub fn read(bytes: &[u8]) -> Vec<f32> {
    bytes
        .as_chunks::<4>()
        .0
        .iter()
        .map(|&b| f32::from_le_bytes(b))
        .collect()
}
