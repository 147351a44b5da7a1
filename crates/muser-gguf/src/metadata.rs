//! Holds the metadata of a GGUF file: keys in file order, and typed getters.

use std::collections::HashMap;

use crate::{Array, Error, Strings, Value};

/// One metadata key of a GGUF file, with its value and place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The metadata key's name, such as `general.name`, unique in the file.
    pub key: String,
    /// The value of the metadata key.
    pub value: Value,
    /// Byte offset of the metadata key in the file.
    pub offset: u64,
}

/// The metadata of a GGUF file: its keys with their values, in file order.
///
/// Each getter by type, such as `u32`, has an `opt_` form that gives `None` for an
/// absent key; a key of another type is an error in both, which names the key, its byte
/// offset, the type expected and the one found. Where an integer is asked for, any
/// integer type serves whose value fits.
#[derive(Clone, Debug, Default)]
pub struct Metadata {
    entries: Vec<Entry>,
    index: HashMap<String, usize>,
}

impl Metadata {
    /// Adds a metadata key that does not exist yet, found at byte `offset` of the file.
    pub(crate) fn insert(&mut self, key: String, value: Value, offset: u64) {
        self.index.insert(key.clone(), self.entries.len());
        self.entries.push(Entry { key, value, offset });
    }

    /// Returns the number of metadata keys.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Returns whether the file has no metadata keys.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Iterates over the metadata keys with their values and byte offsets, in file
    /// order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &Entry> + '_ {
        self.entries.iter()
    }

    /// Returns a metadata key with its value and byte offset; `None` if the file has no
    /// such key.
    #[must_use]
    pub fn entry(&self, key: &str) -> Option<&Entry> {
        self.entries.get(*self.index.get(key)?)
    }

    /// Returns the value of a metadata key; `None` if the file has no such key.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&Value> {
        Some(&self.entry(key)?.value)
    }

    /// Creates the error for a metadata key whose value has the right type but cannot
    /// be used by the caller; `found` describes the value.
    #[must_use]
    pub fn unexpected(&self, key: &str, expected: &'static str, found: String) -> Error {
        match self.entry(key) {
            Some(entry) => Error::WrongType {
                key: key.to_owned(),
                offset: entry.offset,
                expected,
                found,
            },
            None => Error::MissingKey {
                key: key.to_owned(),
                expected,
            },
        }
    }

    /// Converts the value of the metadata key `key`; `None` if there is no such key. If
    /// the value does not fit, `convert` returns a description of what was found
    /// instead.
    fn typed<'a, T>(
        &'a self,
        key: &str,
        expected: &'static str,
        convert: impl Fn(&'a Value) -> Result<T, String>,
    ) -> Result<Option<T>, Error> {
        let Some(value) = self.get(key) else {
            return Ok(None);
        };
        convert(value)
            .map(Some)
            .map_err(|found| self.unexpected(key, expected, found))
    }

    fn missing(&self, key: &str, expected: &'static str) -> Error {
        Error::MissingKey {
            key: key.to_owned(),
            expected,
        }
    }
}

/// Describes a metadata value for an error message: its type, and the value too if it
/// is a number or bool.
fn describe(value: &Value) -> String {
    match value {
        Value::String(_) => "string".to_owned(),
        Value::Array(array) => format!("array of {} {}", array.len(), array.elem()),
        scalar => format!("{} {scalar}", scalar.ty()),
    }
}

fn integer<T: TryFrom<i128>>(value: &Value) -> Result<T, String> {
    let fits = value.as_integer().and_then(|v| T::try_from(v).ok());
    fits.ok_or_else(|| describe(value))
}

fn float(value: &Value) -> Result<f32, String> {
    value.as_f32().ok_or_else(|| describe(value))
}

fn boolean(value: &Value) -> Result<bool, String> {
    let Value::Bool(v) = value else {
        return Err(describe(value));
    };
    Ok(*v)
}

fn text(value: &Value) -> Result<&str, String> {
    value.as_str().ok_or_else(|| describe(value))
}

fn array(value: &Value) -> Result<&Array, String> {
    value.as_array().ok_or_else(|| describe(value))
}

fn strings(value: &Value) -> Result<&Strings, String> {
    let strings = value.as_array().and_then(Array::strings);
    strings.ok_or_else(|| describe(value))
}

/// Converts every element of a metadata array; the error names the first one that does
/// not fit.
fn elements<T>(
    value: &Value,
    convert: impl Fn(&Value) -> Result<T, String>,
) -> Result<Vec<T>, String> {
    let element = |(i, v): (usize, Value)| {
        convert(&v).map_err(|found| format!("{}, element {i} of it {found}", describe(value)))
    };
    array(value)?.iter().enumerate().map(element).collect()
}

/// Defines a getter of metadata values of one type, and its `opt_` form for keys that
/// may be absent.
macro_rules! getters {
    ($($name:ident, $opt:ident, $ty:ty, $expected:literal, $convert:expr;)*) => {
        impl Metadata {$(
            #[doc = concat!("The value of `key` as ", $expected, ".")]
            ///
            /// # Errors
            /// The key is absent, or its value is something else.
            pub fn $name(&self, key: &str) -> Result<$ty, Error> {
                self.$opt(key)?.ok_or_else(|| self.missing(key, $expected))
            }

            #[doc = concat!("The value of `key` as ", $expected, ", if there is such a key.")]
            ///
            /// # Errors
            /// The value is something else.
            pub fn $opt(&self, key: &str) -> Result<Option<$ty>, Error> {
                self.typed(key, $expected, $convert)
            }
        )*}
    };
}

getters! {
    u32, opt_u32, u32, "u32", integer;
    u64, opt_u64, u64, "u64", integer;
    i32, opt_i32, i32, "i32", integer;
    i64, opt_i64, i64, "i64", integer;
    f32, opt_f32, f32, "f32", float;
    bool, opt_bool, bool, "bool", boolean;
    string, opt_string, &str, "string", text;
    array, opt_array, &Array, "array", array;
    strings, opt_strings, &Strings, "array of string", strings;
    u32s, opt_u32s, Vec<u32>, "array of u32", |v| elements(v, integer);
    i32s, opt_i32s, Vec<i32>, "array of i32", |v| elements(v, integer);
    f32s, opt_f32s, Vec<f32>, "array of f32", |v| elements(v, float);
    bools, opt_bools, Vec<bool>, "array of bool", |v| elements(v, boolean);
}
