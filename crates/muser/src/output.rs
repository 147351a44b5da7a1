//! Writes to standard output, to standard error and to files: text escaped for a terminal,
//! JSON, progress bars, and files that appear only when complete.

use crate::cli::Common;
use crate::exit::Exists;
use crate::interrupt;
use anyhow::Context as _;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::fmt::Arguments;
use std::fs::File;
use std::io::{self, BufWriter, IsTerminal as _, Write};
use std::path::{Path, PathBuf};
use tempfile::NamedTempFile;

/// Writes one or more lines to standard error, escaped for a terminal. A failed write is
/// ignored.
pub(crate) fn note(line: Arguments<'_>) {
    let _ = writeln!(io::stderr(), "{}", lines(&line.to_string()));
}

/// Returns whether a terminal would obey a character instead of showing it: one that moves
/// the cursor, colours, or turns the direction of text.
fn is_command(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// Escapes a text from a file or a command line for a terminal, on one line: characters
/// that a terminal would obey become their codes.
pub(crate) fn plain(text: &str) -> String {
    escaped(text, is_command)
}

/// Escapes a text of several lines for a terminal, as [`plain`] does, but keeps line ends
/// and tabs.
pub(crate) fn lines(text: &str) -> String {
    escaped(text, |c| is_command(c) && !matches!(c, '\n' | '\t'))
}

fn escaped(text: &str, is_unsafe: impl Fn(char) -> bool) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match is_unsafe(c) {
            true => out.extend(c.escape_unicode()),
            false => out.push(c),
        }
    }
    out
}

/// Writes one or more lines to standard output, escaped for a terminal.
pub(crate) fn line(line: Arguments<'_>) -> io::Result<()> {
    raw(&format!("{}\n", lines(&line.to_string())))
}

/// Writes a command's result text to standard output: unchanged to a file or a pipe,
/// escaped to a terminal.
pub(crate) fn content(text: &str) -> io::Result<()> {
    match io::stdout().is_terminal() {
        true => raw(&lines(text)),
        false => raw(text),
    }
}

fn raw(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()
}

/// Writes a value as JSON to standard output. Characters that a terminal would obey can
/// only be in strings, where JSON has escapes for them.
pub(crate) fn json(value: &impl serde::Serialize) -> anyhow::Result<()> {
    let text = serde_json::to_string_pretty(value).context("the result as JSON")?;
    let mut safe = String::with_capacity(text.len() + 1);
    for c in text.chars() {
        match is_command(c) && c != '\n' {
            true => safe.push_str(&format!("\\u{:04x}", u32::from(c))),
            false => safe.push(c),
        }
    }
    safe.push('\n');
    Ok(raw(&safe)?)
}

/// An output file that appears under its name only when it is complete.
///
/// A path that exists and is no regular file (a pipe, a device) is written directly,
/// since renaming a file over it would destroy it. A symbolic link is followed, so that
/// its target is replaced and not the link.
pub(crate) struct OutFile {
    out: Out,
    path: PathBuf,
    force: bool,
}

enum Out {
    /// A temporary file, renamed to the output's path when it is complete.
    Whole(BufWriter<NamedTempFile>),
    /// A pipe, a device or another path that is no regular file, opened for writing.
    Direct(BufWriter<File>),
}

impl OutFile {
    /// Opens `path` for output: creates a temporary file in its folder, or opens a pipe or
    /// a device directly.
    ///
    /// # Errors
    /// `path` exists and `force` is not given; the folder cannot be written.
    pub(crate) fn create(path: &Path, force: bool) -> anyhow::Result<Self> {
        let direct = match std::fs::metadata(path) {
            Ok(found) if found.is_dir() => {
                anyhow::bail!(
                    "{}: expected a file to write, found a folder",
                    path.display()
                )
            }
            Ok(found) if !found.is_file() => true,
            Ok(_) if !force => return Err(Exists(path.to_owned()).into()),
            _ => false,
        };
        let cannot = || format!("{} cannot be written", path.display());
        if direct {
            let file = File::options()
                .write(true)
                .open(path)
                .with_context(cannot)?;
            let out = Out::Direct(BufWriter::with_capacity(1 << 20, file));
            return Ok(Self {
                out,
                path: path.to_owned(),
                force,
            });
        }
        // The rename at the end replaces what has this name: that must be the target of a
        // symbolic link, not the link.
        let path = &std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
        let folder = match path.parent() {
            Some(folder) if !folder.as_os_str().is_empty() => folder,
            _ => Path::new("."),
        };
        let mut builder = tempfile::Builder::new();
        #[cfg(unix)]
        {
            // The permissions that `File::create` asks for; the umask is taken off them.
            use std::os::unix::fs::PermissionsExt as _;
            builder.permissions(std::fs::Permissions::from_mode(0o666));
        }
        interrupt::watch()?;
        let mut unfinished = interrupt::unfinished();
        let file = builder
            .prefix(".muser-")
            .tempfile_in(folder)
            .with_context(cannot)?;
        *unfinished = Some(file.path().to_owned());
        Ok(Self {
            out: Out::Whole(BufWriter::with_capacity(1 << 20, file)),
            path: path.to_owned(),
            force,
        })
    }

    /// Completes the output file: writes what is buffered and renames the temporary file to
    /// the output's path.
    pub(crate) fn finish(self) -> anyhow::Result<File> {
        let path = self.path;
        let write = || format!("{} cannot be written", path.display());
        let file = match self.out {
            Out::Whole(file) => file.into_inner().map_err(io::IntoInnerError::into_error),
            Out::Direct(file) => {
                let file = file.into_inner().map_err(io::IntoInnerError::into_error);
                return file.with_context(write);
            }
        };
        let file = file.with_context(write)?;
        let mut unfinished = interrupt::unfinished();
        let file = if self.force {
            file.persist(&path).map_err(|e| e.error)
        } else {
            file.persist_noclobber(&path).map_err(|e| e.error)
        };
        *unfinished = None;
        file.with_context(write)
    }
}

impl Write for OutFile {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        match &mut self.out {
            Out::Whole(file) => file.write(buf),
            Out::Direct(file) => file.write(buf),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match &mut self.out {
            Out::Whole(file) => file.flush(),
            Out::Direct(file) => file.flush(),
        }
    }
}

/// Makes a progress bar on standard error, hidden if that is no terminal or if `--quiet`
/// was given.
pub(crate) fn bar(common: &Common, total: u64, template: &str) -> ProgressBar {
    let target = if common.quiet {
        ProgressDrawTarget::hidden()
    } else {
        ProgressDrawTarget::stderr()
    };
    let style = ProgressStyle::with_template(template);
    ProgressBar::with_draw_target(Some(total), target)
        .with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
}

/// The template of a progress bar that counts bytes: done, total, bytes a second, time
/// left.
pub(crate) const BYTES_BAR: &str =
    "{msg} [{bar:30}] {bytes} of {total_bytes}, {bytes_per_sec}, {eta} left";

/// Formats a number of bytes for people, in decimal units: `14.6 MB`.
pub(crate) fn bytes(n: u64) -> String {
    let mut value = n as f64;
    for unit in ["B", "kB", "MB", "GB"] {
        if value < 1000.0 {
            return if unit == "B" {
                format!("{n} B")
            } else {
                format!("{value:.1} {unit}")
            };
        }
        value /= 1000.0;
    }
    format!("{value:.1} TB")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(path: &Path, force: bool) -> anyhow::Result<()> {
        let mut out = OutFile::create(path, force)?;
        out.write_all(b"new")?;
        out.finish()?;
        Ok(())
    }

    /// Checks that output to a pipe, which stands for a device, goes into the pipe and does
    /// not replace it by a file.
    #[cfg(unix)]
    #[test]
    fn what_is_no_regular_file_is_written_to_and_not_replaced() {
        use std::os::unix::fs::FileTypeExt as _;
        let dir = tempfile::tempdir().unwrap();
        let pipe = dir.path().join("pipe");
        let made = std::process::Command::new("mkfifo")
            .arg(&pipe)
            .status()
            .unwrap();
        assert!(made.success());
        for force in [false, true] {
            let reader = std::thread::spawn({
                let pipe = pipe.clone();
                move || std::fs::read(pipe).unwrap()
            });
            // Checked before the reader is joined: if the pipe was replaced, the reader would
            // wait for ever.
            let result = written(&pipe, force);
            assert!(std::fs::metadata(&pipe).unwrap().file_type().is_fifo());
            result.unwrap();
            assert_eq!(reader.join().unwrap(), b"new");
        }
        let error = written(dir.path(), true).unwrap_err().to_string();
        assert!(
            error.ends_with("expected a file to write, found a folder"),
            "{error}"
        );
    }

    #[cfg(unix)]
    #[test]
    fn a_link_stays_and_its_target_is_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let (file, link) = (dir.path().join("file"), dir.path().join("link"));
        std::fs::write(&file, "old").unwrap();
        std::os::unix::fs::symlink(&file, &link).unwrap();
        assert!(written(&link, false).is_err(), "exists");
        written(&link, true).unwrap();
        assert!(std::fs::symlink_metadata(&link).unwrap().is_symlink());
        assert_eq!(std::fs::read(&file).unwrap(), b"new");
    }

    #[test]
    fn escapes_do_not_reach_the_terminal() {
        assert_eq!(plain("a\u{1b}[2Jb"), "a\\u{1b}[2Jb");
        assert_eq!(plain("x\u{202e}y\u{9b}"), "x\\u{202e}y\\u{9b}");
        assert_eq!(plain("Glimmer Nano 24M – é日"), "Glimmer Nano 24M – é日");
        assert_eq!(
            (plain("a\n\tb"), lines("a\n\tb\r")),
            ("a\\u{a}\\u{9}b".into(), "a\n\tb\\u{d}".into())
        );
    }

    #[test]
    fn bytes_are_decimal() {
        assert_eq!(bytes(999), "999 B");
        assert_eq!(bytes(16_756_681_056), "16.8 GB");
        assert_eq!(bytes(2_500_000_000_000), "2.5 TB");
    }
}
