//! Reads the fields of a GGUF header. Compares every length with the bytes that are
//! left, here and nowhere else, and reports faults with their byte offset.

use std::ops::Range;
use std::sync::Arc;

use crate::arena::Arena;
use crate::{Error, Fault, MAX_HEADER_BYTES, Place};

/// A fault of a GGUF header, with the byte offset in the file where it was found.
pub(crate) struct Flaw {
    pub(crate) offset: u64,
    pub(crate) fault: Fault,
}

impl Flaw {
    pub(crate) fn at(self, place: Place) -> Error {
        self.fault.at(place, Some(self.offset))
    }
}

/// A reading position in the bytes of a GGUF file, never beyond their end.
pub(crate) struct Cursor<'a> {
    pub(crate) arena: &'a Arc<Arena>,
    pub(crate) pos: usize,
    /// Number of metadata arrays read so far, nested ones included.
    pub(crate) arrays: u64,
}

impl<'a> Cursor<'a> {
    pub(crate) fn new(arena: &'a Arc<Arena>) -> Self {
        Self {
            arena,
            pos: 0,
            arrays: 0,
        }
    }

    pub(crate) fn offset(&self) -> u64 {
        self.pos as u64
    }

    pub(crate) fn file_len(&self) -> u64 {
        self.arena.bytes().len() as u64
    }

    pub(crate) fn left(&self) -> u64 {
        self.file_len().saturating_sub(self.offset())
    }

    pub(crate) fn flaw(&self, fault: Fault) -> Flaw {
        Flaw {
            offset: self.offset(),
            fault,
        }
    }

    /// Returns the range of the next `need` bytes of the file without moving the
    /// cursor. The range lies inside the file and below [`MAX_HEADER_BYTES`].
    pub(crate) fn ahead(&self, need: u64, part: &'static str) -> Result<Range<usize>, Flaw> {
        let left = self.left();
        if need > left {
            return Err(self.flaw(Fault::Truncated { part, need, left }));
        }
        // No overflow: need is at most what is left of a slice.
        let end = self.offset() + need;
        if end > MAX_HEADER_BYTES {
            return Err(self.flaw(Fault::HeaderLimit { part, end }));
        }
        Ok(self.pos..end as usize)
    }

    pub(crate) fn take(&mut self, need: u64, part: &'static str) -> Result<&'a [u8], Flaw> {
        let range = self.ahead(need, part)?;
        self.pos = range.end;
        Ok(&self.arena.bytes()[range])
    }

    pub(crate) fn u32(&mut self, part: &'static str) -> Result<u32, Flaw> {
        let mut bytes = [0; 4];
        bytes.copy_from_slice(self.take(4, part)?);
        Ok(u32::from_le_bytes(bytes))
    }

    pub(crate) fn u64(&mut self, part: &'static str) -> Result<u64, Flaw> {
        let mut bytes = [0; 8];
        bytes.copy_from_slice(self.take(8, part)?);
        Ok(u64::from_le_bytes(bytes))
    }

    /// Reads `len` bytes of the file as UTF-8 text. Copies them before validating:
    /// another process could change the file afterwards, but not the copy.
    pub(crate) fn text(&mut self, len: u64, part: &'static str) -> Result<String, Flaw> {
        let offset = self.offset();
        let bytes = self.take(len, part)?.to_vec();
        String::from_utf8(bytes).map_err(|error| Flaw {
            offset: offset + error.utf8_error().valid_up_to() as u64,
            fault: Fault::Utf8 { part },
        })
    }
}
