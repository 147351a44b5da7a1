//! Ctrl-C: a flag while something can stop gracefully, the end otherwise.

use anyhow::Context as _;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Raised by Ctrl-C; generation looks at it.
pub(crate) static FLAG: AtomicBool = AtomicBool::new(false);

static MODE: AtomicU8 = AtomicU8::new(Mode::Exit as u8);

/// The unfinished output file, removed if Ctrl-C ends the program.
static UNFINISHED: Mutex<Option<PathBuf>> = Mutex::new(None);

/// What Ctrl-C does.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    /// Ends the program.
    Exit = 0,
    /// Raises the flag; the second time, ends the program.
    Once = 1,
    /// Raises the flag, however often.
    Always = 2,
}

/// Starts to listen.
pub(crate) fn install() -> anyhow::Result<()> {
    ctrlc::set_handler(|| {
        let mode = MODE.load(Ordering::Relaxed);
        let raised = FLAG.swap(true, Ordering::Relaxed);
        if mode == Mode::Always as u8 || (mode == Mode::Once as u8 && !raised) {
            return;
        }
        if let Some(path) = unfinished().take() {
            // Gone already if the command failed meanwhile.
            let _ = std::fs::remove_file(path);
        }
        std::process::exit(130);
    })
    .context("Ctrl-C cannot be handled")
}

/// Chooses what Ctrl-C does from now on, and lowers the flag.
pub(crate) fn set_mode(mode: Mode) {
    FLAG.store(false, Ordering::Relaxed);
    MODE.store(mode as u8, Ordering::Relaxed);
}

/// Whether the flag is raised.
pub(crate) fn raised() -> bool {
    FLAG.load(Ordering::Relaxed)
}

/// The unfinished output file. Whoever holds the lock while the file gets or
/// loses its name cannot be cut off between that and the note of it.
pub(crate) fn unfinished() -> MutexGuard<'static, Option<PathBuf>> {
    UNFINISHED.lock().unwrap_or_else(PoisonError::into_inner)
}
