//! Standard output, standard error and output files.

use crate::cli::Common;
use crate::exit::Exists;
use crate::interrupt;
use anyhow::Context as _;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::fmt::Arguments;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use tempfile::NamedTempFile;

/// A line to standard error. Nobody is left to hear of it if that fails.
pub(crate) fn note(line: Arguments<'_>) {
    let _ = writeln!(io::stderr(), "{line}");
}

/// A line to standard output.
pub(crate) fn line(line: Arguments<'_>) -> io::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "{line}")?;
    out.flush()
}

/// A value as JSON on standard output.
pub(crate) fn json(value: &impl serde::Serialize) -> anyhow::Result<()> {
    let text = serde_json::to_string_pretty(value).context("the result as JSON")?;
    Ok(line(format_args!("{text}"))?)
}

/// An output file that appears under its name only when it is whole.
pub(crate) struct OutFile {
    file: BufWriter<NamedTempFile>,
    path: PathBuf,
    force: bool,
}

impl OutFile {
    /// A temporary file in the folder of `path`.
    ///
    /// # Errors
    /// `path` exists and `force` is not given; the folder cannot be written.
    pub(crate) fn create(path: &Path, force: bool) -> anyhow::Result<Self> {
        if !force && path.exists() {
            return Err(Exists(path.to_owned()).into());
        }
        let folder = match path.parent() {
            Some(folder) if !folder.as_os_str().is_empty() => folder,
            _ => Path::new("."),
        };
        let mut builder = tempfile::Builder::new();
        #[cfg(unix)]
        {
            // What `File::create` gives, less the user's umask.
            use std::os::unix::fs::PermissionsExt as _;
            builder.permissions(std::fs::Permissions::from_mode(0o666));
        }
        let mut unfinished = interrupt::unfinished();
        let file = builder
            .prefix(".muser-")
            .tempfile_in(folder)
            .with_context(|| format!("{} cannot be written", path.display()))?;
        *unfinished = Some(file.path().to_owned());
        Ok(Self {
            file: BufWriter::with_capacity(1 << 20, file),
            path: path.to_owned(),
            force,
        })
    }

    /// Gives the file its name.
    pub(crate) fn finish(self) -> anyhow::Result<File> {
        let path = self.path;
        let write = || format!("{} cannot be written", path.display());
        let file = self
            .file
            .into_inner()
            .map_err(io::IntoInnerError::into_error);
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
        self.file.write(buf)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

/// A progress bar on standard error; none if that is no terminal, or with
/// `--quiet`.
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

/// The template of a bar over bytes.
pub(crate) const BYTES_BAR: &str =
    "{msg} [{bar:30}] {bytes} of {total_bytes}, {bytes_per_sec}, {eta} left";

/// Bytes for people: `14.6 MB`, decimal.
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

    #[test]
    fn bytes_are_decimal() {
        assert_eq!(bytes(999), "999 B");
        assert_eq!(bytes(16_756_681_056), "16.8 GB");
        assert_eq!(bytes(2_500_000_000_000), "2.5 TB");
    }
}
