//! Talks to a child process that answers requests; requests and replies are a line of
//! JSON with raw bytes after it. llama.cpp is such a process, and so is muser where a
//! process is opened only to measure what opening costs.

use serde_json::{Value, json};
use std::io::{BufRead, BufReader, BufWriter, Read, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// Raw bytes that follow a request to a child process: the data of one tensor.
pub(crate) enum Data<'a> {
    Bytes(&'a [u8]),
    Floats(&'a [f32]),
    Own(Vec<u8>),
}

impl Data<'_> {
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Bytes(b) => b.len(),
            Self::Floats(x) => 4 * x.len(),
            Self::Own(b) => b.len(),
        }
    }

    fn write(&self, to: &mut impl Write) -> std::io::Result<()> {
        let x = match self {
            Self::Bytes(b) => return to.write_all(b),
            Self::Own(b) => return to.write_all(b),
            Self::Floats(x) => x,
        };
        let mut room = [0u8; 4 << 12];
        for part in x.chunks(room.len() / 4) {
            for (to, v) in room.as_chunks_mut::<4>().0.iter_mut().zip(part) {
                *to = v.to_le_bytes();
            }
            to.write_all(&room[..4 * part.len()])?;
        }
        Ok(())
    }
}

/// A running child process that answers requests. Dropping it kills the program.
pub(crate) struct Process {
    /// File name of the program that runs as the child process, for messages.
    name: String,
    child: Child,
    to: BufWriter<ChildStdin>,
    from: BufReader<ChildStdout>,
}

impl Process {
    /// Starts a program as a child process that answers requests; its standard error
    /// goes to `stderr`.
    pub(crate) fn start(program: &Path, args: &[String], stderr: Stdio) -> Result<Self, String> {
        let name = program.file_name().unwrap_or(program.as_os_str());
        let name = name.to_string_lossy().into_owned();
        let mut child = Command::new(program)
            .args(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(stderr)
            .spawn()
            .map_err(|e| format!("{}: {e}", program.display()))?;
        let pipes = child.stdin.take().zip(child.stdout.take());
        let (to, from) = pipes.ok_or_else(|| format!("{name}: no pipes"))?;
        Ok(Self {
            name,
            child,
            to: BufWriter::with_capacity(1 << 16, to),
            from: BufReader::with_capacity(1 << 16, from),
        })
    }

    /// Returns the operating system's id of the child process.
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Sends a request to the child process without waiting for its reply. Several
    /// requests may wait for replies at once if the replies are short enough for a
    /// pipe.
    pub(crate) fn send(&mut self, request: &Value, data: &[Data<'_>]) -> Result<(), String> {
        let mut send = || {
            writeln!(self.to, "{request}")?;
            data.iter().try_for_each(|d| d.write(&mut self.to))?;
            self.to.flush()
        };
        send().map_err(|e| format!("{}: sending a request: {e}", self.name))
    }

    /// Reads one line of JSON from the child process.
    pub(crate) fn line(&mut self) -> Result<Value, String> {
        let mut line = String::new();
        match self.from.read_line(&mut line) {
            Ok(0) => Err(format!("{}: the process ended", self.name)),
            Ok(_) => serde_json::from_str(&line).map_err(|e| format!("{}: {e}: {line}", self.name)),
            Err(e) => Err(format!("{}: reading a reply: {e}", self.name)),
        }
    }

    /// Reads a reply of the child process, which must hold `"ok": true`.
    ///
    /// # Errors
    /// The pipe broke, or the reply's own `error`.
    pub(crate) fn reply(&mut self) -> Result<Value, String> {
        match self.line()? {
            reply if reply["ok"] == json!(true) => Ok(reply),
            reply => Err(format!("{}: {}", self.name, reply["error"])),
        }
    }

    /// Sends a request to the child process and reads the first line of its reply.
    pub(crate) fn ask(&mut self, request: &Value, data: &[Data<'_>]) -> Result<Value, String> {
        // The reply of a program that gave up says why the pipe broke, so it is
        // read even if sending failed.
        let sent = self.send(request, data);
        let reply = self.reply()?;
        sent.map(|()| reply)
    }

    /// Reads the `n` floats, little-endian, that a reply of the child process has
    /// announced.
    pub(crate) fn floats(&mut self, n: usize) -> Result<Vec<f32>, String> {
        let mut bytes = vec![0; 4 * n];
        self.from
            .read_exact(&mut bytes)
            .map_err(|e| format!("{}: reading {n} floats: {e}", self.name))?;
        Ok(muser_quant::f32::read(&bytes))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Nobody else holds the child's pipes: it could only wait for ever.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
