//! Holds the bytes of a GGUF file, mapped or in memory, and hands out views that keep
//! them alive.

use std::fmt;
use std::ops::{Deref, Range};
use std::sync::Arc;

use crate::map::Map;

/// Owns the bytes of a GGUF file: a memory map, a part of the program, or a vector.
pub(crate) enum Arena {
    Map(Map),
    Static(&'static [u8]),
    Owned(Vec<u8>),
}

impl Arena {
    pub(crate) fn bytes(&self) -> &[u8] {
        match self {
            Self::Map(map) => map.bytes(),
            Self::Static(bytes) => bytes,
            Self::Owned(bytes) => bytes,
        }
    }
}

/// A view of some bytes of a GGUF file, such as one tensor's data: a range of the
/// shared arena that holds the file, without a copy or a lifetime.
///
/// Cloning copies a pointer and a range; the arena (the memory map) lives as
/// long as any view into it. The address is aligned to `general.alignment` only
/// as far as the arena itself is: a map begins on a page, `include_bytes!` and a
/// `Vec<u8>` begin anywhere.
#[derive(Clone)]
pub struct TensorData {
    arena: Arc<Arena>,
    /// The byte range that the view covers. It lies inside the arena (the file's
    /// bytes): checked when the view is made, and an arena never changes its length.
    range: Range<usize>,
}

impl TensorData {
    /// Creates a view of the bytes `range` of an arena, which holds a file; `None` if
    /// the range is not inside it.
    pub(crate) fn new(arena: &Arc<Arena>, range: Range<usize>) -> Option<Self> {
        arena.bytes().get(range.clone())?;
        Some(Self {
            arena: Arc::clone(arena),
            range,
        })
    }

    /// Creates a view that owns its bytes, for tensor data or arrays that do not come
    /// from a file.
    #[must_use]
    pub fn from_vec(bytes: Vec<u8>) -> Self {
        let range = 0..bytes.len();
        Self {
            arena: Arc::new(Arena::Owned(bytes)),
            range,
        }
    }

    /// Returns a part of this view of a file's bytes, `range` counted from the view's
    /// start; `None` if the part reaches beyond the view, even where the file has more
    /// bytes.
    #[must_use]
    pub fn slice(&self, range: Range<usize>) -> Option<Self> {
        self.as_ref().get(range.clone())?;
        let start = self.range.start.checked_add(range.start)?;
        let end = self.range.start.checked_add(range.end)?;
        Self::new(&self.arena, start..end)
    }
}

impl Deref for TensorData {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.arena.bytes()[self.range.clone()]
    }
}

impl AsRef<[u8]> for TensorData {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

/// Prints a view's byte range in the file instead of the bytes, which may be gigabytes.
impl fmt::Debug for TensorData {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TensorData({:?})", self.range)
    }
}
