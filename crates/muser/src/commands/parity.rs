//! `muser parity`: writes and checks receipts, the records of a run's model, tokens and lane
//! (the arithmetic) with the hash of its logits.

use crate::cli::{Common, LaneArg};
use crate::commands::logits::{calls, score};
use crate::exit::Usage;
use crate::output::{self, OutFile, note};
use crate::receipt::{Logits, Model, Receipt};
use crate::{backend, input, load, token_list};
use anyhow::Context as _;
use clap::{ArgGroup, Args};
use muser_ops::Backend as _;
use sha2::{Digest as _, Sha256};
use std::io::Write as _;
use std::path::{Path, PathBuf};

/// Writes or checks receipts: files that say which logits a model gives for some tokens,
/// in which arithmetic, to the bit.
///
/// A receipt names a lane (the arithmetic; for the pinned one with the profile, a build
/// of llama.cpp), a model by its SHA-256, tokens and the forward calls that they were
/// given in, and the SHA-256 of all logits. Checking one computes the logits again, here
/// and now, and needs neither llama.cpp nor whoever wrote it.
#[derive(Debug, Args)]
#[command(
    group(ArgGroup::new("what").required(true).args(["receipt", "record"])),
    after_help = "\
Exit code 0 says that every receipt holds, 1 that one does not.

Examples:
  muser parity --receipt fixtures/receipts/*.json
  muser parity --receipt r.json --level avx2 --model FILE.gguf
  muser parity --record r.json --tokens 4088,377,274 --chunks 1,2
  muser parity --record r.json --tokens @story.ids --lane pinned --profile llamacpp-avx2"
)]
pub(crate) struct ParityArgs {
    /// Receipts to check: the logits are computed again and compared
    #[arg(long, value_name = "FILE", num_args = 1..)]
    receipt: Vec<PathBuf>,
    /// Receipt to write, with the hash of the logits of --tokens
    #[arg(long, value_name = "FILE", requires = "tokens")]
    record: Option<PathBuf>,
    /// Token ids to record the logits of: 1,2,3 or @FILE
    #[arg(long, value_name = "IDS", conflicts_with = "receipt")]
    tokens: Option<String>,
    /// Sizes of the successive forward calls: 1,4,16 or @FILE; the rest of the tokens is
    /// one call
    #[arg(
        long,
        value_name = "SIZES",
        default_value = "",
        conflicts_with = "receipt"
    )]
    chunks: String,
    /// Write the receipt only if the logits have this SHA-256
    #[arg(long, value_name = "SHA256", conflicts_with = "receipt")]
    expect: Option<String>,
    /// JSON file of facts about the reference (a build of llama.cpp) that gave the expected
    /// SHA-256, to keep in the receipt
    #[arg(long, value_name = "FILE", requires = "expect")]
    reference: Option<PathBuf>,
    /// Overwrite an existing receipt
    #[arg(long, conflicts_with = "receipt")]
    force: bool,
}

/// The error of `muser parity` that so many of so many receipts (records of logits) do
/// not hold: their logits differ, or they could not be checked.
#[derive(Debug, thiserror::Error)]
#[error("{0} of {1} receipts do not hold")]
struct Broken(usize, usize);

/// Runs `muser parity` with these arguments.
pub(crate) fn run(common: &Common, args: &ParityArgs) -> anyhow::Result<()> {
    if let Some(path) = &args.record {
        return record(common, args, path);
    }
    if common.lane != LaneArg::Strict || common.profile.is_some() || common.threads.is_some() {
        let what = "--lane, --profile and --threads: a receipt names its own";
        return Err(Usage(what.to_owned()).into());
    }
    let mut broken = 0;
    for path in &args.receipt {
        // A receipt that cannot be checked does not stop the check of those after it.
        let held = check(common, path).unwrap_or_else(|e| {
            note(format_args!("{}: not checked: {e:#}", path.display()));
            false
        });
        broken += usize::from(!held);
    }
    match broken {
        0 => Ok(()),
        _ => Err(Broken(broken, args.receipt.len()).into()),
    }
}

/// Checks one receipt (the record of a run's logits): computes the logits again, prints the
/// result and returns whether they are the same.
fn check(common: &Common, path: &Path) -> anyhow::Result<bool> {
    let receipt = Receipt::read(path)?;
    let lane = receipt.lane()?;
    let common = Common {
        lane: match lane.profile() {
            Some(_) => LaneArg::Pinned,
            None => LaneArg::Strict,
        },
        profile: lane.profile(),
        threads: Some(receipt.threads),
        ..common.clone()
    };
    let sha256 = model_sha256(common.model.as_deref())?;
    if sha256 != receipt.model.sha256 {
        anyhow::bail!(
            "the receipt is of another model: expected SHA-256 {} ({}), found {sha256}",
            receipt.model.sha256,
            output::plain(&receipt.model.name),
        );
    }
    let (found, level) = compute(&common, &receipt.tokens, &receipt.calls)?;
    let held = found == receipt.logits;
    let what = match held {
        true => "holds".to_owned(),
        false => format!(
            "DOES NOT HOLD: expected {} rows of {} with SHA-256 {}, found {} of {} with {}",
            receipt.logits.rows,
            receipt.logits.columns,
            receipt.logits.sha256,
            found.rows,
            found.columns,
            found.sha256
        ),
    };
    output::line(format_args!(
        "{}: {lane} v{}, {level}, {}, {} rows of {} logits: {what}",
        path.display(),
        receipt.lane_version,
        match receipt.threads {
            1 => "1 thread".to_owned(),
            n => format!("{n} threads"),
        },
        found.rows,
        found.columns,
    ))?;
    Ok(held)
}

fn record(common: &Common, args: &ParityArgs, path: &Path) -> anyhow::Result<()> {
    if path.exists() && !args.force {
        return Err(crate::exit::Exists(path.to_owned()).into());
    }
    let tokens = token_list::read("--tokens", args.tokens.as_deref().unwrap_or_default())?;
    if tokens.is_empty() {
        return Err(Usage("--tokens: expected at least one token".to_owned()).into());
    }
    let calls = calls(tokens.len(), &token_list::read("--chunks", &args.chunks)?)?;
    let reference = match &args.reference {
        None => None,
        Some(path) => {
            let what = || format!("{} is no JSON file of facts", path.display());
            let text = input::text(path, input::MOST_RECEIPT).with_context(what)?;
            Some(serde_json::from_str(&text).with_context(what)?)
        }
    };
    let lane = backend::lane(common)?;
    let device = backend::open(common)?;
    let threads = device.info().threads;
    drop(device);
    let (logits, _) = compute(common, &tokens, &calls)?;
    if let Some(expected) = args.expect.as_ref().filter(|e| **e != logits.sha256) {
        anyhow::bail!(
            "nothing is recorded: expected logits with SHA-256 {}, found {}",
            output::plain(expected),
            logits.sha256
        );
    }
    let name = match &common.model {
        Some(path) => path.file_name().unwrap_or_default().to_string_lossy(),
        None => "the embedded model".into(),
    };
    let model = Model {
        name: name.into_owned(),
        sha256: model_sha256(common.model.as_deref())?,
    };
    let receipt = Receipt::new(lane, threads, model, tokens, calls, logits, reference);
    let mut file = OutFile::create(path, args.force)?;
    file.write_all(receipt.text()?.as_bytes())?;
    file.finish()?;
    note(format_args!("{} written", path.display()));
    Ok(())
}

/// Computes the logits of the tokens in forward calls of these sizes; returns their hash and
/// the instruction-set level of the kernels.
fn compute(common: &Common, tokens: &[u32], calls: &[usize]) -> anyhow::Result<(Logits, String)> {
    let loaded = load::model(common)?;
    let mut session = load::session(&loaded.model, None)?;
    let (mut hash, mut rows, mut columns) = (Sha256::new(), 0, 0);
    score(&mut session, tokens, calls, &mut |_, row| {
        let bytes: Vec<u8> = row.iter().flat_map(|l| l.to_le_bytes()).collect();
        hash.update(&bytes);
        (rows, columns) = (rows + 1, row.len());
    })?;
    let logits = Logits {
        rows,
        columns,
        sha256: hex(&hash.finalize()),
    };
    Ok((logits, loaded.device.info().level))
}

/// Returns the SHA-256 of a GGUF file's bytes in hexadecimal; without a path, of the
/// embedded model's.
fn model_sha256(path: Option<&Path>) -> anyhow::Result<String> {
    let (_, gguf) = load::file(path)?;
    Ok(hex(&Sha256::digest(gguf.bytes())))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
