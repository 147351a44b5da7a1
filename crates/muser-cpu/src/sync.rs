//! The types that the thread team synchronises with: the standard library's, or
//! loom's under `--cfg loom`.
//!
//! Loom runs a test once for every order in which the steps of its threads can
//! interleave, and lets a relaxed load return every value that it may
//! (`.ci/loom`). Its types exist inside such a test only.

#[cfg(loom)]
pub(crate) use loom::cell::UnsafeCell;
#[cfg(loom)]
pub(crate) use loom::sync::{Arc, Mutex, MutexGuard, atomic};
#[cfg(loom)]
pub(crate) use loom::{hint, thread};

#[cfg(not(loom))]
pub(crate) use std::sync::{Arc, Mutex, MutexGuard, atomic};
#[cfg(not(loom))]
pub(crate) use std::{hint, thread};

/// The standard library's `UnsafeCell` with the methods of loom's, which notes when a
/// pointer is in use.
#[cfg(not(loom))]
pub(crate) struct UnsafeCell<T>(std::cell::UnsafeCell<T>);

#[cfg(not(loom))]
impl<T> UnsafeCell<T> {
    pub(crate) const fn new(value: T) -> Self {
        Self(std::cell::UnsafeCell::new(value))
    }

    /// Calls `f` with a pointer through which it may read the cell's value.
    pub(crate) fn with<R>(&self, f: impl FnOnce(*const T) -> R) -> R {
        f(self.0.get())
    }

    /// Calls `f` with a pointer through which it may change the cell's value.
    pub(crate) fn with_mut<R>(&self, f: impl FnOnce(*mut T) -> R) -> R {
        f(self.0.get())
    }
}
