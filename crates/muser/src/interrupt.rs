//! Handles Ctrl-C, which raises a flag while something can stop gracefully and ends the
//! program otherwise; and SIGTERM and SIGHUP, which end the program but must leave no
//! unfinished output file behind.

use anyhow::Context as _;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use tokio::signal::unix::{Signal, SignalKind, signal};

/// The interrupt flag, which Ctrl-C raises; a running generation stops when it is raised.
pub(crate) static FLAG: AtomicBool = AtomicBool::new(false);

static MODE: AtomicU8 = AtomicU8::new(Mode::Exit as u8);

/// The path of the unfinished output file, which is removed if a signal ends the program.
static UNFINISHED: Mutex<Option<PathBuf>> = Mutex::new(None);

/// What Ctrl-C does: end the program or raise the interrupt flag.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    /// Ctrl-C ends the program.
    Exit = 0,
    /// Ctrl-C raises the interrupt flag; the second time, it ends the program.
    Once = 1,
    /// Ctrl-C raises the interrupt flag, however often it is pressed.
    Always = 2,
}

/// Installs the handler of Ctrl-C.
pub(crate) fn install() -> anyhow::Result<()> {
    ctrlc::set_handler(|| {
        let mode = MODE.load(Ordering::Relaxed);
        let raised = FLAG.swap(true, Ordering::Relaxed);
        if mode == Mode::Always as u8 || (mode == Mode::Once as u8 && !raised) {
            return;
        }
        end(130);
    })
    .context("Ctrl-C cannot be handled")
}

/// Removes the unfinished output file, if there is one, and ends the program with this exit
/// code.
fn end(code: i32) -> ! {
    if let Some(path) = unfinished().take() {
        // The file can be gone already, if the command failed meanwhile.
        let _ = std::fs::remove_file(path);
    }
    std::process::exit(code);
}

/// Starts a thread that listens for SIGTERM and for the SIGHUP of a closed terminal. They
/// still end the program, but the unfinished output file is removed first. Called only
/// before such a file is created, so that other commands need no thread.
pub(crate) fn watch() -> anyhow::Result<()> {
    static WATCHED: OnceLock<Result<(), String>> = OnceLock::new();
    let begun = WATCHED.get_or_init(|| begin_watch().map_err(|e| format!("{e:#}")));
    begun.clone().map_err(anyhow::Error::msg)
}

fn begin_watch() -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("no runtime to listen for signals with")?;
    // Registered here and not in the thread: from here on no signal is missed.
    let (terminate, hang_up) = {
        let _context = runtime.enter();
        let terminate = signal(SignalKind::terminate()).context("SIGTERM cannot be handled")?;
        let hang_up = match is_hang_up_ignored() {
            true => None,
            false => Some(signal(SignalKind::hangup()).context("SIGHUP cannot be handled")?),
        };
        (terminate, hang_up)
    };
    let listen = move || {
        let code = runtime.block_on(ended(terminate, hang_up));
        end(code)
    };
    let thread = std::thread::Builder::new().name("signals".into());
    thread
        .spawn(listen)
        .map(drop)
        .context("no thread to listen for signals on")
}

/// Waits for SIGTERM, or SIGHUP if it is listened for, and returns the exit code: 128 plus
/// the signal's number.
async fn ended(mut terminate: Signal, hang_up: Option<Signal>) -> i32 {
    let Some(mut hang_up) = hang_up else {
        terminate.recv().await;
        return 143;
    };
    tokio::select! {
        _ = terminate.recv() => 143,
        _ = hang_up.recv() => 129,
    }
}

/// Returns whether SIGHUP was ignored when the program was started, as with `nohup`, and
/// has to stay so. Known on Linux only; `false` elsewhere.
fn is_hang_up_ignored() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|l| l.strip_prefix("SigIgn:"));
    let mask = ignored.and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok());
    // The mask's lowest bit is signal 1, SIGHUP.
    mask.is_some_and(|mask| mask & 1 == 1)
}

/// Chooses what Ctrl-C does from now on, and lowers the interrupt flag.
pub(crate) fn set_mode(mode: Mode) {
    FLAG.store(false, Ordering::Relaxed);
    MODE.store(mode as u8, Ordering::Relaxed);
}

/// Returns whether the interrupt flag is raised: Ctrl-C was pressed.
pub(crate) fn raised() -> bool {
    FLAG.load(Ordering::Relaxed)
}

/// Locks the record of the unfinished output file's path. While the lock is held, no signal
/// can end the program between creating or renaming a file and recording that.
pub(crate) fn unfinished() -> MutexGuard<'static, Option<PathBuf>> {
    UNFINISHED.lock().unwrap_or_else(PoisonError::into_inner)
}
