//! The shared bytes of a file, and views into them.

use std::fmt;
use std::ops::{Deref, Range};
use std::sync::Arc;

use crate::map::Map;

/// Owner of the bytes of a file.
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

/// A range of bytes of a shared arena: no copy, no lifetime.
///
/// Cloning copies a pointer and a range; the arena (the memory map) lives as
/// long as any view into it. The address is aligned to `general.alignment` only
/// as far as the arena itself is: a map begins on a page, `include_bytes!` and a
/// `Vec<u8>` begin anywhere.
#[derive(Clone)]
pub struct TensorData {
    arena: Arc<Arena>,
    /// Lies inside the arena: checked when the view is made, and an arena never
    /// changes its length.
    range: Range<usize>,
}

impl TensorData {
    /// Creates a view of `range`; `None` if the range is not inside the arena.
    pub(crate) fn new(arena: &Arc<Arena>, range: Range<usize>) -> Option<Self> {
        arena.bytes().get(range.clone())?;
        Some(Self {
            arena: Arc::clone(arena),
            range,
        })
    }

    /// Creates a view of bytes that do not come from a file.
    #[must_use]
    pub fn from_vec(bytes: Vec<u8>) -> Self {
        let range = 0..bytes.len();
        Self {
            arena: Arc::new(Arena::Owned(bytes)),
            range,
        }
    }

    /// Returns a part of this view, `range` in bytes from its start; `None` if
    /// the part reaches beyond this view, even where the arena has more bytes.
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

/// Prints the position and the length instead of the bytes, which may be
/// gigabytes.
impl fmt::Debug for TensorData {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TensorData({:?})", self.range)
    }
}
