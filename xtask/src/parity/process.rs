//! The comparator as a process: built by profile, asked by lines of JSON with
//! raw bytes after them.

use serde_json::{Value, json};
use std::io::{BufRead, BufReader, BufWriter, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// Data of a tensor.
pub(super) enum Data<'a> {
    Bytes(&'a [u8]),
    Floats(&'a [f32]),
    Own(Vec<u8>),
}

impl Data<'_> {
    pub(super) fn len(&self) -> usize {
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

/// A running `muser-reference`.
pub(super) struct Process {
    child: Child,
    to: BufWriter<ChildStdin>,
    from: BufReader<ChildStdout>,
    /// What it says that it is: version, compiler, features.
    pub(super) info: Value,
}

impl Process {
    /// Starts one of its servers, `op` or `model`.
    pub(super) fn start(program: &Path, server: &str) -> Result<Self, String> {
        let mut child = Command::new(program)
            .arg(server)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .map_err(|e| format!("{}: {e}", program.display()))?;
        let pipes = child.stdin.take().zip(child.stdout.take());
        let (to, from) = pipes.ok_or("no pipes")?;
        let mut process = Self {
            child,
            to: BufWriter::with_capacity(1 << 16, to),
            from: BufReader::with_capacity(1 << 16, from),
            info: Value::Null,
        };
        process.info = process.line()?;
        Ok(process)
    }

    /// Sends a request, and reads the head of the reply.
    pub(super) fn ask(&mut self, request: &Value, data: &[Data<'_>]) -> Result<Value, String> {
        let send = |to: &mut BufWriter<ChildStdin>| {
            writeln!(to, "{request}")?;
            data.iter().try_for_each(|d| d.write(to))?;
            to.flush()
        };
        // A reply explains a pipe that broke: read it before giving up.
        let sent = send(&mut self.to);
        let reply = self.line();
        match (sent, reply) {
            (_, Ok(reply)) if reply["ok"] == json!(true) => Ok(reply),
            (_, Ok(reply)) => Err(format!("comparator: {}", reply["error"])),
            (Err(e), Err(_)) => Err(format!("comparator: {e}")),
            (Ok(()), Err(e)) => Err(e),
        }
    }

    /// Reads floats that the head has announced.
    pub(super) fn floats(&mut self, n: usize) -> Result<Vec<f32>, String> {
        let mut bytes = vec![0; 4 * n];
        self.from
            .read_exact(&mut bytes)
            .map_err(|e| format!("comparator: {e}"))?;
        Ok(muser_quant::f32::read(&bytes))
    }

    fn line(&mut self) -> Result<Value, String> {
        let mut line = String::new();
        let n = self
            .from
            .read_line(&mut line)
            .map_err(|e| format!("comparator: {e}"))?;
        if n == 0 {
            return Err("comparator: the process ended".to_owned());
        }
        serde_json::from_str(&line).map_err(|e| format!("comparator: {e}: {line}"))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // The process is of no use without this end of its pipes.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Builds the comparator of a profile, minutes the first time; says where.
pub(crate) fn build(root: &Path, profile: &str) -> Result<PathBuf, String> {
    let target = root.join("target/reference").join(profile);
    let config = root
        .join("crates/muser-reference/profiles")
        .join(format!("{profile}.toml"));
    for tool in ["cmake", "g++"] {
        let found = Command::new(tool)
            .arg("--version")
            .stdout(Stdio::null())
            .status();
        if found.is_err() {
            return Err(format!(
                "the comparator needs {tool}: see crates/muser-reference/README.md"
            ));
        }
    }
    eprintln!("building the comparator {profile} (minutes the first time)");
    let status = Command::new(env!("CARGO"))
        .args(["build", "--release", "--locked", "--quiet", "--config"])
        .arg(&config)
        .arg("--target-dir")
        .arg(&target)
        .current_dir(root.join("crates/muser-reference"))
        // Flags of the caller would make another profile of it.
        .env_remove("RUSTFLAGS")
        .env_remove("CFLAGS")
        .env_remove("CXXFLAGS")
        .status()
        .map_err(|e| format!("cargo: {e}"))?;
    if !status.success() {
        return Err(format!("the comparator {profile} did not build: {status}"));
    }
    Ok(target.join("release/muser-reference"))
}
