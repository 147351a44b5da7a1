//! Opens GGUF files and gives access to their metadata, tensor directory and tensor
//! data.

use std::collections::HashMap;
use std::fmt;
use std::fs::{self, File};
use std::io;
use std::path::Path;
use std::sync::Arc;

use crate::arena::Arena;
use crate::map::Map;
use crate::{Error, Metadata, TensorData, TensorInfo, read};

/// An open GGUF file: its parsed header, and the mapped or owned bytes that hold the
/// weights.
///
/// Cloning copies a pointer. Nothing here is mutable, so threads share it freely.
#[derive(Clone)]
pub struct Gguf(Arc<Inner>);

struct Inner {
    arena: Arc<Arena>,
    version: u32,
    alignment: u32,
    data_offset: u64,
    metadata: Metadata,
    tensors: Vec<TensorInfo>,
    index: HashMap<String, usize>,
}

impl Gguf {
    /// Opens a GGUF file through a read-only memory map. Reads the header only: opening
    /// 16 GB takes as few milliseconds as 16 MB.
    ///
    /// No other process may change or truncate the file while it is open (see
    /// SECURITY.md: a truncated map raises SIGBUS).
    ///
    /// # Errors
    /// The file does not exist, is not a regular file or cannot be mapped; or
    /// it is not well-formed.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, Error> {
        let path = path.as_ref();
        let arena = map(path).map_err(|source| Error::Open {
            path: path.to_owned(),
            source,
        })?;
        Self::parse(arena)
    }

    /// Parses a GGUF file that is part of the program, for example from
    /// `include_bytes!`.
    ///
    /// # Errors
    /// The file is not well-formed.
    pub fn from_static(bytes: &'static [u8]) -> Result<Self, Error> {
        Self::parse(Arena::Static(bytes))
    }

    /// Parses a GGUF file held in memory.
    ///
    /// # Errors
    /// The file is not well-formed.
    pub fn from_vec(bytes: Vec<u8>) -> Result<Self, Error> {
        Self::parse(Arena::Owned(bytes))
    }

    fn parse(arena: Arena) -> Result<Self, Error> {
        let arena = Arc::new(arena);
        let parsed = read::parse(&arena)?;
        Ok(Self(Arc::new(Inner {
            arena,
            version: parsed.version,
            alignment: parsed.alignment,
            data_offset: parsed.data_offset,
            metadata: parsed.metadata,
            tensors: parsed.tensors,
            index: parsed.index,
        })))
    }

    /// Returns the file's version of the GGUF format: 2 or 3.
    #[must_use]
    pub fn version(&self) -> u32 {
        self.0.version
    }

    /// Returns the alignment in bytes of every tensor's data, relative to
    /// [`data_offset`](Self::data_offset).
    #[must_use]
    pub fn alignment(&self) -> u32 {
        self.0.alignment
    }

    /// Returns the bytes of the whole GGUF file, for hashing it.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        self.0.arena.bytes()
    }

    /// Returns the length of the whole GGUF file in bytes.
    #[must_use]
    pub fn file_len(&self) -> u64 {
        self.0.arena.bytes().len() as u64
    }

    /// Returns the byte offset in the GGUF file where tensor data begins; in a file
    /// without tensors, where the header ends.
    #[must_use]
    pub fn data_offset(&self) -> u64 {
        self.0.data_offset
    }

    /// Returns the metadata of the GGUF file: its keys and values.
    #[must_use]
    pub fn metadata(&self) -> &Metadata {
        &self.0.metadata
    }

    /// Returns the file's tensor directory, in file order.
    #[must_use]
    pub fn tensors(&self) -> &[TensorInfo] {
        &self.0.tensors
    }

    /// Returns the entry of the tensor directory with this name; `None` if the file has
    /// no such tensor.
    #[must_use]
    pub fn tensor(&self, name: &str) -> Option<&TensorInfo> {
        self.0.tensors.get(*self.0.index.get(name)?)
    }

    /// Returns a view of a tensor's data in this file; nothing is copied.
    ///
    /// # Panics
    /// If `info` describes bytes outside the file, as no tensor of
    /// [`Self::tensors`] does.
    #[must_use]
    pub fn tensor_data(&self, info: &TensorInfo) -> TensorData {
        self.range(info)
            .expect("the parser put every tensor of this file inside it; this one is of another")
    }

    /// Returns a view of the data of the tensor with this name; nothing is copied.
    ///
    /// # Errors
    /// The file has no tensor of this name.
    pub fn tensor_data_of(&self, name: &str) -> Result<TensorData, Error> {
        self.tensor(name)
            .and_then(|info| self.range(info))
            .ok_or_else(|| Error::MissingTensor {
                name: name.to_owned(),
            })
    }

    fn range(&self, info: &TensorInfo) -> Option<TensorData> {
        let start = usize::try_from(info.offset).ok()?;
        let len = usize::try_from(info.byte_len).ok()?;
        TensorData::new(&self.0.arena, start..start.checked_add(len)?)
    }
}

impl fmt::Debug for Gguf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gguf")
            .field("version", &self.version())
            .field("file_len", &self.file_len())
            .field("keys", &self.metadata().len())
            .field("tensors", &self.tensors().len())
            .finish()
    }
}

/// Maps a regular file into memory. Checks the kind of file before opening it: opening
/// a pipe would block.
fn map(path: &Path) -> io::Result<Arena> {
    if !fs::metadata(path)?.is_file() {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "expected a regular file",
        ));
    }
    let file = File::open(path)?;
    if file.metadata()?.len() == 0 {
        return Ok(Arena::Owned(Vec::new()));
    }
    Map::new(&file).map(Arena::Map)
}
