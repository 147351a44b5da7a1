//! `muser tokenize`: turns text into token ids.

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
    /// The text to tokenize; without it, standard input
    #[arg(value_name = "TEXT", conflicts_with = "file")]
    text: Option<String>,
    /// Read the text to tokenize from a file
    #[arg(short, long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// Take special tokens that are written in the text as tokens, not as letters
    #[arg(long)]
    special: bool,
    /// Put the start token first, whatever the model file asks for
    #[arg(long, conflicts_with = "no_bos")]
    bos: bool,
    /// Do not put the start token first
    #[arg(long)]
    no_bos: bool,
    /// Print one token a line: its id and its text, or its bytes as \xHH where the token
    /// is a part of a character
    #[arg(long)]
    pieces: bool,
    /// Print JSON: an array of ids, or with --pieces of objects, whose `text` is
    /// null, and `bytes` there, where a token is a part of a character
    #[arg(long)]
    json: bool,
}

/// A token as `--pieces` prints it: its id, and its text, or its bytes where it is only a
/// part of a character.
#[derive(serde::Serialize)]
struct Piece {
    id: Token,
    text: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    bytes: Option<Vec<u8>>,
}

impl std::fmt::Display for Piece {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:>7}  ", self.id)?;
        if let Some(text) = &self.text {
            return write!(f, "{text:?}");
        }
        let each = self.bytes.iter().flatten();
        write!(
            f,
            "\"{}\"",
            each.map(|byte| format!("\\x{byte:02x}"))
                .collect::<String>()
        )
    }
}

/// Runs `muser tokenize` with these arguments.
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
                output::line(format_args!("{piece}"))?;
            }
            Ok(())
        }
    }
}

fn pieces(tokenizer: &Tokenizer, ids: &[Token]) -> Vec<Piece> {
    let piece = |&id: &Token| {
        let bytes = tokenizer.token_bytes(id).unwrap_or_default().to_vec();
        let (text, bytes) = match String::from_utf8(bytes) {
            Ok(text) => (Some(text), None),
            Err(e) => (None, Some(e.into_bytes())),
        };
        Piece { id, text, bytes }
    };
    ids.iter().map(piece).collect()
}
