//! Holds metadata values: the 13 types of the GGUF format, and conversions to them.

use std::fmt;

use crate::{Array, Strings, TensorData};

/// The type of a metadata value or of a metadata array's elements; the discriminant is
/// its number in a GGUF file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "the names are Rust's")]
#[repr(u32)]
pub enum ValueType {
    U8 = 0,
    I8 = 1,
    U16 = 2,
    I16 = 3,
    U32 = 4,
    I32 = 5,
    F32 = 6,
    Bool = 7,
    String = 8,
    Array = 9,
    U64 = 10,
    I64 = 11,
    F64 = 12,
}

impl ValueType {
    const ALL: [(Self, &'static str, u64); 13] = [
        (Self::U8, "u8", 1),
        (Self::I8, "i8", 1),
        (Self::U16, "u16", 2),
        (Self::I16, "i16", 2),
        (Self::U32, "u32", 4),
        (Self::I32, "i32", 4),
        (Self::F32, "f32", 4),
        (Self::Bool, "bool", 1),
        (Self::String, "string", 8),
        (Self::Array, "array", 12),
        (Self::U64, "u64", 8),
        (Self::I64, "i64", 8),
        (Self::F64, "f64", 8),
    ];

    /// Returns the metadata value type with this number in a GGUF file; `None` if there
    /// is none.
    #[must_use]
    pub fn from_id(id: u32) -> Option<Self> {
        Some(Self::ALL.get(usize::try_from(id).ok()?)?.0)
    }

    /// Returns the number that stands for this metadata value type in a GGUF file.
    #[must_use]
    pub const fn id(self) -> u32 {
        self as u32
    }

    /// Returns Rust's name of this metadata value type, or `string` or `array`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        Self::ALL[self as usize].1
    }

    /// Returns the size in bytes of a metadata number or bool, or the smallest size of
    /// a string (its length field) or array (element type and length).
    pub(crate) const fn min_bytes(self) -> u64 {
        Self::ALL[self as usize].2
    }
}

impl fmt::Display for ValueType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// The value of a metadata key. Equality is that of the stored bits: a NaN equals
/// itself, 0.0 and -0.0 differ.
#[derive(Clone, Debug)]
#[expect(missing_docs, reason = "the variants are the types they hold")]
pub enum Value {
    U8(u8),
    I8(i8),
    U16(u16),
    I16(i16),
    U32(u32),
    I32(i32),
    F32(f32),
    Bool(bool),
    String(String),
    Array(Array),
    U64(u64),
    I64(i64),
    F64(f64),
}

impl Value {
    /// Returns the type of this metadata value.
    #[must_use]
    pub fn ty(&self) -> ValueType {
        match self {
            Self::U8(_) => ValueType::U8,
            Self::I8(_) => ValueType::I8,
            Self::U16(_) => ValueType::U16,
            Self::I16(_) => ValueType::I16,
            Self::U32(_) => ValueType::U32,
            Self::I32(_) => ValueType::I32,
            Self::F32(_) => ValueType::F32,
            Self::Bool(_) => ValueType::Bool,
            Self::String(_) => ValueType::String,
            Self::Array(_) => ValueType::Array,
            Self::U64(_) => ValueType::U64,
            Self::I64(_) => ValueType::I64,
            Self::F64(_) => ValueType::F64,
        }
    }

    /// Returns the number in a metadata value of any integer type; `None` for other
    /// types.
    #[must_use]
    pub fn as_integer(&self) -> Option<i128> {
        Some(match *self {
            Self::U8(v) => v.into(),
            Self::I8(v) => v.into(),
            Self::U16(v) => v.into(),
            Self::I16(v) => v.into(),
            Self::U32(v) => v.into(),
            Self::I32(v) => v.into(),
            Self::U64(v) => v.into(),
            Self::I64(v) => v.into(),
            Self::F32(_) | Self::F64(_) | Self::Bool(_) | Self::String(_) | Self::Array(_) => {
                return None;
            }
        })
    }

    /// Returns the number in a metadata value of type `f32`, or of type `f64` if it
    /// converts to `f32` exactly; `None` for other values.
    #[must_use]
    pub fn as_f32(&self) -> Option<f32> {
        match *self {
            Self::F32(v) => Some(v),
            Self::F64(v) if f64::from(v as f32).to_bits() == v.to_bits() => Some(v as f32),
            _ => None,
        }
    }

    /// Returns the text of a metadata value that is a string; `None` for other types.
    #[must_use]
    pub fn as_str(&self) -> Option<&str> {
        let Self::String(text) = self else {
            return None;
        };
        Some(text)
    }

    /// Returns the array in a metadata value; `None` for other types.
    #[must_use]
    pub fn as_array(&self) -> Option<&Array> {
        let Self::Array(array) = self else {
            return None;
        };
        Some(array)
    }
}

impl PartialEq for Value {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::F32(a), Self::F32(b)) => a.to_bits() == b.to_bits(),
            (Self::F64(a), Self::F64(b)) => a.to_bits() == b.to_bits(),
            (Self::Bool(a), Self::Bool(b)) => a == b,
            (Self::String(a), Self::String(b)) => a == b,
            (Self::Array(a), Self::Array(b)) => a == b,
            _ => {
                self.ty() == other.ty()
                    && self.as_integer().is_some()
                    && self.as_integer() == other.as_integer()
            }
        }
    }
}

impl Eq for Value {}

/// Displays a metadata value: a number or bool as text, a string as it is, an array as
/// its type, length and first elements.
impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::F32(v) => write!(f, "{v}"),
            Self::F64(v) => write!(f, "{v}"),
            Self::Bool(v) => write!(f, "{v}"),
            Self::String(v) => f.write_str(v),
            Self::Array(v) => write!(f, "{v}"),
            Self::U8(_)
            | Self::I8(_)
            | Self::U16(_)
            | Self::I16(_)
            | Self::U32(_)
            | Self::I32(_)
            | Self::U64(_)
            | Self::I64(_) => {
                write!(f, "{}", self.as_integer().unwrap_or_default())
            }
        }
    }
}

/// Decodes a metadata number or bool from its bytes; `None` for other types and
/// lengths. Any byte but 0 is true: the parser has refused bytes other than 0 and 1.
pub(crate) fn plain_value(ty: ValueType, bytes: &[u8]) -> Option<Value> {
    Some(match ty {
        ValueType::U8 => Value::U8(u8::from_le_bytes(bytes.try_into().ok()?)),
        ValueType::I8 => Value::I8(i8::from_le_bytes(bytes.try_into().ok()?)),
        ValueType::U16 => Value::U16(u16::from_le_bytes(bytes.try_into().ok()?)),
        ValueType::I16 => Value::I16(i16::from_le_bytes(bytes.try_into().ok()?)),
        ValueType::U32 => Value::U32(u32::from_le_bytes(bytes.try_into().ok()?)),
        ValueType::I32 => Value::I32(i32::from_le_bytes(bytes.try_into().ok()?)),
        ValueType::F32 => Value::F32(f32::from_le_bytes(bytes.try_into().ok()?)),
        ValueType::Bool => Value::Bool(*bytes.first()? != 0),
        ValueType::U64 => Value::U64(u64::from_le_bytes(bytes.try_into().ok()?)),
        ValueType::I64 => Value::I64(i64::from_le_bytes(bytes.try_into().ok()?)),
        ValueType::F64 => Value::F64(f64::from_le_bytes(bytes.try_into().ok()?)),
        ValueType::String | ValueType::Array => return None,
    })
}

/// Implements conversions to metadata values from a number type, and from slices and
/// vectors of it.
macro_rules! from_numbers {
    ($($ty:ty => $variant:ident),*) => {$(
        impl From<$ty> for Value {
            fn from(value: $ty) -> Self {
                Self::$variant(value)
            }
        }

        impl From<&[$ty]> for Value {
            fn from(values: &[$ty]) -> Self {
                let bytes = values.iter().flat_map(|v| v.to_le_bytes()).collect();
                Self::Array(Array::plain(ValueType::$variant, TensorData::from_vec(bytes)))
            }
        }

        impl From<Vec<$ty>> for Value {
            fn from(values: Vec<$ty>) -> Self {
                Self::from(values.as_slice())
            }
        }
    )*};
}

from_numbers!(
    u8 => U8, i8 => I8, u16 => U16, i16 => I16, u32 => U32, i32 => I32,
    f32 => F32, u64 => U64, i64 => I64, f64 => F64
);

impl From<bool> for Value {
    fn from(value: bool) -> Self {
        Self::Bool(value)
    }
}

impl From<&[bool]> for Value {
    fn from(values: &[bool]) -> Self {
        let bytes = values.iter().map(|&v| u8::from(v)).collect();
        Self::Array(Array::plain(ValueType::Bool, TensorData::from_vec(bytes)))
    }
}

impl From<Vec<bool>> for Value {
    fn from(values: Vec<bool>) -> Self {
        Self::from(values.as_slice())
    }
}

impl From<&str> for Value {
    fn from(value: &str) -> Self {
        Self::String(value.to_owned())
    }
}

impl From<String> for Value {
    fn from(value: String) -> Self {
        Self::String(value)
    }
}

impl From<Array> for Value {
    fn from(value: Array) -> Self {
        Self::Array(value)
    }
}

impl From<Strings> for Value {
    fn from(value: Strings) -> Self {
        Self::Array(Array::of_strings(value))
    }
}

impl From<Vec<String>> for Value {
    fn from(values: Vec<String>) -> Self {
        values.iter().collect::<Strings>().into()
    }
}

impl From<&[&str]> for Value {
    fn from(values: &[&str]) -> Self {
        values.iter().collect::<Strings>().into()
    }
}
