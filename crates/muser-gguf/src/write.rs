//! Writes a GGUF file: the header first, then tensor data as the caller supplies it.

use std::collections::HashSet;
use std::io::Write;

use crate::read::{check_alignment, check_key_length, check_limit};
use crate::tensor::{check_bytes, check_dim_count, check_dims, check_name_length};
use crate::{
    ALIGNMENT_KEY, Array, DEFAULT_ALIGNMENT, Error, Fault, GgmlType, MAX_ARRAYS, MAX_HEADER_BYTES,
    MAX_KEYS, MAX_NESTING, MAX_TENSORS, Place, Value,
};

/// Builds a GGUF file of version 3: declare metadata and tensors, then call
/// [`start`](Self::start) and stream the data.
///
/// Refuses whatever the reader of GGUF files would refuse, with the same fault.
#[derive(Clone, Debug, Default)]
pub struct Writer {
    keys: Vec<(String, Value)>,
    key_names: HashSet<String>,
    /// Number of arrays in all metadata values added so far, nested ones included.
    arrays: u64,
    tensors: Vec<Declared>,
    tensor_names: HashSet<String>,
}

/// A tensor that the caller has declared: an entry of the tensor directory to be
/// written.
#[derive(Clone, Debug)]
struct Declared {
    name: String,
    dims: Vec<u64>,
    ty: GgmlType,
    n_elements: u64,
}

/// The name, length in bytes and padding of a declared tensor whose data is still to be
/// written.
#[derive(Debug)]
struct Slot {
    name: String,
    len: u64,
    /// Number of zero bytes to write after the tensor's data, up to the alignment.
    padding: u64,
}

impl Writer {
    /// Starts a GGUF file without metadata keys and tensors.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a metadata key to the file. The value of `general.alignment` applies to the
    /// whole file, in whatever order the keys are added.
    ///
    /// # Errors
    /// The reader would refuse the key or its value.
    pub fn metadata(
        &mut self,
        key: impl Into<String>,
        value: impl Into<Value>,
    ) -> Result<&mut Self, Error> {
        let (key, value) = (key.into(), value.into());
        self.check_key(&key, &value).map_err(|fault| {
            let index = self.keys.len() as u64;
            let name = Some(key.clone());
            fault.at(Place::Key { index, name }, None)
        })?;
        self.arrays += value.as_array().map_or(0, Array::count);
        self.key_names.insert(key.clone());
        self.keys.push((key, value));
        Ok(self)
    }

    fn check_key(&self, key: &str, value: &Value) -> Result<(), Fault> {
        check_key_length(key.len() as u64)?;
        if self.key_names.contains(key) {
            return Err(Fault::RepeatedKey);
        }
        check_limit("keys", MAX_KEYS, self.keys.len() as u64 + 1)?;
        if let Some(array) = value.as_array() {
            if array.depth() > MAX_NESTING {
                return Err(Fault::Nesting);
            }
            check_limit("arrays", MAX_ARRAYS, self.arrays + array.count())?;
        }
        if key == ALIGNMENT_KEY {
            check_alignment(value)?;
        }
        Ok(())
    }

    /// Declares a tensor of the file. `dims` are in GGUF order: `dims[0]` is the row
    /// length.
    ///
    /// # Errors
    /// The reader would refuse the name or the shape.
    pub fn tensor(
        &mut self,
        name: impl Into<String>,
        dims: &[u64],
        ty: GgmlType,
    ) -> Result<&mut Self, Error> {
        let name = name.into();
        let n_elements = self.check_tensor(&name, dims, ty).map_err(|fault| {
            let index = self.tensors.len() as u64;
            let name = Some(name.clone());
            fault.at(Place::Tensor { index, name }, None)
        })?;
        self.tensor_names.insert(name.clone());
        self.tensors.push(Declared {
            name,
            dims: dims.to_vec(),
            ty,
            n_elements,
        });
        Ok(self)
    }

    fn check_tensor(&self, name: &str, dims: &[u64], ty: GgmlType) -> Result<u64, Fault> {
        check_name_length(name.len() as u64)?;
        if self.tensor_names.contains(name) {
            let first = self.tensors.iter().position(|t| t.name == name);
            return Err(Fault::DuplicateTensor {
                first: first.unwrap_or_default() as u64,
            });
        }
        check_limit("tensors", MAX_TENSORS, self.tensors.len() as u64 + 1)?;
        check_dim_count(dims.len() as u64)?;
        let n_elements = check_dims(dims)?;
        check_bytes(dims, n_elements, ty, DEFAULT_ALIGNMENT)?;
        Ok(n_elements)
    }

    /// Writes the GGUF header to `out` and returns the writer of the tensor data. Makes
    /// few writes; wrap a file in a `BufWriter` if its tensors are small.
    ///
    /// # Errors
    /// Header or data would be larger than the reader's limits, or `out` fails.
    pub fn start<W: Write>(self, mut out: W) -> Result<DataWriter<W>, Error> {
        let alignment = self
            .keys
            .iter()
            .find(|(key, _)| key == ALIGNMENT_KEY)
            .map_or(Ok(DEFAULT_ALIGNMENT), |(_, value)| check_alignment(value))
            .map_err(|fault| fault.at(Place::Header, None))?;
        let mut header = Vec::new();
        header.extend_from_slice(b"GGUF");
        put_u32(&mut header, 3);
        put_u64(&mut header, self.tensors.len() as u64);
        put_u64(&mut header, self.keys.len() as u64);
        for (key, value) in &self.keys {
            put_str(&mut header, key);
            put_u32(&mut header, value.ty().id());
            put_value(&mut header, value);
        }
        let slots = put_directory(&mut header, &self.tensors, alignment)?;
        let end = header.len() as u64;
        if end > MAX_HEADER_BYTES {
            let part = "header";
            return Err(Fault::HeaderLimit { part, end }.at(Place::Header, None));
        }
        if !slots.is_empty() {
            header.resize(header.len().next_multiple_of(alignment as usize), 0);
        }
        out.write_all(&header)?;
        Ok(DataWriter {
            out,
            slots: slots.into_iter(),
            current: None,
            written: 0,
        }
        .ready())
    }
}

/// Appends the tensor directory to the header and returns each tensor's length and
/// padding. The tensors' data follow one another in the order declared, as ggml
/// requires.
fn put_directory(
    header: &mut Vec<u8>,
    tensors: &[Declared],
    alignment: u32,
) -> Result<Vec<Slot>, Error> {
    let mut offset = 0u64;
    let mut slots = Vec::with_capacity(tensors.len());
    for (index, tensor) in (0..).zip(tensors) {
        let Declared { name, dims, ty, .. } = tensor;
        put_str(header, name);
        put_u32(header, dims.len() as u32);
        dims.iter().for_each(|&dim| put_u64(header, dim));
        put_u32(header, ty.id());
        put_u64(header, offset);
        let placed =
            check_bytes(dims, tensor.n_elements, *ty, alignment).and_then(|(len, padded)| {
                // Leaves room for the header's length, which a reader adds to
                // the offset.
                let next = offset.checked_add(padded);
                let next = next.filter(|&next| next <= i64::MAX as u64);
                let (ty, dims) = (*ty, dims.clone());
                Ok((len, padded, next.ok_or(Fault::Bytes { ty, dims })?))
            });
        let (len, padded, next) = placed.map_err(|fault| {
            let name = Some(name.clone());
            fault.at(Place::Tensor { index, name }, None)
        })?;
        slots.push(Slot {
            name: name.clone(),
            len,
            padding: padded - len,
        });
        offset = next;
    }
    Ok(slots)
}

/// Writes the data of a GGUF file's declared tensors, in the order declared.
///
/// Buffers nothing: each piece of data goes to the output at once.
#[derive(Debug)]
#[must_use = "a file is complete only after finish"]
pub struct DataWriter<W> {
    out: W,
    slots: std::vec::IntoIter<Slot>,
    current: Option<Slot>,
    /// Number of bytes of the current tensor's data written so far.
    written: u64,
}

impl<W: Write> DataWriter<W> {
    fn ready(mut self) -> Self {
        self.current = self.slots.next();
        self
    }

    /// Writes the whole data of the tensor `name`, which must be the next one in the
    /// order declared.
    ///
    /// # Errors
    /// Another tensor comes next, `data` is not as long as declared (then
    /// nothing is written), or the output fails.
    pub fn tensor(&mut self, name: &str, data: &[u8]) -> Result<(), Error> {
        let (expected, found) = (
            self.turn(name)?,
            self.written.saturating_add(data.len() as u64),
        );
        if expected != found {
            return Err(Error::DataLength {
                name: name.to_owned(),
                expected,
                found,
            });
        }
        self.chunk(name, data)
    }

    /// Writes the next piece of a tensor's data; the tensor is complete when its
    /// declared length is reached.
    ///
    /// # Errors
    /// Another tensor comes next, the data exceeds the declared length (then
    /// nothing is written), or the output fails.
    pub fn chunk(&mut self, name: &str, data: &[u8]) -> Result<(), Error> {
        let expected = self.turn(name)?;
        let found = self.written.saturating_add(data.len() as u64);
        if found > expected {
            return Err(Error::DataLength {
                name: name.to_owned(),
                expected,
                found,
            });
        }
        self.out.write_all(data)?;
        self.written = found;
        if found == expected {
            if let Some(done) = self.current.take() {
                write_zeros(&mut self.out, done.padding)?;
            }
            self.current = self.slots.next();
            self.written = 0;
        }
        Ok(())
    }

    /// Ends the GGUF file: checks that all tensor data was written, flushes the output
    /// and returns it.
    ///
    /// # Errors
    /// The data of a declared tensor is missing or incomplete, or the output
    /// fails.
    pub fn finish(mut self) -> Result<W, Error> {
        if let Some(slot) = self.current {
            return Err(match self.written {
                0 => Error::DataOrder {
                    expected: Some(slot.name),
                    found: None,
                },
                found => Error::DataLength {
                    name: slot.name,
                    expected: slot.len,
                    found,
                },
            });
        }
        self.out.flush()?;
        Ok(self.out)
    }

    /// Checks that the data of the tensor `name` has to be written next, and returns
    /// its declared length in bytes.
    fn turn(&self, name: &str) -> Result<u64, Error> {
        match &self.current {
            Some(slot) if slot.name == name => Ok(slot.len),
            other => Err(Error::DataOrder {
                expected: other.as_ref().map(|slot| slot.name.clone()),
                found: Some(name.to_owned()),
            }),
        }
    }
}

/// Writes `n` zero bytes of padding in pieces: an alignment, and so the padding, may be
/// as large as 2 GiB.
fn write_zeros(out: &mut impl Write, mut n: u64) -> Result<(), Error> {
    const ZEROS: [u8; 4096] = [0; 4096];
    while n > 0 {
        let piece = n.min(ZEROS.len() as u64);
        out.write_all(&ZEROS[..piece as usize])?;
        n -= piece;
    }
    Ok(())
}

fn put_u32(out: &mut Vec<u8>, value: u32) {
    out.extend_from_slice(&value.to_le_bytes());
}

fn put_u64(out: &mut Vec<u8>, value: u64) {
    out.extend_from_slice(&value.to_le_bytes());
}

fn put_str(out: &mut Vec<u8>, text: &str) {
    put_u64(out, text.len() as u64);
    out.extend_from_slice(text.as_bytes());
}

fn put_value(out: &mut Vec<u8>, value: &Value) {
    match value {
        Value::U8(v) => out.extend_from_slice(&v.to_le_bytes()),
        Value::I8(v) => out.extend_from_slice(&v.to_le_bytes()),
        Value::U16(v) => out.extend_from_slice(&v.to_le_bytes()),
        Value::I16(v) => out.extend_from_slice(&v.to_le_bytes()),
        Value::U32(v) => out.extend_from_slice(&v.to_le_bytes()),
        Value::I32(v) => out.extend_from_slice(&v.to_le_bytes()),
        Value::F32(v) => out.extend_from_slice(&v.to_le_bytes()),
        Value::U64(v) => out.extend_from_slice(&v.to_le_bytes()),
        Value::I64(v) => out.extend_from_slice(&v.to_le_bytes()),
        Value::F64(v) => out.extend_from_slice(&v.to_le_bytes()),
        Value::Bool(v) => out.push(u8::from(*v)),
        Value::String(v) => put_str(out, v),
        Value::Array(v) => put_array(out, v),
    }
}

fn put_array(out: &mut Vec<u8>, array: &Array) {
    put_u32(out, array.elem().id());
    put_u64(out, array.len() as u64);
    if let Some(bytes) = array.bytes() {
        out.extend_from_slice(bytes);
    } else if let Some(strings) = array.strings() {
        strings.iter().for_each(|text| put_str(out, text));
    } else {
        let arrays = array.arrays().unwrap_or_default();
        arrays.iter().for_each(|inner| put_array(out, inner));
    }
}
