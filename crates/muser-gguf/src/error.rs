//! Errors of reading and writing. Each names the key or tensor and its byte
//! offset, and says what was expected and what was found.

use std::fmt;
use std::io;
use std::path::PathBuf;

use crate::{GgmlType, MAX_DIMS, MAX_HEADER_BYTES, MAX_KEY_BYTES, MAX_NESTING, ValueType};

/// An error of reading a file, of a lookup in it, or of writing one.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file could not be opened or mapped.
    #[error("{}: {source}", path.display())]
    Open {
        /// The path as given.
        path: PathBuf,
        /// The error of the operating system.
        source: io::Error,
    },
    /// The file is not well-formed, or the writer was asked for one that is not.
    #[error(transparent)]
    Refused(#[from] Box<Refusal>),
    /// A key that the caller needs is absent.
    #[error("metadata key {key:?}: expected {expected}, found no such key")]
    MissingKey {
        /// The key that was looked up.
        key: String,
        /// The type that was requested.
        expected: &'static str,
    },
    /// A key has another type than requested, or a value that does not fit the
    /// requested type.
    #[error("metadata key {key:?} at byte {offset}: expected {expected}, found {found}")]
    WrongType {
        /// The key asked for.
        key: String,
        /// Byte offset of the key in the file.
        offset: u64,
        /// The type asked for.
        expected: &'static str,
        /// The type in the file, with the value if the value is what does not
        /// fit.
        found: String,
    },
    /// A tensor that the caller needs is absent.
    #[error("tensor {name:?}: found no such tensor")]
    MissingTensor {
        /// The name that was looked up.
        name: String,
    },
    /// Tensor data was written in another order than declared.
    #[error("tensor data: expected {}, found {}", wanted(expected), wanted(found))]
    DataOrder {
        /// The tensor whose data comes next; `None` after the last one.
        expected: Option<String>,
        /// The tensor whose data was written instead; `None` if the file was
        /// finished.
        found: Option<String>,
    },
    /// Tensor data is shorter or longer than declared.
    #[error("tensor {name:?}: expected {expected} bytes of data, found {found}")]
    DataLength {
        /// The tensor's name.
        name: String,
        /// Number of bytes of the declared shape and type.
        expected: u64,
        /// Number of bytes written, those of the refused call included.
        found: u64,
    },
    /// Writing to the output failed.
    #[error("writing GGUF: {0}")]
    Write(#[from] io::Error),
}

fn wanted(name: &Option<String>) -> String {
    name.as_ref()
        .map_or_else(|| "the end".to_owned(), |name| format!("tensor {name:?}"))
}

/// A malformed file: the place and the fault.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The part of the file that is malformed.
    pub place: Place,
    /// Byte offset in the file where the fault was found; `None` from the
    /// writer.
    pub offset: Option<u64>,
    /// What was expected and what was found.
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

/// The part of a file that a [`Refusal`] is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// Magic, version and counts.
    Header,
    /// A metadata key, by number until its name is read.
    Key {
        /// Its number in the file, from 0.
        index: u64,
        /// Its name, once read.
        name: Option<String>,
    },
    /// A tensor of the directory, by number until its name is read.
    Tensor {
        /// Its number in the file, from 0.
        index: u64,
        /// Its name, once read.
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

/// Displays a name from a file, escaped and truncated: a key may have 64 KiB,
/// which would flood a terminal.
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

/// What is wrong at a [`Place`].
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
    /// Converts the fault at a place to an error.
    pub(crate) fn at(self, place: Place, offset: Option<u64>) -> Error {
        Error::Refused(Box::new(Refusal {
            place,
            offset,
            fault: self,
        }))
    }
}
