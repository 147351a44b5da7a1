//! Holds the arrays of GGUF metadata, among them lists of hundreds of thousands of
//! strings in compact storage.

use std::fmt;

use crate::value::plain_value;
use crate::{TensorData, Value, ValueType};

/// A metadata array, its elements all of one type. Numbers and bools are a view of the
/// file, strings are [`Strings`], and nested arrays are arrays again.
#[derive(Clone, Debug)]
pub struct Array {
    elem: ValueType,
    items: Items,
}

#[derive(Clone, Debug)]
enum Items {
    /// Numbers or bools as the file stores them: little-endian, not aligned, a bool as
    /// a byte of 0 or 1.
    Plain(TensorData),
    Strings(Strings),
    Nested(Vec<Array>),
}

impl Array {
    /// Creates a metadata array of numbers or bools from `bytes`, which hold whole
    /// little-endian elements of type `elem`.
    pub(crate) fn plain(elem: ValueType, bytes: TensorData) -> Self {
        Self {
            elem,
            items: Items::Plain(bytes),
        }
    }

    /// Creates a metadata array of strings.
    #[must_use]
    pub fn of_strings(strings: Strings) -> Self {
        Self {
            elem: ValueType::String,
            items: Items::Strings(strings),
        }
    }

    /// Creates a metadata array of arrays, whose element types may differ.
    #[must_use]
    pub fn of_arrays(arrays: Vec<Array>) -> Self {
        Self {
            elem: ValueType::Array,
            items: Items::Nested(arrays),
        }
    }

    /// Returns the type of this metadata array's elements.
    #[must_use]
    pub fn elem(&self) -> ValueType {
        self.elem
    }

    /// Returns the number of elements of this metadata array.
    #[must_use]
    pub fn len(&self) -> usize {
        match &self.items {
            Items::Plain(bytes) => bytes.len() / self.elem.min_bytes() as usize,
            Items::Strings(strings) => strings.len(),
            Items::Nested(arrays) => arrays.len(),
        }
    }

    /// Returns whether this metadata array has no element.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the stored bytes of a metadata array of numbers or bools, little-endian;
    /// `None` for arrays of strings or arrays.
    #[must_use]
    pub fn bytes(&self) -> Option<&[u8]> {
        match &self.items {
            Items::Plain(bytes) => Some(bytes),
            Items::Strings(_) | Items::Nested(_) => None,
        }
    }

    /// Returns the elements of a metadata array of strings; `None` for arrays of
    /// another element type.
    #[must_use]
    pub fn strings(&self) -> Option<&Strings> {
        match &self.items {
            Items::Strings(strings) => Some(strings),
            Items::Plain(_) | Items::Nested(_) => None,
        }
    }

    /// Returns the elements of a metadata array of arrays; `None` for arrays of another
    /// element type.
    #[must_use]
    pub fn arrays(&self) -> Option<&[Array]> {
        match &self.items {
            Items::Nested(arrays) => Some(arrays),
            Items::Plain(_) | Items::Strings(_) => None,
        }
    }

    /// Returns a copy of element `i` of this metadata array as a value; `None` beyond
    /// the end.
    #[must_use]
    pub fn get(&self, i: usize) -> Option<Value> {
        let bytes = match &self.items {
            Items::Strings(strings) => return Some(Value::String(strings.get(i)?.to_owned())),
            Items::Nested(arrays) => return Some(Value::Array(arrays.get(i)?.clone())),
            Items::Plain(bytes) => bytes,
        };
        let size = self.elem.min_bytes() as usize;
        let start = i.checked_mul(size)?;
        plain_value(self.elem, bytes.get(start..start.checked_add(size)?)?)
    }

    /// Iterates over copies of this metadata array's elements as values, in order.
    pub fn iter(&self) -> impl Iterator<Item = Value> + '_ {
        (0..self.len()).map_while(|i| self.get(i))
    }

    /// Counts this metadata array and all arrays nested in it.
    pub(crate) fn count(&self) -> u64 {
        let inner = self.arrays().unwrap_or_default().iter();
        inner.map(Self::count).sum::<u64>().saturating_add(1)
    }

    /// Returns how deep arrays are nested in this metadata array: 1 for an array
    /// without arrays in it.
    pub(crate) fn depth(&self) -> u32 {
        let inner = self.arrays().unwrap_or_default().iter().map(Self::depth);
        inner.max().unwrap_or(0).saturating_add(1)
    }
}

impl PartialEq for Array {
    fn eq(&self, other: &Self) -> bool {
        self.elem == other.elem
            && match (&self.items, &other.items) {
                (Items::Plain(a), Items::Plain(b)) => **a == **b,
                (Items::Strings(a), Items::Strings(b)) => a == b,
                (Items::Nested(a), Items::Nested(b)) => a == b,
                _ => false,
            }
    }
}

impl Eq for Array {}

impl fmt::Display for Array {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const SHOWN: usize = 8;
        write!(f, "{} × {} [", self.len(), self.elem)?;
        for (i, value) in self.iter().take(SHOWN).enumerate() {
            let comma = if i == 0 { "" } else { ", " };
            match value {
                Value::String(text) => write!(f, "{comma}{text:?}")?,
                value => write!(f, "{comma}{value}")?,
            }
        }
        f.write_str(if self.len() > SHOWN { ", …]" } else { "]" })
    }
}

/// A metadata array's strings in two allocations: their text end to end, and the byte
/// offset where each ends.
///
/// A vocabulary of 202,048 tokens costs no allocation a token. The text is a
/// copy, not a view of the file: it stays valid UTF-8 whatever becomes of the
/// file, and handing out a `&str` costs no second validation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Strings {
    text: String,
    ends: Vec<usize>,
}

impl Strings {
    /// Creates a list of strings whose texts follow one another in `text` and end at
    /// the byte offsets `ends`; `None` unless the ends ascend to the text's length and
    /// lie on character boundaries.
    pub(crate) fn new(text: String, ends: Vec<usize>) -> Option<Self> {
        let sound = ends.is_sorted() && ends.iter().all(|&end| text.is_char_boundary(end));
        (sound && ends.last().copied().unwrap_or(0) == text.len()).then_some(Self { text, ends })
    }

    /// Returns the number of strings in the list.
    #[must_use]
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Returns whether the list has no strings.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Returns string `i` of the list; `None` beyond the end.
    #[must_use]
    pub fn get(&self, i: usize) -> Option<&str> {
        let end = *self.ends.get(i)?;
        let start = match i.checked_sub(1) {
            Some(before) => *self.ends.get(before)?,
            None => 0,
        };
        self.text.get(start..end)
    }

    /// Iterates over the strings of the list in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &str> + '_ {
        (0..self.len()).map(|i| self.get(i).unwrap_or_default())
    }
}

impl<S: AsRef<str>> FromIterator<S> for Strings {
    fn from_iter<I: IntoIterator<Item = S>>(strings: I) -> Self {
        let mut all = Self::default();
        for string in strings {
            all.text.push_str(string.as_ref());
            all.ends.push(all.text.len());
        }
        all
    }
}
