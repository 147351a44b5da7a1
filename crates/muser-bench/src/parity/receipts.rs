//! `cargo xtask receipts`: writes the receipts in `fixtures/receipts` anew. A receipt
//! is the record of one model run: its model, tokens, lane (strict or pinned
//! arithmetic) and the hash of its logits, which `muser parity` checks.
//!
//! A receipt of the pinned lane (llama.cpp's arithmetic) is written only if `muser
//! parity --record` computes the logits that the comparator, llama.cpp as a process,
//! has just computed; it holds the facts of the comparator's build. Receipts of the
//! strict lane (muser's own arithmetic) need no comparator: a change of bits shows in
//! `git diff`.

use super::comparator::Comparator;
use super::question::{ModelRun, Question, Side};
use muser_ops::{Lane, Profile};
use serde_json::json;
use sha2::{Digest as _, Sha256};
use std::path::{Path, PathBuf};
use std::process::Command;

/// A model run that is recorded for each lane (strict or pinned arithmetic) and each
/// model file, as a receipt: a record with the hash of the run's logits.
struct Run {
    name: &'static str,
    /// Number of tokens of the prompt that a recorded model run computes.
    tokens: usize,
    calls: &'static [usize],
    /// Number of forward calls of one token that follow the listed `calls`. Tokens of
    /// the prompt that are left after them form one last call.
    ones: usize,
    threads: usize,
    /// Whether this model run is recorded in the strict lane (muser's own arithmetic)
    /// too. Its bits do not depend on the split into calls, so one run is enough.
    strict: bool,
}

const RUNS: [Run; 3] = [
    // One call that is longer than the sliding window of 128: attention in tiles.
    Run {
        name: "one-call",
        tokens: 160,
        calls: &[],
        ones: 0,
        threads: 1,
        strict: true,
    },
    // Every batch width up to 12: each rung of the ladder (the table that chooses a
    // kernel by shape), with remainders.
    Run {
        name: "widths",
        tokens: 160,
        calls: &[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12],
        ones: 0,
        threads: 2,
        strict: false,
    },
    // Single tokens over 512 positions and more, which llama.cpp splits between
    // threads.
    Run {
        name: "decode",
        tokens: 530,
        calls: &[505],
        ones: 25,
        threads: 2,
        strict: false,
    },
];

impl Run {
    fn ids(&self) -> Vec<u32> {
        (0..self.tokens as u32)
            .map(|i| (1 + 3 * i) % 4096)
            .collect()
    }

    fn calls(&self) -> Vec<usize> {
        let mut calls = self.calls.to_vec();
        calls.extend(std::iter::repeat_n(1, self.ones));
        let rest = self.tokens - calls.iter().sum::<usize>();
        calls.extend((rest > 0).then_some(rest));
        calls
    }
}

/// Writes every receipt (the record of a model run with its logits hash) of the
/// repository at `root` anew.
///
/// # Errors
/// The comparator does not build or run, or `muser parity` refuses to record:
/// its logits are not the comparator's.
pub fn run(root: &Path) -> Result<(), String> {
    let scratch = tempfile::tempdir().map_err(|e| format!("a temporary folder: {e}"))?;
    let nano = root.join("models/glimmer-nano-2-q4_k_m.gguf");
    let f16 = scratch.path().join("glimmer-nano-f16.gguf");
    let path = |p: &Path| p.display().to_string();
    muser(
        root,
        &[
            "convert",
            "--to",
            "f16",
            &path(&nano),
            &path(&f16),
            "--quiet",
        ],
    )?;
    let models = [("nano", nano), ("nano-f16", f16)];
    for run in RUNS.iter().filter(|run| run.strict) {
        for (model, file) in &models {
            record(root, Lane::Strict, run, (model, file), None)?;
        }
    }
    for profile in Profile::ALL {
        let mut reference = Comparator::start(root, profile.name(), scratch.path())?;
        for run in &RUNS {
            for (model, file) in &models {
                let question = Question::Model(ModelRun {
                    path: file,
                    ids: &run.ids(),
                    calls: &run.calls(),
                    last: false,
                });
                let logits = reference.answer(&question, run.threads)?;
                let bytes = logits.iter().flat_map(|v| v.to_le_bytes());
                let hash = Sha256::digest(bytes.collect::<Vec<u8>>());
                let hash: String = hash.iter().map(|b| format!("{b:02x}")).collect();
                let facts = scratch.path().join("facts.json");
                let info = reference.facts();
                let kept = json!({
                    "profile": info["profile"], "crate": info["crate"], "ggml": info["ggml"],
                    "compiler": info["build"]["compiler"], "features": info["features"],
                    "glibc": info["glibc"],
                });
                std::fs::write(&facts, kept.to_string())
                    .map_err(|e| format!("{}: {e}", facts.display()))?;
                let proof = Some((hash.as_str(), facts.as_path()));
                record(root, Lane::Pinned(profile), run, (model, file), proof)?;
            }
        }
    }
    Ok(())
}

/// Writes one receipt: the record of a model run with its logits hash. With `proof`,
/// the SHA-256 of llama.cpp's logits and the file with the facts of its build, writes
/// it only if muser's logits have that hash.
fn record(
    root: &Path,
    lane: Lane,
    run: &Run,
    (model, file): (&str, &PathBuf),
    proof: Option<(&str, &Path)>,
) -> Result<(), String> {
    let of = lane.profile().map_or(lane.name(), Profile::name);
    let out = root.join(format!("fixtures/receipts/{of}-{model}-{}.json", run.name));
    if let Some(folder) = out.parent() {
        std::fs::create_dir_all(folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    }
    let list = |numbers: &mut dyn Iterator<Item = String>| numbers.collect::<Vec<_>>().join(",");
    let (threads, text) = (run.threads.to_string(), |p: &Path| p.display().to_string());
    let tokens = list(&mut run.ids().iter().map(u32::to_string));
    let calls = list(&mut run.calls().iter().map(usize::to_string));
    let (file, out) = (text(file), text(&out));
    let mut args = vec!["parity", "--force", "--record", &out, "--model", &file];
    args.extend([
        "--tokens",
        &tokens,
        "--chunks",
        &calls,
        "--threads",
        &threads,
    ]);
    if let Some(profile) = lane.profile() {
        args.extend(["--lane", "pinned", "--profile", profile.name()]);
    }
    let facts;
    if let Some((hash, path)) = proof {
        facts = text(path);
        args.extend(["--expect", hash, "--reference", &facts]);
    }
    muser(root, &args)
}

/// Runs the `muser` program, built for release, with these arguments.
fn muser(root: &Path, args: &[&str]) -> Result<(), String> {
    let status = Command::new(crate::cargo())
        .args(["run", "--release", "--quiet", "--package", "muser", "--"])
        .args(args)
        .current_dir(root)
        .status()
        .map_err(|e| format!("cargo: {e}"))?;
    match status.success() {
        true => Ok(()),
        false => Err(format!("muser {}: {status}", args[0])),
    }
}
