//! `muser tokenize`: text to token ids.

use crate::cli::Common;
use crate::{load, output, prompt};
use clap::Args;
use muser_engine::Token;
use muser_text::{EncodeOptions, Special, Tokenizer};
use std::path::{Path, PathBuf};

/// Turns text into token ids, comma-separated, as `logits` and `run` take them.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  muser tokenize \"Once upon a time\"
  muser tokenize --pieces \"Once upon a time\"
  muser tokenize --special --no-bos \"<|start|>user<|message|>Hi<|eot|>\"
  muser tokenize --file story.txt > story.ids")]
pub(crate) struct TokenizeArgs {
    /// The text; without it, standard input
    #[arg(value_name = "TEXT", conflicts_with = "file")]
    text: Option<String>,
    /// Read the text from a file
    #[arg(short, long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// Special tokens written in the text are those tokens, not letters
    #[arg(long)]
    special: bool,
    /// Start with the start token, whatever the model wishes
    #[arg(long, conflicts_with = "no_bos")]
    bos: bool,
    /// Do not start with the start token
    #[arg(long)]
    no_bos: bool,
    /// One token a line: its id and its text
    #[arg(long)]
    pieces: bool,
    /// Print JSON: an array of ids, or with --pieces of objects
    #[arg(long)]
    json: bool,
}

#[derive(serde::Serialize)]
struct Piece {
    id: Token,
    text: String,
}

/// Does it.
pub(crate) fn run(common: &Common, args: &TokenizeArgs) -> anyhow::Result<()> {
    let tokenizer = load::tokenizer(common)?;
    let text = match (&args.text, &args.file) {
        (Some(text), _) => text.clone(),
        (None, file) => prompt::text_file(file.as_deref().unwrap_or(Path::new("-")))?,
    };
    let options = EncodeOptions {
        special: if args.special {
            Special::Parse
        } else {
            Special::Plain
        },
        add_bos: args.bos || (tokenizer.add_bos() && !args.no_bos),
    };
    let ids = tokenizer.encode(&text, options)?;
    match (args.pieces, args.json) {
        (false, true) => output::json(&ids),
        (true, true) => output::json(&pieces(&tokenizer, &ids)),
        (false, false) => {
            let ids: Vec<String> = ids.iter().map(Token::to_string).collect();
            Ok(output::line(format_args!("{}", ids.join(",")))?)
        }
        (true, false) => {
            for piece in pieces(&tokenizer, &ids) {
                output::line(format_args!("{:>7}  {:?}", piece.id, piece.text))?;
            }
            Ok(())
        }
    }
}

fn pieces(tokenizer: &Tokenizer, ids: &[Token]) -> Vec<Piece> {
    let text = |id| String::from_utf8_lossy(tokenizer.token_bytes(id).unwrap_or_default());
    ids.iter()
        .map(|&id| Piece {
            id,
            text: text(id).into_owned(),
        })
        .collect()
}
