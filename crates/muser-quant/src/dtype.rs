//! The weight formats as one type.

use crate::{QK, bf16, f16, q4_k, q5_k, q6_k};

/// The format of a weight tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum DType {
    /// IEEE binary32.
    F32,
    /// IEEE binary16.
    F16,
    /// The upper half of binary32.
    BF16,
    /// 4-bit codes, 144 bytes a 256 values.
    Q4K,
    /// 5-bit codes, 176 bytes a 256 values.
    Q5K,
    /// 6-bit codes, 210 bytes a 256 values.
    Q6K,
}

/// Why a row cannot be decoded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RowError {
    /// The format of the row.
    pub dtype: DType,
    /// Values wanted.
    pub values: usize,
    /// Bytes given.
    pub bytes: usize,
}

impl std::fmt::Display for RowError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self {
            dtype,
            values,
            bytes,
        } = self;
        match dtype.row_bytes(*values) {
            Some(want) => write!(f, "{values} {dtype} values are {want} bytes, found {bytes}"),
            None => write!(
                f,
                "a {dtype} row holds a multiple of {} values, found {values}",
                dtype.block_values()
            ),
        }
    }
}

impl std::error::Error for RowError {}

impl DType {
    /// Every format, in the order of its bits a value.
    pub const ALL: [Self; 6] = [
        Self::Q4K,
        Self::Q5K,
        Self::Q6K,
        Self::F16,
        Self::BF16,
        Self::F32,
    ];

    /// The name in files and messages: `Q4_K`, `F16`, …
    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "F32",
            Self::F16 => "F16",
            Self::BF16 => "BF16",
            Self::Q4K => "Q4_K",
            Self::Q5K => "Q5_K",
            Self::Q6K => "Q6_K",
        }
    }

    /// The format of this name, in either case.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL
            .into_iter()
            .find(|t| t.name().eq_ignore_ascii_case(name))
    }

    /// Values in one block.
    pub fn block_values(self) -> usize {
        if self.is_k_quant() { QK } else { 1 }
    }

    /// Bytes of one block.
    pub fn block_bytes(self) -> usize {
        match self {
            Self::F32 => crate::f32::BYTES,
            Self::F16 => f16::BYTES,
            Self::BF16 => bf16::BYTES,
            Self::Q4K => q4_k::BYTES,
            Self::Q5K => q5_k::BYTES,
            Self::Q6K => q6_k::BYTES,
        }
    }

    /// Whether the format has superblocks and meets quantised activations.
    pub fn is_k_quant(self) -> bool {
        matches!(self, Self::Q4K | Self::Q5K | Self::Q6K)
    }

    /// Bytes of a row of `values`; `None` if it is not whole blocks, or
    /// overflows.
    pub fn row_bytes(self, values: usize) -> Option<usize> {
        if !values.is_multiple_of(self.block_values()) {
            return None;
        }
        (values / self.block_values()).checked_mul(self.block_bytes())
    }

    /// Decodes a row into `out`, whose length says how many values it has.
    pub fn decode_row(self, bytes: &[u8], out: &mut [f32]) -> Result<(), RowError> {
        let values = out.len();
        if self.row_bytes(values) != Some(bytes.len()) {
            return Err(RowError {
                dtype: self,
                values,
                bytes: bytes.len(),
            });
        }
        match self {
            Self::F32 => decode_each(bytes, out, f32::from_le_bytes),
            Self::F16 => decode_each(bytes, out, |b| f16::to_f32(u16::from_le_bytes(b))),
            Self::BF16 => decode_each(bytes, out, |b| bf16::to_f32(u16::from_le_bytes(b))),
            Self::Q4K => decode_blocks(bytes, out, |b| q4_k::BlockQ4K::from_bytes(b).decode()),
            Self::Q5K => decode_blocks(bytes, out, |b| q5_k::BlockQ5K::from_bytes(b).decode()),
            Self::Q6K => decode_blocks(bytes, out, |b| q6_k::BlockQ6K::from_bytes(b).decode()),
        }
        Ok(())
    }
}

impl std::fmt::Display for DType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.name())
    }
}

fn decode_each<const N: usize>(bytes: &[u8], out: &mut [f32], value: impl Fn([u8; N]) -> f32) {
    for (o, &b) in out.iter_mut().zip(bytes.as_chunks::<N>().0) {
        *o = value(b);
    }
}

fn decode_blocks<const N: usize>(
    bytes: &[u8],
    out: &mut [f32],
    block: impl Fn(&[u8; N]) -> [f32; QK],
) {
    for (o, b) in out
        .as_chunks_mut::<QK>()
        .0
        .iter_mut()
        .zip(bytes.as_chunks::<N>().0)
    {
        *o = block(b);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_the_wrong_size_are_refused_by_name() {
        let mut out = vec![0.0; 300];
        let e = DType::Q4K.decode_row(&[0; 144], &mut out).unwrap_err();
        assert_eq!(
            e.to_string(),
            "a Q4_K row holds a multiple of 256 values, found 300"
        );
        let e = DType::Q6K
            .decode_row(&[0; 144], &mut out[..256])
            .unwrap_err();
        assert_eq!(e.to_string(), "256 Q6_K values are 210 bytes, found 144");
        assert_eq!(DType::F32.row_bytes(usize::MAX), None);
    }

    #[test]
    fn names_round_trip() {
        for t in DType::ALL {
            assert_eq!(DType::from_name(&t.name().to_lowercase()), Some(t));
        }
        assert_eq!(DType::from_name("Q4_0"), None);
    }
}
