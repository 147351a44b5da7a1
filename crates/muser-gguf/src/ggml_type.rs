//! Lists the tensor types of ggml 0.26, each with its number in a GGUF file, its name
//! and its block size.

use std::fmt;

/// Defines [`GgmlType`] from one row for each tensor type: number in the file, elements
/// in a block, bytes in a block.
macro_rules! ggml_types {
    ($($name:ident = $id:literal, $elements:literal, $bytes:literal;)*) => {
        /// The type in which a tensor's elements are stored, such as `F16` or `Q4_K`,
        /// with ggml's name and number.
        ///
        /// A row of a tensor is stored as whole blocks of
        /// [`block_elements`](Self::block_elements) elements; each block takes
        /// [`block_bytes`](Self::block_bytes) bytes.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[expect(missing_docs, reason = "the name is the format's own")]
        #[allow(non_camel_case_types, reason = "the names are ggml's")]
        #[repr(u32)]
        pub enum GgmlType { $($name = $id,)* }

        impl GgmlType {
            /// All tensor types, in the order of their numbers in a GGUF file.
            pub const ALL: &[Self] = &[$(Self::$name,)*];

            /// Returns the tensor type with this number in a GGUF file; `None` for a
            /// number that ggml does not use.
            #[must_use]
            pub const fn from_id(id: u32) -> Option<Self> {
                match id { $($id => Some(Self::$name),)* _ => None }
            }

            /// Returns ggml's name of the tensor type, such as `Q4_K`.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$name => stringify!($name),)* }
            }

            /// Returns the number of elements in a block of this tensor type: 1 for
            /// types that are not quantised.
            #[must_use]
            pub const fn block_elements(self) -> u64 {
                match self { $(Self::$name => $elements,)* }
            }

            /// Returns the number of bytes of a block of this tensor type.
            #[must_use]
            pub const fn block_bytes(self) -> u64 {
                match self { $(Self::$name => $bytes,)* }
            }
        }
    };
}

ggml_types! {
    F32 = 0, 1, 4;
    F16 = 1, 1, 2;
    Q4_0 = 2, 32, 18;
    Q4_1 = 3, 32, 20;
    Q5_0 = 6, 32, 22;
    Q5_1 = 7, 32, 24;
    Q8_0 = 8, 32, 34;
    Q8_1 = 9, 32, 36;
    Q2_K = 10, 256, 84;
    Q3_K = 11, 256, 110;
    Q4_K = 12, 256, 144;
    Q5_K = 13, 256, 176;
    Q6_K = 14, 256, 210;
    Q8_K = 15, 256, 292;
    IQ2_XXS = 16, 256, 66;
    IQ2_XS = 17, 256, 74;
    IQ3_XXS = 18, 256, 98;
    IQ1_S = 19, 256, 50;
    IQ4_NL = 20, 32, 18;
    IQ3_S = 21, 256, 110;
    IQ2_S = 22, 256, 82;
    IQ4_XS = 23, 256, 136;
    I8 = 24, 1, 1;
    I16 = 25, 1, 2;
    I32 = 26, 1, 4;
    I64 = 27, 1, 8;
    F64 = 28, 1, 8;
    IQ1_M = 29, 256, 56;
    BF16 = 30, 1, 2;
    TQ1_0 = 34, 256, 54;
    TQ2_0 = 35, 256, 66;
    MXFP4 = 39, 32, 17;
    NVFP4 = 40, 64, 36;
    Q1_0 = 41, 128, 18;
    Q2_0 = 42, 64, 18;
}

impl GgmlType {
    /// Returns the number that stands for this tensor type in a GGUF file.
    #[must_use]
    pub const fn id(self) -> u32 {
        self as u32
    }

    /// Returns the name of a tensor type that ggml has removed, by its number in a GGUF
    /// file; `None` for other numbers. ggml no longer defines the layout of such
    /// tensors.
    #[must_use]
    pub const fn removed_name(id: u32) -> Option<&'static str> {
        Some(match id {
            4 => "Q4_2",
            5 => "Q4_3",
            31 => "Q4_0_4_4",
            32 => "Q4_0_4_8",
            33 => "Q4_0_8_8",
            36 => "IQ4_NL_4_4",
            37 => "IQ4_NL_4_8",
            38 => "IQ4_NL_8_8",
            _ => return None,
        })
    }

    /// Returns the number of bytes that `elements` elements of a row take in this
    /// tensor type; `None` if they are not a whole number of blocks or the bytes do not
    /// fit 64 bits.
    #[must_use]
    pub const fn row_bytes(self, elements: u64) -> Option<u64> {
        if !elements.is_multiple_of(self.block_elements()) {
            return None;
        }
        (elements / self.block_elements()).checked_mul(self.block_bytes())
    }
}

impl fmt::Display for GgmlType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::GgmlType;

    #[test]
    fn an_id_is_a_type_a_removed_one_or_unknown() {
        for id in 0..43 {
            let ty = GgmlType::from_id(id);
            assert_ne!(ty.is_some(), GgmlType::removed_name(id).is_some(), "{id}");
            assert!(ty.is_none_or(|ty| ty.id() == id));
        }
        assert_eq!(GgmlType::from_id(43), None);
        assert_eq!(GgmlType::ALL.len(), 35);
    }

    /// Checks that the block size of K-quant types is the sum of the sizes of a block's
    /// fields.
    #[test]
    fn block_bytes_are_the_sum_of_the_fields() {
        let (f16, scales) = (2, 12);
        assert_eq!(GgmlType::Q4_K.block_bytes(), 2 * f16 + scales + 256 / 2);
        assert_eq!(
            GgmlType::Q5_K.block_bytes(),
            2 * f16 + scales + 256 / 8 + 256 / 2
        );
        assert_eq!(GgmlType::Q6_K.block_bytes(), 256 / 2 + 256 / 4 + 16 + f16);
        assert_eq!(GgmlType::Q8_K.block_bytes(), 4 + 256 + 16 * 2);
    }

    #[test]
    fn row_bytes_takes_whole_blocks() {
        assert_eq!(GgmlType::Q4_K.row_bytes(512), Some(288));
        assert_eq!(GgmlType::Q4_K.row_bytes(257), None);
        assert_eq!(GgmlType::F64.row_bytes(u64::MAX / 4), None);
    }
}
