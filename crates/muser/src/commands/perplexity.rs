//! `muser perplexity`: measures how well the model predicts a text.

use crate::cli::Common;
use crate::exit::{Interrupted, Usage};
use crate::load::{self, Loaded};
use crate::{interrupt, output, prompt};
use anyhow::Context as _;
use clap::Args;
use indicatif::ProgressBar;
use muser_engine::{Session, Token, log_prob};
use muser_text::EncodeOptions;
use std::path::PathBuf;

/// Measures how well the model predicts a text.
#[derive(Debug, Args)]
#[command(after_help = "\
Definition: each document is a sequence of its own, begun with the start token
where the vocabulary has one. A sequence longer than the context is cut into
pieces of that length, each begun anew. Every token but the first of a piece is
predicted from those before it; perplexity is exp of the mean of -ln p over all
predicted tokens. Sums are in f64, in the order of the text.

A FILE of JSON lines (.jsonl, .ndjson, or --json-lines) has a document a line,
in the field --field; any other FILE is one document.

Examples:
  muser perplexity story.txt
  muser perplexity valid.jsonl --field a
  muser --model f16.gguf perplexity valid.jsonl --field a --json")]
pub(crate) struct PerplexityArgs {
    /// File of the text to predict; `-` is standard input
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Read the file as JSON lines: one object a line, each with a document
    #[arg(long)]
    json_lines: bool,
    /// The field of each line's JSON object that holds the text
    #[arg(
        long,
        value_name = "NAME",
        default_value = "text",
        allow_hyphen_values = true
    )]
    field: String,
    /// Longest piece that a document is cut into, in tokens; without it, the model's context
    #[arg(long, value_name = "N")]
    context: Option<usize>,
    /// Measure only the first N documents
    #[arg(long, value_name = "N")]
    limit: Option<usize>,
    /// Print the result as one JSON object instead of text
    #[arg(long)]
    json: bool,
}

/// The result of a perplexity measurement, which `--json` prints, and the sums that it is
/// computed from.
#[derive(Default, serde::Serialize)]
struct Total {
    perplexity: f64,
    mean_nll: f64,
    /// The standard error of the mean of -ln p (p: the probability of a predicted token),
    /// from its spread over the tokens.
    standard_error: f64,
    tokens: u64,
    documents: usize,
    #[serde(skip)]
    nll: f64,
    #[serde(skip)]
    squares: f64,
}

/// Runs `muser perplexity` with these arguments.
pub(crate) fn run(common: &Common, args: &PerplexityArgs) -> anyhow::Result<()> {
    let texts = documents(args)?;
    let loaded = load::model(common)?;
    let mut session = load::session(&loaded.model, args.context)?;
    if session.context() < 2 {
        return Err(Usage("--context: expected at least 2, found 1".to_owned()).into());
    }
    let sequences = sequences(&loaded, &texts)?;
    let all: usize = sequences.iter().map(Vec::len).sum();
    let template = "{msg} [{bar:30}] {pos} of {len} tokens, {per_sec}, {eta} left";
    let bar = output::bar(common, all as u64, template);
    interrupt::set_mode(interrupt::Mode::Once);
    let mut total = Total::default();
    for tokens in &sequences {
        let before = total.tokens;
        for piece in pieces(tokens, session.context(), loaded.model.tokenizer()?.bos()) {
            if interrupt::raised() {
                bar.finish_and_clear();
                return Err(Interrupted.into());
            }
            total.add_piece(&mut session, &piece, &bar)?;
        }
        total.documents += usize::from(total.tokens > before);
    }
    bar.finish_and_clear();
    if total.tokens == 0 {
        anyhow::bail!("{} holds no token to predict", args.file.display());
    }
    total.derive();
    if args.json {
        return output::json(&total);
    }
    output::line(format_args!(
        "perplexity {:.4} ± {:.4} (mean -ln p {:.6}) over {} tokens in {} documents",
        total.perplexity,
        total.perplexity * total.standard_error,
        total.mean_nll,
        total.tokens,
        total.documents,
    ))?;
    Ok(())
}

fn documents(args: &PerplexityArgs) -> anyhow::Result<Vec<String>> {
    let text = prompt::text_file(&args.file)?;
    let by_name = args
        .file
        .extension()
        .is_some_and(|e| e == "jsonl" || e == "ndjson");
    let limit = args.limit.unwrap_or(usize::MAX);
    if !(by_name || args.json_lines) {
        return Ok([text].into_iter().take(limit).collect());
    }
    let lines = text
        .lines()
        .enumerate()
        .filter(|(_, line)| !line.trim().is_empty());
    let field = |(i, line): (usize, &str)| {
        let place = || format!("{}, line {}", args.file.display(), i + 1);
        let object: serde_json::Value = serde_json::from_str(line).with_context(place)?;
        let text = object.get(&args.field).and_then(|value| value.as_str());
        let text = text.with_context(|| format!("{}: no text in field {:?}", place(), args.field));
        Ok(text?.to_owned())
    };
    lines.take(limit).map(field).collect()
}

/// Encodes each document as tokens, with the start token first where the vocabulary has
/// one.
fn sequences(loaded: &Loaded, texts: &[String]) -> anyhow::Result<Vec<Vec<Token>>> {
    let tokenizer = loaded.model.tokenizer()?;
    let options = EncodeOptions {
        add_bos: tokenizer.bos().is_some(),
        ..EncodeOptions::default()
    };
    texts
        .iter()
        .map(|text| Ok(tokenizer.encode(text, options)?))
        .collect()
}

/// Cuts a document into pieces of at most `context` tokens, each begun with the start token
/// `bos` if there is one.
fn pieces(tokens: &[Token], context: usize, bos: Option<Token>) -> Vec<Vec<Token>> {
    let Some(bos) = bos else {
        return tokens.chunks(context).map(<[Token]>::to_vec).collect();
    };
    let text = tokens.get(1..).unwrap_or_default();
    text.chunks(context - 1)
        .map(|part| [&[bos], part].concat())
        .collect()
}

impl Total {
    fn add_piece(
        &mut self,
        session: &mut Session<crate::backend::Device>,
        piece: &[Token],
        bar: &ProgressBar,
    ) -> anyhow::Result<()> {
        session.clear();
        session.score(piece, &mut |position, row| {
            let next = piece.get(position + 1);
            if let Some(log_p) = next.and_then(|&token| log_prob(row, token)) {
                self.nll -= log_p;
                self.squares += log_p * log_p;
                self.tokens += 1;
            }
            bar.inc(1);
        })?;
        self.derive();
        bar.set_message(format!("perplexity {:.4}", self.perplexity));
        Ok(())
    }

    fn derive(&mut self) {
        let n = self.tokens.max(1) as f64;
        self.mean_nll = self.nll / n;
        self.perplexity = self.mean_nll.exp();
        let variance = (self.squares / n - self.mean_nll * self.mean_nll).max(0.0);
        self.standard_error = (variance / n).sqrt();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_begin_with_the_start_token() {
        assert_eq!(
            pieces(&[9, 1, 2, 3, 4, 5], 3, Some(9)),
            [[9, 1, 2].as_slice(), &[9, 3, 4], &[9, 5]]
        );
        assert_eq!(pieces(&[1, 2, 3], 2, None), [[1, 2].as_slice(), &[3]]);
        assert_eq!(pieces(&[9], 3, Some(9)), [[0u32; 0]; 0]);
    }
}
