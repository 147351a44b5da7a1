//! The comparator as a process: building a profile, asking it for a product.

use muser_quant::DType;
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// A running `muser-reference op`.
pub(super) struct Comparator {
    child: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
    /// What it says that it is: version, compiler, features.
    pub(super) info: Value,
}

/// A product to compute: `[columns, cols]` vectors with `rows × cols` weights.
pub(super) struct Product<'a> {
    pub(super) dtype: DType,
    pub(super) rows: usize,
    pub(super) cols: usize,
    pub(super) columns: usize,
    pub(super) weights: &'a [u8],
    pub(super) x: &'a [f32],
    pub(super) threads: usize,
}

/// Builds the profile's comparator, minutes the first time, and starts it.
pub(super) fn start(root: &Path, profile: &str) -> Result<Comparator, String> {
    let program = build(root, profile)?;
    let mut child = Command::new(&program)
        .arg("op")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .map_err(|e| format!("{}: {e}", program.display()))?;
    let (to, from) = child
        .stdin
        .take()
        .zip(child.stdout.take())
        .ok_or("no pipes")?;
    let mut comparator = Comparator {
        child,
        to,
        from: BufReader::new(from),
        info: Value::Null,
    };
    comparator.info = comparator.line()?;
    Ok(comparator)
}

fn build(root: &Path, profile: &str) -> Result<PathBuf, String> {
    let target = root.join("target/reference").join(profile);
    let config = root
        .join("crates/muser-reference/profiles")
        .join(format!("{profile}.toml"));
    if !config.is_file() {
        return Err(format!(
            "unknown profile {profile:?}: expected a name from {}",
            { "crates/muser-reference/profiles" }
        ));
    }
    for tool in ["cmake", "g++"] {
        if Command::new(tool)
            .arg("--version")
            .stdout(Stdio::null())
            .status()
            .is_err()
        {
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

impl Comparator {
    /// The product as ggml computes it, `[columns, rows]`; weights repacked
    /// where llama.cpp repacks them.
    pub(super) fn product(&mut self, p: &Product<'_>) -> Result<Vec<f32>, String> {
        let kind = match p.dtype {
            DType::Q4K => "q4_K",
            DType::Q5K => "q5_K",
            DType::Q6K => "q6_K",
            other => return Err(format!("{other} products are not compared yet")),
        };
        let x: Vec<u8> = p.x.iter().flat_map(|v| v.to_le_bytes()).collect();
        let request = json!({
            "threads": p.threads, "repack": true, "use_ref": false,
            "tensors": [
                {"name": "w", "type": kind, "ne": [p.cols, p.rows], "bytes": p.weights.len(),
                 "weight": true},
                {"name": "x", "type": "f32", "ne": [p.cols, p.columns], "bytes": x.len()},
            ],
            "nodes": [{"name": "y", "op": "mul_mat", "src": ["w", "x"], "params": {}}],
            "outputs": ["y"],
        });
        let head = format!("{request}\n");
        for bytes in [head.as_bytes(), p.weights, &x] {
            self.to
                .write_all(bytes)
                .map_err(|e| format!("comparator: {e}"))?;
        }
        self.to.flush().map_err(|e| format!("comparator: {e}"))?;
        let reply = self.line()?;
        if reply["ok"] != json!(true) {
            return Err(format!("comparator: {reply}"));
        }
        let mut bytes = vec![0; p.columns * p.rows * 4];
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
            return Err("the comparator ended".to_owned());
        }
        serde_json::from_str(&line).map_err(|e| format!("comparator: {e}: {line}"))
    }
}

impl Drop for Comparator {
    fn drop(&mut self) {
        // The process is of no use without this end of its pipes.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
