//! Reads the lines that a user gives to `muser chat`: typed in a line editor with history,
//! or from a file or a pipe.

use crate::input;
use anyhow::Context as _;
use rustyline::DefaultEditor;
use rustyline::config::Config;
use rustyline::error::ReadlineError;
use std::io::{self, BufRead as _, IsTerminal as _, Read as _};
use std::path::Path;

/// The most bytes that a line of input from a file or a pipe may have.
const MOST_LINE: u64 = 16 << 20;

/// The result of reading a line of the user's input: its text, or what came instead.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Line {
    /// The line's text, without the line end.
    Text(String),
    /// A line whose bytes are not UTF-8.
    NotText,
    /// Ctrl-C was pressed instead of a line being entered.
    Interrupted,
    /// The input has ended: there are no more lines.
    End,
}

/// The source of the user's lines: a terminal, or a file or pipe.
pub(crate) enum Lines {
    /// Lines typed on a terminal, in a line editor.
    Typed(Box<DefaultEditor>),
    /// Standard input that is a file or a pipe; the flag is true until its first line is
    /// read.
    Piped(bool),
}

impl Lines {
    /// Opens standard input for reading lines. On a terminal the line editor begins with the
    /// lines of the file `history`.
    pub(crate) fn open(history: Option<&Path>) -> anyhow::Result<Self> {
        if !io::stdin().is_terminal() {
            return Ok(Self::Piped(true));
        }
        let config = Config::builder()
            .auto_add_history(true)
            .max_history_size(1000)?
            .build();
        let mut editor = DefaultEditor::with_config(config).context("the line editor")?;
        if let Some(path) = history {
            // A history that cannot be loaded most likely does not exist yet.
            let _ = editor.load_history(path);
        }
        Ok(Self::Typed(Box::new(editor)))
    }

    /// Saves the history of lines typed on a terminal to a file; does nothing for a file or
    /// a pipe.
    pub(crate) fn save(&mut self, path: &Path) -> anyhow::Result<()> {
        let Self::Typed(editor) = self else {
            return Ok(());
        };
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder)?;
        }
        Ok(editor.save_history(path)?)
    }

    /// Reads the next line of the user's input; a terminal shows `prompt` before it.
    ///
    /// # Errors
    /// A failed read, or a line that is too long, as that of a device that never ends
    /// one.
    pub(crate) fn next(&mut self, prompt: &str) -> anyhow::Result<Line> {
        let editor = match self {
            Self::Typed(editor) => editor,
            Self::Piped(first) => return piped(std::mem::take(first)),
        };
        match editor.readline(prompt) {
            Ok(line) => Ok(Line::Text(line)),
            Err(ReadlineError::Interrupted) => Ok(Line::Interrupted),
            Err(ReadlineError::Eof) => Ok(Line::End),
            Err(ReadlineError::Io(e)) if e.kind() == io::ErrorKind::InvalidData => {
                Ok(Line::NotText)
            }
            Err(e) => Err(e).context("the line editor"),
        }
    }
}

fn piped(first: bool) -> anyhow::Result<Line> {
    let mut bytes = Vec::new();
    let mut bounded = io::stdin().lock().take(MOST_LINE + 1);
    let read = bounded.read_until(b'\n', &mut bytes);
    read.context("standard input cannot be read")?;
    if bytes.len() as u64 > MOST_LINE {
        anyhow::bail!("standard input: expected lines of at most {MOST_LINE} bytes, found more");
    }
    if bytes.is_empty() {
        return Ok(Line::End);
    }
    Ok(match String::from_utf8(bytes) {
        Ok(line) => {
            let line = line.strip_suffix('\n').unwrap_or(&line);
            Line::Text(input::line(line, first).to_owned())
        }
        Err(_) => Line::NotText,
    })
}
