//! Reads the prompt of `muser run` from an argument, a file or standard input.

use crate::input::{self, without_line_end};
use crate::output::note;
use std::io::{self, IsTerminal as _, Read as _};
use std::path::Path;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

/// The prompt that `muser run` uses when none is given.
pub(crate) const BUILT_IN: &str = "Tell me a story about a brave little rabbit.";

/// How long `muser run` waits for a prompt on standard input that the command line did
/// not ask to read: programs are often started with an open standard input that nobody
/// writes to.
const PATIENCE: Duration = Duration::from_secs(1);

/// Reads the prompt: the argument (`-` is standard input), the file, standard input, or
/// [`BUILT_IN`]. A line end at the end of a file or of standard input is no part of the
/// prompt.
pub(crate) fn read(argument: Option<&str>, file: Option<&Path>) -> anyhow::Result<String> {
    match (argument, file) {
        (Some("-"), _) => text_file(Path::new("-")).map(without_line_end),
        (Some(text), _) => Ok(text.to_owned()),
        (None, Some(path)) => text_file(path).map(without_line_end),
        (None, None) => Ok(offered()?.map_or_else(|| BUILT_IN.to_owned(), without_line_end)),
    }
}

/// Reads a whole file as UTF-8 text, 256 MiB at most; the path `-` stands for standard
/// input.
pub(crate) fn text_file(path: &Path) -> anyhow::Result<String> {
    input::text(path, input::MOST_TEXT)
}

/// Reads a prompt from standard input; returns `None` if that is a terminal, is empty, or
/// gives nothing within a second.
fn offered() -> anyhow::Result<Option<String>> {
    if io::stdin().is_terminal() {
        return Ok(None);
    }
    let (first, began) = mpsc::channel();
    let reader = thread::spawn(move || -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; 4096];
        let n = io::stdin().read(&mut bytes)?;
        bytes.truncate(n);
        let _ = first.send(());
        let rest = io::stdin().lock().take(input::MOST_TEXT);
        { rest }.read_to_end(&mut bytes)?;
        Ok(bytes)
    });
    if let Err(mpsc::RecvTimeoutError::Timeout) = began.recv_timeout(PATIENCE) {
        note(format_args!(
            "nothing on standard input: using the built-in prompt (`muser run -` waits for one)"
        ));
        return Ok(None);
    }
    // A standard input that cannot be read, for example a closed one, holds no prompt.
    let bytes = match reader.join() {
        Ok(Ok(bytes)) => bytes,
        _ => return Ok(None),
    };
    let text = input::decoded(bytes, "standard input", input::MOST_TEXT)?;
    Ok(Some(text).filter(|text| !text.is_empty()))
}
