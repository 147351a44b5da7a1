//! Parses the header of a GGUF file, in safe code over `&[u8]`.
//!
//! A [`Cursor`] reads the header's fields and reports a [`Flaw`], a fault with its byte
//! offset; the functions here add the key or tensor that it belongs to.

use std::collections::HashMap;
use std::sync::Arc;

use crate::arena::Arena;
use crate::cursor::{Cursor, Flaw};
use crate::tensor::{check_bytes, check_dim_count, check_dims, check_name_length, check_type};
use crate::value::plain_value;
use crate::{
    ALIGNMENT_KEY, Array, DEFAULT_ALIGNMENT, Error, Fault, GgmlType, MAX_ARRAYS, MAX_KEY_BYTES,
    MAX_KEYS, MAX_NESTING, MAX_TENSORS, Metadata, Place, Strings, TensorData, TensorInfo, Value,
    ValueType,
};

/// Smallest size in bytes of a metadata key with its value: length, one byte of name,
/// type, one byte of value.
const MIN_KEY_BYTES: u64 = 8 + 1 + 4 + 1;
/// Smallest size in bytes of an entry of the tensor directory: name length, one byte of
/// name, number of dimensions, one dimension, type, offset.
const MIN_TENSOR_BYTES: u64 = 8 + 1 + 4 + 8 + 4 + 8;

/// The checked contents of a GGUF header: version, metadata and tensor directory.
pub(crate) struct Parsed {
    pub(crate) version: u32,
    pub(crate) alignment: u32,
    pub(crate) data_offset: u64,
    pub(crate) metadata: Metadata,
    pub(crate) tensors: Vec<TensorInfo>,
    pub(crate) index: HashMap<String, usize>,
}

/// Parses the bytes of `arena` as a GGUF file and checks its whole header.
pub(crate) fn parse(arena: &Arc<Arena>) -> Result<Parsed, Error> {
    let mut cursor = Cursor::new(arena);
    let header = cursor.header().map_err(|flaw| flaw.at(Place::Header))?;
    let metadata = cursor.metadata(header.n_keys)?;
    let alignment = alignment(&metadata)?;
    let mut directory = Directory::default();
    for i in 0..header.n_tensors {
        cursor.tensor(i, alignment, &mut directory)?;
    }
    let data_offset = place_data(&cursor, alignment, &mut directory)?;
    Ok(Parsed {
        version: header.version,
        alignment,
        data_offset,
        metadata,
        tensors: directory.tensors,
        index: directory.index,
    })
}

struct Header {
    version: u32,
    n_tensors: u64,
    n_keys: u64,
}

/// The entries of the tensor directory read so far. `place_data` turns their offsets,
/// relative to the data section, into offsets in the file.
#[derive(Default)]
struct Directory {
    tensors: Vec<TensorInfo>,
    index: HashMap<String, usize>,
    /// Byte offset in the file of each entry's field for its data's offset, for error
    /// messages.
    offset_fields: Vec<u64>,
}

impl Cursor<'_> {
    fn header(&mut self) -> Result<Header, Flaw> {
        let mut found = [0; 4];
        found.copy_from_slice(self.take(4, "magic")?);
        if found != *b"GGUF" {
            return Err(Flaw {
                offset: 0,
                fault: Fault::Magic { found },
            });
        }
        let offset = self.offset();
        let version = self.u32("version")?;
        if !matches!(version, 2 | 3) {
            let swapped = version.swap_bytes();
            let fault = match swapped {
                1..=3 => Fault::BigEndian { version: swapped },
                _ => Fault::Version { found: version },
            };
            return Err(Flaw { offset, fault });
        }
        let tensors_at = self.offset();
        let n_tensors = self.u64("tensor count")?;
        let keys_at = self.offset();
        let n_keys = self.u64("key count")?;
        let count = |offset, what, most, limit, found| {
            let fits = (found <= most).then_some(());
            fits.ok_or(Fault::Count { what, most, found })
                .and_then(|()| check_limit(what, limit, found))
                .map_err(|fault| Flaw { offset, fault })
        };
        let most_keys = self.left() / MIN_KEY_BYTES;
        count(keys_at, "keys", most_keys, MAX_KEYS, n_keys)?;
        // No overflow: the keys fit the bytes that are left.
        let most_tensors = (self.left() - n_keys * MIN_KEY_BYTES) / MIN_TENSOR_BYTES;
        count(tensors_at, "tensors", most_tensors, MAX_TENSORS, n_tensors)?;
        Ok(Header {
            version,
            n_tensors,
            n_keys,
        })
    }

    fn metadata(&mut self, n_keys: u64) -> Result<Metadata, Error> {
        // The metadata grows key by key: a count that could fit the file may still be
        // false.
        let mut metadata = Metadata::default();
        for index in 0..n_keys {
            let offset = self.offset();
            let key = self
                .key()
                .map_err(|flaw| flaw.at(Place::Key { index, name: None }))?;
            let place = || Place::Key {
                index,
                name: Some(key.clone()),
            };
            if let Some(first) = metadata.entry(&key) {
                let first = first.offset;
                return Err(Fault::DuplicateKey { first }.at(place(), Some(offset)));
            }
            let value = self.value().map_err(|flaw| flaw.at(place()))?;
            metadata.insert(key, value, offset);
        }
        Ok(metadata)
    }

    fn key(&mut self) -> Result<String, Flaw> {
        let offset = self.offset();
        let len = self.u64("key length")?;
        check_key_length(len).map_err(|fault| Flaw { offset, fault })?;
        self.text(len, "key")
    }

    fn value_type(&mut self, part: &'static str) -> Result<ValueType, Flaw> {
        let offset = self.offset();
        let found = self.u32(part)?;
        ValueType::from_id(found).ok_or(Flaw {
            offset,
            fault: Fault::UnknownValueType { part, found },
        })
    }

    fn value(&mut self) -> Result<Value, Flaw> {
        match self.value_type("value type")? {
            ValueType::String => {
                let len = self.u64("string length")?;
                Ok(Value::String(self.text(len, "string")?))
            }
            ValueType::Array => {
                self.announce_arrays(1)?;
                Ok(Value::Array(self.array(1)?))
            }
            ty => {
                let offset = self.offset();
                let bytes = self.take(ty.min_bytes(), "value")?;
                check_bools(ty, bytes, offset)?;
                Ok(plain_value(ty, bytes)
                    .expect("strings and arrays are matched above, and the bytes are min_bytes"))
            }
        }
    }

    /// Adds `n` to the file's number of metadata arrays before they are read, and
    /// refuses a file with too many: each array takes several times its bytes in
    /// memory.
    fn announce_arrays(&mut self, n: u64) -> Result<(), Flaw> {
        // No overflow: at most one array for each 12 bytes of the file.
        self.arrays += n;
        check_limit("arrays", MAX_ARRAYS, self.arrays).map_err(|fault| self.flaw(fault))
    }

    /// Reads a metadata array that is nested `depth` deep, from 1. `MAX_NESTING` bounds
    /// the recursion.
    fn array(&mut self, depth: u32) -> Result<Array, Flaw> {
        if depth > MAX_NESTING {
            return Err(self.flaw(Fault::Nesting));
        }
        let elem = self.value_type("element type")?;
        let length_at = self.offset();
        let found = self.u64("array length")?;
        let most = self.left() / elem.min_bytes();
        if found > most {
            return Err(Flaw {
                offset: length_at,
                fault: Fault::ArrayLength { elem, most, found },
            });
        }
        // No overflow: at most the bytes that are left.
        let range = self.ahead(found * elem.min_bytes(), "array")?;
        match elem {
            ValueType::String => Ok(Array::of_strings(self.strings(found)?)),
            ValueType::Array => {
                self.announce_arrays(found)?;
                let arrays: Result<Vec<_>, _> = (0..found).map(|_| self.array(depth + 1)).collect();
                Ok(Array::of_arrays(arrays?))
            }
            elem => {
                let items_at = self.offset();
                self.pos = range.end;
                let view = TensorData::new(self.arena, range)
                    .expect("ahead gives ranges of the arena, whose length never changes");
                check_bools(elem, &view, items_at)?;
                Ok(Array::plain(elem, view))
            }
        }
    }

    /// Reads the `n` strings of a metadata array; the caller has checked that `n`
    /// length fields fit the header.
    ///
    /// Validates the text of all strings at once, which is several times faster
    /// than a call for each token of three bytes. The ends must then be
    /// character boundaries: two halves of a character would pass together.
    fn strings(&mut self, n: u64) -> Result<Strings, Flaw> {
        let start = self.pos;
        let mut text = Vec::new();
        let mut ends = Vec::with_capacity(n as usize);
        for _ in 0..n {
            let len = self.u64("string length")?;
            text.extend_from_slice(self.take(len, "string")?);
            ends.push(text.len());
        }
        let strings = String::from_utf8(text)
            .ok()
            .and_then(|text| Strings::new(text, ends));
        strings.ok_or_else(|| self.invalid_string(start, n))
    }

    /// Returns the fault of the first string that is not UTF-8, of the `n` strings from
    /// byte `start` on.
    fn invalid_string(&mut self, start: usize, n: u64) -> Flaw {
        self.pos = start;
        for _ in 0..n {
            let text = self
                .u64("string length")
                .and_then(|len| self.text(len, "string"));
            if let Err(flaw) = text {
                return flaw;
            }
        }
        // Reached only if another process changed the file in between.
        self.flaw(Fault::Utf8 { part: "string" })
    }

    fn tensor(&mut self, index: u64, alignment: u32, all: &mut Directory) -> Result<(), Error> {
        let offset = self.offset();
        let name = self
            .tensor_name()
            .map_err(|flaw| flaw.at(Place::Tensor { index, name: None }))?;
        let place = || Place::Tensor {
            index,
            name: Some(name.clone()),
        };
        if let Some(&first) = all.index.get(&name) {
            let first = first as u64;
            return Err(Fault::DuplicateTensor { first }.at(place(), Some(offset)));
        }
        let shape = self.shape(alignment).map_err(|flaw| flaw.at(place()))?;
        let offset_field = self.offset();
        let data_at = self.u64("data offset").map_err(|flaw| flaw.at(place()))?;
        all.index.insert(name.clone(), all.tensors.len());
        all.offset_fields.push(offset_field);
        all.tensors.push(TensorInfo {
            name,
            dims: shape.dims,
            ty: shape.ty,
            offset: data_at,
            byte_len: shape.byte_len,
            n_elements: shape.n_elements,
        });
        Ok(())
    }

    fn tensor_name(&mut self) -> Result<String, Flaw> {
        let offset = self.offset();
        let len = self.u64("name length")?;
        check_name_length(len).map_err(|fault| Flaw { offset, fault })?;
        self.text(len, "name")
    }

    fn shape(&mut self, alignment: u32) -> Result<Shape, Flaw> {
        let offset = self.offset();
        let n = self.u32("dimension count")?;
        check_dim_count(n.into()).map_err(|fault| Flaw { offset, fault })?;
        let dims_at = self.offset();
        let dims: Vec<u64> = (0..n)
            .map(|_| self.u64("dimension"))
            .collect::<Result<_, _>>()?;
        let at_dims = |fault| Flaw {
            offset: dims_at,
            fault,
        };
        let n_elements = check_dims(&dims).map_err(at_dims)?;
        let type_at = self.offset();
        let ty = check_type(self.u32("type")?).map_err(|fault| Flaw {
            offset: type_at,
            fault,
        })?;
        let (byte_len, _) = check_bytes(&dims, n_elements, ty, alignment).map_err(at_dims)?;
        Ok(Shape {
            dims,
            ty,
            n_elements,
            byte_len,
        })
    }
}

struct Shape {
    dims: Vec<u64>,
    ty: GgmlType,
    n_elements: u64,
    byte_len: u64,
}

/// Checks that a count in a file is at most `most`, one of this crate's limits.
pub(crate) fn check_limit(what: &'static str, most: u64, found: u64) -> Result<(), Fault> {
    if found > most {
        return Err(Fault::Limit { what, most, found });
    }
    Ok(())
}

/// Checks the length in bytes of a metadata key before the key is read.
pub(crate) fn check_key_length(len: u64) -> Result<(), Fault> {
    if len == 0 || len > MAX_KEY_BYTES {
        return Err(Fault::KeyLength { found: len });
    }
    Ok(())
}

fn check_bools(ty: ValueType, bytes: &[u8], start: u64) -> Result<(), Flaw> {
    if ty != ValueType::Bool {
        return Ok(());
    }
    match bytes.iter().position(|&byte| byte > 1) {
        Some(i) => Err(Flaw {
            offset: start + i as u64,
            fault: Fault::BoolByte { found: bytes[i] },
        }),
        None => Ok(()),
    }
}

/// Returns the alignment of tensor data from a value of `general.alignment`. Refuses
/// integer types other than u32, as ggml does: two readers must not disagree on where
/// data lies.
pub(crate) fn check_alignment(value: &Value) -> Result<u32, Fault> {
    match *value {
        Value::U32(found) if found.is_power_of_two() && found >= 8 => Ok(found),
        Value::U32(found) => Err(Fault::Alignment { found }),
        _ => Err(Fault::AlignmentType { found: value.ty() }),
    }
}

fn alignment(metadata: &Metadata) -> Result<u32, Error> {
    let position = (0..).zip(metadata.iter());
    match position
        .into_iter()
        .find(|(_, entry)| entry.key == ALIGNMENT_KEY)
    {
        None => Ok(DEFAULT_ALIGNMENT),
        Some((index, entry)) => check_alignment(&entry.value).map_err(|fault| {
            let name = Some(entry.key.clone());
            fault.at(Place::Key { index, name }, Some(entry.offset))
        }),
    }
}

/// Converts the data offsets of all tensors to offsets in the file, and checks that
/// each tensor's data is aligned, inside the file and disjoint from the others'.
/// Returns the offset of the data section: without tensors, the end of the header.
fn place_data(cursor: &Cursor<'_>, alignment: u32, all: &mut Directory) -> Result<u64, Error> {
    let (end, file_len) = (cursor.offset(), cursor.file_len());
    if all.tensors.is_empty() {
        return Ok(end);
    }
    // No overflow: a header ends below MAX_HEADER_BYTES, alignment is below 2^32.
    let start = end.next_multiple_of(alignment.into());
    let Some(available) = file_len.checked_sub(start) else {
        return Err(Fault::DataStart { start, file_len }.at(Place::Header, Some(end)));
    };
    for (i, info) in all.tensors.iter_mut().enumerate() {
        let (found, len) = (info.offset, info.byte_len);
        let fault = if !found.is_multiple_of(alignment.into()) {
            Fault::Misaligned { alignment, found }
        } else if found.checked_add(len).is_none_or(|end| end > available) {
            Fault::OutOfRange {
                available,
                len,
                found,
            }
        } else {
            info.offset = start + found;
            continue;
        };
        return Err(fault.at(tensor_place(i, info), all.offset_fields.get(i).copied()));
    }
    check_overlap(all)?;
    Ok(start)
}

fn tensor_place(i: usize, info: &TensorInfo) -> Place {
    Place::Tensor {
        index: i as u64,
        name: Some(info.name.clone()),
    }
}

fn check_overlap(all: &Directory) -> Result<(), Error> {
    let mut by_offset: Vec<(usize, &TensorInfo)> = all.tensors.iter().enumerate().collect();
    by_offset.sort_by_key(|(_, info)| info.offset);
    for pair in by_offset.windows(2) {
        let [(_, before), (i, info)] = pair else {
            continue;
        };
        let before_end = before.offset + before.byte_len;
        if info.offset < before_end {
            let fault = Fault::Overlap {
                other: before.name.clone(),
                start: info.offset,
                end: before_end.min(info.offset + info.byte_len),
            };
            return Err(fault.at(tensor_place(*i, info), all.offset_fields.get(*i).copied()));
        }
    }
    Ok(())
}
