//! Maps a GGUF file into memory, read-only: the one place of this crate with `unsafe`.

use std::fs::File;
use std::io;

use memmap2::Mmap;

/// A whole GGUF file, mapped into memory read-only.
#[derive(Debug)]
pub(crate) struct Map(Mmap);

impl Map {
    /// Maps the whole of `file` into memory. The map stays valid when `file` is closed.
    pub(crate) fn new(file: &File) -> io::Result<Self> {
        // SAFETY: the mapping is private and read-only, so this process cannot
        // write through it, and `Mmap` unmaps it only when dropped, which the
        // arena's reference count puts after the last view. What no program can
        // exclude is another process changing the file meanwhile: a write would
        // change bytes behind `&[u8]`, a truncation raises SIGBUS on access. The
        // crate does not build on the bytes staying the same: every length is
        // read once and checked as read, text is copied before it is validated,
        // and the rest is numbers of which every bit pattern is valid. Users are
        // told in SECURITY.md not to change a file in use.
        unsafe { Mmap::map(file) }.map(Self)
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.0
    }
}
