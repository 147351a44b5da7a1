//! Defines the errors of reading and writing GGUF files. Each names the key or tensor
//! and its byte offset, and says what was expected and what was found.

use std::fmt;
use std::io;
use std::path::PathBuf;

use crate::{GgmlType, MAX_DIMS, MAX_HEADER_BYTES, MAX_KEY_BYTES, MAX_NESTING, ValueType};

/// An error of reading a GGUF file, of looking up a key or tensor in it, or of writing
/// one.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The GGUF file could not be opened or mapped.
    #[error("{}: {source}", path.display())]
    Open {
        /// The path of the file, as the caller gave it.
        path: PathBuf,
        /// The operating system's error of opening or mapping the file.
        source: io::Error,
    },
    /// The GGUF file is not well-formed, or the writer was asked for one that is not.
    #[error(transparent)]
    Refused(#[from] Box<Refusal>),
    /// A metadata key that the caller needs is absent from the file.
    #[error("metadata key {key:?}: expected {expected}, found no such key")]
    MissingKey {
        /// The metadata key that was looked up.
        key: String,
        /// The type in which the caller asked for the key's value.
        expected: &'static str,
    },
    /// A metadata key has another type than the caller asked for, or a value that does
    /// not fit that type.
    #[error("metadata key {key:?} at byte {offset}: expected {expected}, found {found}")]
    WrongType {
        /// The metadata key that was looked up.
        key: String,
        /// Byte offset of the metadata key in the file.
        offset: u64,
        /// The type in which the caller asked for the key's value.
        expected: &'static str,
        /// The type of the key's value in the file, followed by the value itself where
        /// only the value does not fit.
        found: String,
    },
    /// A tensor that the caller needs is absent from the file.
    #[error("tensor {name:?}: found no such tensor")]
    MissingTensor {
        /// The tensor name that was looked up.
        name: String,
    },
    /// The writer was given tensor data in another order than the tensors were declared
    /// in.
    #[error("tensor data: expected {}, found {}", wanted(expected), wanted(found))]
    DataOrder {
        /// The name of the tensor whose data has to be written next; `None` after the
        /// last one.
        expected: Option<String>,
        /// The name of the tensor whose data was given instead; `None` if the file was
        /// finished.
        found: Option<String>,
    },
    /// The writer was given fewer or more bytes of tensor data than the tensor's
    /// declared shape and type take.
    #[error("tensor {name:?}: expected {expected} bytes of data, found {found}")]
    DataLength {
        /// The name of the tensor whose data has the wrong length.
        name: String,
        /// Number of bytes that the tensor's declared shape and type take.
        expected: u64,
        /// Number of bytes given for the tensor so far, those of the refused call
        /// included.
        found: u64,
    },
    /// Writing the GGUF file to the output failed.
    #[error("writing GGUF: {0}")]
    Write(#[from] io::Error),
}

fn wanted(name: &Option<String>) -> String {
    name.as_ref()
        .map_or_else(|| "the end".to_owned(), |name| format!("tensor {name:?}"))
}

/// Says why a GGUF file is malformed: the place in it and the fault found there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The part of the GGUF file that is malformed: its header, a key or a tensor.
    pub place: Place,
    /// Byte offset in the GGUF file where the fault was found; `None` if the writer
    /// found it.
    pub offset: Option<u64>,
    /// The fault of the GGUF file: what was expected and what was found.
    pub fault: Fault,
}

impl std::error::Error for Refusal {}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { place, fault, .. } = self;
        match self.offset {
            Some(offset) => write!(f, "{place} at byte {offset}: {fault}"),
            None => write!(f, "{place}: {fault}"),
        }
    }
}

/// The part of a GGUF file that is malformed, as a [`Refusal`] names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// The start of the GGUF file: magic, version, and the counts of tensors and keys.
    Header,
    /// A metadata key, known by its number in the file until its name is read.
    Key {
        /// The number of the metadata key in the file, from 0.
        index: u64,
        /// The name of the metadata key; `None` while it is not read.
        name: Option<String>,
    },
    /// A tensor of the file's tensor directory, known by its number until its name is
    /// read.
    Tensor {
        /// The number of the tensor in the tensor directory, from 0.
        index: u64,
        /// The name of the tensor; `None` while it is not read.
        name: Option<String>,
    },
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (what, index, name) = match self {
            Self::Header => return f.write_str("GGUF header"),
            Self::Key { index, name } => ("metadata key", index, name),
            Self::Tensor { index, name } => ("tensor", index, name),
        };
        match name {
            Some(name) => write!(f, "{what} {}", Quoted(name)),
            None => write!(f, "{what} #{index}"),
        }
    }
}

/// Displays a key or tensor name from a file, escaped and truncated: a key may have 64
/// KiB, which would flood a terminal.
struct Quoted<'a>(&'a str);

impl fmt::Display for Quoted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const SHOWN: usize = 96;
        match self.0.char_indices().nth(SHOWN) {
            Some((end, _)) => write!(f, "{:?}…", &self.0[..end]),
            None => write!(f, "{:?}", self.0),
        }
    }
}

/// What is wrong with a GGUF file at a [`Place`] (its header, a key or a tensor).
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[expect(
    missing_docs,
    reason = "the message beside each variant names its fields"
)]
pub enum Fault {
    #[error("{part}: expected {need} bytes, found {left} before the end of the file")]
    Truncated {
        part: &'static str,
        need: u64,
        left: u64,
    },
    #[error("{part}: expected the header to end by byte {MAX_HEADER_BYTES}, found byte {end}")]
    HeaderLimit { part: &'static str, end: u64 },
    #[error("expected the magic \"GGUF\", found \"{}\"", found.escape_ascii())]
    Magic { found: [u8; 4] },
    #[error("expected a little-endian file, found a big-endian one of version {version}")]
    BigEndian { version: u32 },
    #[error("expected version 2 or 3, found {found}")]
    Version { found: u32 },
    #[error("expected at most {most} {what} in the bytes left, found a count of {found}")]
    Count {
        what: &'static str,
        most: u64,
        found: u64,
    },
    #[error("expected at most {most} {what} in a file, found a count of {found}")]
    Limit {
        what: &'static str,
        most: u64,
        found: u64,
    },
    #[error("expected a key of 1 to {MAX_KEY_BYTES} bytes, found one of {found}")]
    KeyLength { found: u64 },
    #[error("expected each key once, found it also at byte {first}")]
    DuplicateKey { first: u64 },
    #[error("expected a key that is not there yet, found it declared twice")]
    RepeatedKey,
    #[error("{part}: expected UTF-8, found an invalid sequence")]
    Utf8 { part: &'static str },
    #[error("{part}: expected a value type of 0 to 12, found {found}")]
    UnknownValueType { part: &'static str, found: u32 },
    #[error(
        "expected at most {most} elements of {elem} in the bytes left, found a length of {found}"
    )]
    ArrayLength {
        elem: ValueType,
        most: u64,
        found: u64,
    },
    #[error("expected at most {MAX_NESTING} arrays within one another, found more")]
    Nesting,
    #[error("expected a bool byte of 0 or 1, found {found}")]
    BoolByte { found: u8 },
    #[error("expected the alignment as u32, found {found}")]
    AlignmentType { found: ValueType },
    #[error("expected an alignment that is a power of two and at least 8, found {found}")]
    Alignment { found: u32 },
    #[error(
        "expected a tensor name of 1 to {} bytes, found one of {found}",
        crate::MAX_TENSOR_NAME_BYTES
    )]
    TensorNameLength { found: u64 },
    #[error("expected each tensor once, found the name also as tensor #{first}")]
    DuplicateTensor { first: u64 },
    #[error("expected 1 to {MAX_DIMS} dimensions, found {found}")]
    DimCount { found: u64 },
    #[error("dimension {dim}: expected at least 1, found 0")]
    DimZero { dim: u32 },
    #[error("expected at most {} elements, found dimensions {dims:?}", i64::MAX)]
    Elements { dims: Vec<u64> },
    #[error("expected a ggml type, found id {found}")]
    UnknownType { found: u32 },
    #[error("expected a ggml type, found id {found} ({name}, removed from ggml)")]
    RemovedType { found: u32, name: &'static str },
    #[error("expected rows of a multiple of {} elements for {ty}, found {found}", ty.block_elements())]
    RowLength { ty: GgmlType, found: u64 },
    #[error(
        "expected a size that fits 64 bits with its padding, found {ty} of dimensions {dims:?}"
    )]
    Bytes { ty: GgmlType, dims: Vec<u64> },
    #[error("expected data at a multiple of {alignment}, found offset {found}")]
    Misaligned { alignment: u32, found: u64 },
    #[error(
        "expected the data start at byte {start} within the file, found a file of {file_len} bytes"
    )]
    DataStart { start: u64, file_len: u64 },
    #[error(
        "expected data within the {available} bytes of the data section, found {len} bytes at offset {found}"
    )]
    OutOfRange {
        available: u64,
        len: u64,
        found: u64,
    },
    #[error(
        "expected data of its own, found bytes {start}..{end} shared with tensor {}",
        Quoted(other)
    )]
    Overlap { other: String, start: u64, end: u64 },
}

impl Fault {
    /// Makes the error for this fault of a GGUF file, found at `place` and, if the
    /// reader found it, at a byte offset.
    pub(crate) fn at(self, place: Place, offset: Option<u64>) -> Error {
        Error::Refused(Box::new(Refusal {
            place,
            offset,
            fault: self,
        }))
    }
}
