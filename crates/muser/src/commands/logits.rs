//! `muser logits`: writes the logits after each token of a sequence, or their SHA-256.

use crate::backend::Device;
use crate::cli::Common;
use crate::exit::Usage;
use crate::load;
use crate::output::{self, OutFile};
use crate::token_list;
use clap::Args;
use muser_engine::{Session, Token};
use sha2::{Digest as _, Sha256};
use std::io::{self, Write};
use std::path::PathBuf;

/// Writes the logits after each token of a sequence: raw little-endian f32,
/// one row of the vocabulary a position.
#[derive(Debug, Args)]
#[command(after_help = "\
In the strict lane the same bits come out whatever the options say: that is
what they are for. In the pinned lane the calls are part of the question.

Examples:
  muser logits --tokens 4088,377,274 --out out.f32
  muser logits --tokens @story.ids --sha256
  muser logits --tokens @story.ids --sha256 --chunks 1,4,16 --threads 3 --level scalar
  muser logits --tokens @story.ids --sha256 --cut-back 100")]
pub(crate) struct LogitsArgs {
    /// Token ids of the sequence: 1,2,3 or @FILE
    #[arg(long, value_name = "IDS")]
    tokens: String,
    /// File to write the logits to; `-` is standard output
    #[arg(long, value_name = "FILE", required_unless_present = "sha256")]
    out: Option<PathBuf>,
    /// Sizes of the successive forward calls: 1,4,16 or @FILE; the rest of the
    /// sequence is one call
    #[arg(long, value_name = "SIZES", default_value = "")]
    chunks: String,
    /// After the whole sequence, cut the session back to this many tokens and
    /// evaluate the rest again: the logits written from there on are the second time's
    #[arg(long, value_name = "N")]
    cut_back: Option<usize>,
    /// Print the SHA-256 of all logits
    #[arg(long)]
    sha256: bool,
}

/// Runs `muser logits` with these arguments.
pub(crate) fn run(common: &Common, args: &LogitsArgs) -> anyhow::Result<()> {
    let tokens = token_list::read("--tokens", &args.tokens)?;
    if tokens.is_empty() {
        return Err(Usage("--tokens: expected at least one token".to_owned()).into());
    }
    let sizes = token_list::read("--chunks", &args.chunks)?;
    let calls = calls(tokens.len(), &sizes)?;
    if let (Some(model), Some(out)) = (&common.model, &args.out) {
        let same = |path: &std::path::Path| std::fs::canonicalize(path).ok();
        if same(out).is_some_and(|out| Some(out) == same(model)) {
            let what = "--out: expected another file than the model";
            return Err(Usage(format!("{what}, found {}", out.display())).into());
        }
    }
    let loaded = load::model(common)?;
    let mut session = load::session(&loaded.model, None)?;

    let (mut file, stdout) = match &args.out {
        Some(path) if path.as_os_str() == "-" => (None, true),
        Some(path) => (Some(OutFile::create(path, true)?), false),
        None => (None, false),
    };
    let mut rows = RowWriter {
        hash: Sha256::new(),
        bytes: Vec::new(),
        error: None,
        out: match &mut file {
            Some(file) => Some(file as &mut dyn Write),
            None if stdout => Some(&mut io::stdout()),
            None => None,
        },
    };
    let again = args.cut_back.unwrap_or(tokens.len());
    score(&mut session, &tokens, &calls, &mut |at, row| {
        if at < again {
            rows.write(row);
        }
    })?;
    if again < tokens.len() {
        let kept = session.cut_back(again);
        score(
            &mut session,
            &tokens[kept..],
            &[tokens.len() - kept],
            &mut |at, row| {
                if at >= again {
                    rows.write(row);
                }
            },
        )?;
    }
    let hash = rows.finish()?;
    if let Some(file) = file {
        file.finish()?;
    }
    if args.sha256 {
        let hex: String = hash.iter().map(|byte| format!("{byte:02x}")).collect();
        if stdout {
            output::note(format_args!("{hex}"));
        } else {
            output::line(format_args!("{hex}"))?;
        }
    }
    Ok(())
}

/// Returns the sizes of the forward calls that evaluate this many tokens: the `sizes`
/// that the user gave, then one for the rest.
pub(crate) fn calls(tokens: usize, sizes: &[u32]) -> anyhow::Result<Vec<usize>> {
    let mut left = tokens;
    let mut calls = Vec::with_capacity(sizes.len() + 1);
    for &size in sizes {
        if size == 0 {
            return Err(Usage("--chunks: expected sizes above 0, found 0".to_owned()).into());
        }
        let size = left.min(size as usize);
        calls.push(size);
        left -= size;
    }
    calls.push(left);
    calls.retain(|&size| size > 0);
    Ok(calls)
}

/// Evaluates all tokens of a sequence in forward calls of these sizes, and passes the
/// logits after every token to `each(position, logits)`.
pub(crate) fn score(
    session: &mut Session<Device>,
    tokens: &[Token],
    calls: &[usize],
    each: &mut dyn FnMut(usize, &[f32]),
) -> anyhow::Result<()> {
    let mut rest = tokens;
    for &size in calls {
        let (call, later) = rest.split_at(size.min(rest.len()));
        session.score(call, each)?;
        rest = later;
    }
    Ok(())
}

/// A receiver of rows of logits, in order: hashes them as little-endian f32, and writes
/// them to the output file, if there is one.
struct RowWriter<'a> {
    hash: Sha256,
    bytes: Vec<u8>,
    error: Option<io::Error>,
    out: Option<&'a mut dyn Write>,
}

impl RowWriter<'_> {
    fn write(&mut self, row: &[f32]) {
        self.bytes.clear();
        self.bytes.extend(row.iter().flat_map(|l| l.to_le_bytes()));
        self.hash.update(&self.bytes);
        if let (Some(out), None) = (&mut self.out, &self.error) {
            self.error = out.write_all(&self.bytes).err();
        }
    }

    fn finish(self) -> anyhow::Result<Vec<u8>> {
        if let Some(error) = self.error {
            return Err(anyhow::Error::new(error).context("the logits cannot be written"));
        }
        if let Some(out) = self.out {
            out.flush()?;
        }
        Ok(self.hash.finalize().to_vec())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rest_is_one_call() {
        assert_eq!(calls(10, &[]).unwrap(), [10]);
        assert_eq!(calls(10, &[1, 4]).unwrap(), [1, 4, 5]);
        assert_eq!(calls(10, &[7, 9, 16]).unwrap(), [7, 3]);
        assert_eq!(calls(3, &[1, 1, 1]).unwrap(), [1, 1, 1]);
        assert!(calls(3, &[0]).is_err());
    }
}
