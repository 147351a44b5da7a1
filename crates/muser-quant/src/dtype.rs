//! [`DType`]: the formats in which GGUF files store weights (Q4_K, F16, …), as one enum.

use crate::formats;
use crate::formats::{Arithmetic, Format, Layout};

/// Defines the enum [`DType`] and its methods from the crate's table of weight formats.
macro_rules! define {
    ($($arithmetic:ident { $(
        $variant:ident $module:ident $block:ident $name:literal $ggml:literal $file:literal;
    )* })*) => {
        /// The format in which a weight tensor's values are stored, such as Q4_K or F16:
        /// a row of the table [`formats!`](crate::formats).
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum DType {
            $($(
                #[doc = concat!("[`", $name, "`](mod@crate::", stringify!($module), ").")]
                $variant,
            )*)*
        }

        impl Arithmetic {
            /// Returns the weight formats whose products are computed in this arithmetic
            /// (groups, superblocks or floats), in the order of the table of formats.
            pub const fn formats(self) -> &'static [DType] {
                match self {
                    $(Self::$arithmetic => &[$(DType::$variant,)*],)*
                }
            }
        }

        impl DType {
            /// Every weight format, in the order of the table of formats.
            pub const ALL: [Self; [$($($name,)*)*].len()] = [$($(Self::$variant,)*)*];

            /// The names of all weight formats, separated by commas.
            pub const NAMES: &str = concat!($($(", ", $name),*),*).split_at(2).1;

            /// Returns the weight format's name in files and messages: `Q4_K`, `F16`, …
            pub fn name(self) -> &'static str {
                match self {
                    $($(Self::$variant => $name,)*)*
                }
            }

            /// Returns the weight format's name in lower case, as in the names of
            /// kernels: `q4_k`, `f16`, …
            pub fn key(self) -> &'static str {
                match self {
                    $($(Self::$variant => stringify!($module),)*)*
                }
            }

            /// Returns the arithmetic (groups, superblocks or floats) in which this
            /// weight format's products are computed: which part in integers, which in
            /// floats.
            pub fn arithmetic(self) -> Arithmetic {
                match self {
                    $($(Self::$variant => Arithmetic::$arithmetic,)*)*
                }
            }

            /// Returns the number of this weight format in GGUF files, its `ggml_type`.
            pub fn ggml_type(self) -> u32 {
                match self {
                    $($(Self::$variant => $ggml,)*)*
                }
            }

            /// Returns the `general.file_type` of a GGUF file whose matrices have this
            /// weight format.
            pub fn file_type(self) -> u32 {
                match self {
                    $($(Self::$variant => $file,)*)*
                }
            }

            /// Returns the number of weights in one packed block of this format.
            pub fn block_values(self) -> usize {
                match self {
                    $($(Self::$variant => <crate::$module::$block as Format>::VALUES,)*)*
                }
            }

            /// Returns the number of bytes in one packed block of this weight format.
            pub fn block_bytes(self) -> usize {
                match self {
                    $($(Self::$variant => <crate::$module::$block as Format>::BYTES,)*)*
                }
            }

            /// Returns the places of factors, scales and quantised values (codes) in a
            /// packed block of this weight format.
            pub fn layout(self) -> Layout {
                match self {
                    $($(Self::$variant => <crate::$module::$block as Format>::LAYOUT,)*)*
                }
            }

            /// Decodes `bytes`, whole packed blocks of this weight format, to floats in
            /// `out`.
            fn decode_blocks(self, bytes: &[u8], out: &mut [f32]) {
                match self {
                    $($(Self::$variant => decode::<crate::$module::$block>(bytes, out),)*)*
                }
            }
        }
    };
}

formats!(define);

/// The error for a row of packed weights that cannot be decoded: its bytes are not whole
/// blocks of as many values as wanted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RowError {
    /// The weight format of the packed row that could not be decoded.
    pub dtype: DType,
    /// The number of values that the packed row of weights was to be decoded to.
    pub values: usize,
    /// The number of bytes that were given as the packed row.
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
    /// Finds a weight format by its name (`Q4_K`, `f16`, …), in upper or lower case.
    pub fn from_name(name: &str) -> Option<Self> {
        let mut all = Self::ALL.into_iter();
        all.find(|t| t.name().eq_ignore_ascii_case(name))
    }

    /// Finds a weight format by its number in GGUF files, its `ggml_type`.
    pub fn from_ggml_type(ggml_type: u32) -> Option<Self> {
        let mut all = Self::ALL.into_iter();
        all.find(|t| t.ggml_type() == ggml_type)
    }

    /// Returns whether this weight format packs values in blocks that are multiplied
    /// with quantised activations.
    pub fn is_quantized(self) -> bool {
        match self.arithmetic() {
            Arithmetic::Groups | Arithmetic::Superblocks => true,
            Arithmetic::Floats => false,
        }
    }

    /// Returns whether this weight format is a K-quant: superblocks of 256 values.
    pub fn is_k_quant(self) -> bool {
        self.arithmetic() == Arithmetic::Superblocks
    }

    /// Returns the number of bytes in a packed row of `values` weights; `None` if that
    /// is no whole number of blocks, or overflows.
    pub fn row_bytes(self, values: usize) -> Option<usize> {
        if !values.is_multiple_of(self.block_values()) {
            return None;
        }
        (values / self.block_values()).checked_mul(self.block_bytes())
    }

    /// Decodes a packed row of weights to floats in `out`, which is as long as the row
    /// has values.
    ///
    /// # Errors
    /// `bytes` is not as long as a row of so many values.
    pub fn decode_row(self, bytes: &[u8], out: &mut [f32]) -> Result<(), RowError> {
        let values = out.len();
        if self.row_bytes(values) != Some(bytes.len()) {
            return Err(RowError {
                dtype: self,
                values,
                bytes: bytes.len(),
            });
        }
        self.decode_blocks(bytes, out);
        Ok(())
    }
}

impl std::fmt::Display for DType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.name())
    }
}

/// Decodes `bytes`, whole packed blocks of the weight format `F`, to floats in `out`.
fn decode<F: Format>(bytes: &[u8], out: &mut [f32]) {
    let blocks = bytes.chunks_exact(F::BYTES);
    for (block, out) in blocks.zip(out.chunks_exact_mut(F::VALUES)) {
        F::decode(block, out);
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
            assert_eq!(DType::from_ggml_type(t.ggml_type()), Some(t));
            assert_eq!(t.key(), t.name().to_lowercase());
        }
        assert_eq!(DType::from_name("Q9_9"), None);
        assert_eq!(DType::from_ggml_type(999), None);
    }

    #[test]
    fn parts_of_a_block_cover_it_without_overlap() {
        for t in DType::ALL {
            let Layout {
                factors,
                scales,
                codes,
                ..
            } = t.layout();
            let mut parts: Vec<_> = factors.iter().map(|&at| at..at + 2).collect();
            parts.extend([scales, codes].into_iter().filter(|part| !part.is_empty()));
            parts.sort_by_key(|part| part.start);
            let mut at = 0;
            for part in parts {
                assert_eq!(part.start, at, "{t}");
                at = part.end;
            }
            assert_eq!(at, t.block_bytes(), "{t}");
        }
    }
}
