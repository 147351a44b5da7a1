//! `cargo xtask receipts`: the receipts in `fixtures/receipts`, written anew.
//!
//! A receipt of the pinned lane is written only if `muser parity --record` gets
//! the logits that the comparator has just given; it keeps what the
//! comparator's build says of itself. Those of the strict lane need no
//! comparator: `git diff` shows whether the lane has moved.

use super::comparator::Comparator;
use super::question::{ModelRun, Question, Side};
use muser_ops::{Lane, Profile};
use serde_json::json;
use sha2::{Digest as _, Sha256};
use std::path::{Path, PathBuf};
use std::process::Command;

/// A run of a model that receipts are written of.
struct Run {
    name: &'static str,
    /// Tokens, and their calls; what is left is one call.
    tokens: usize,
    calls: &'static [usize],
    /// Calls of one token after those.
    ones: usize,
    threads: usize,
    /// Of the strict lane as well, where calls move nothing.
    strict: bool,
}

const RUNS: [Run; 3] = [
    // Across the window of 128, the tiled form of attention.
    Run {
        name: "one-call",
        tokens: 160,
        calls: &[],
        ones: 0,
        threads: 1,
        strict: true,
    },
    // Every width up to 12: each rung and what is left over.
    Run {
        name: "widths",
        tokens: 160,
        calls: &[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12],
        ones: 0,
        threads: 2,
        strict: false,
    },
    // Single tokens with 512 slots and more, which the threads cut.
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

/// The command.
pub(crate) fn command(root: &Path) -> Result<(), String> {
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

/// Writes one receipt; with a proof, only if the logits have that SHA-256.
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

/// Runs the program.
fn muser(root: &Path, args: &[&str]) -> Result<(), String> {
    let status = Command::new(env!("CARGO"))
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
