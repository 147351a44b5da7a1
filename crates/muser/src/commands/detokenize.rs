//! `muser detokenize`: turns token ids into text.

use crate::cli::Common;
use crate::{load, output, prompt, token_list};
use clap::Args;
use std::path::Path;

/// Turns token ids into text.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  muser detokenize 4088,377,274
  muser detokenize --special @story.ids
  muser tokenize \"Hello\" | muser detokenize")]
pub(crate) struct DetokenizeArgs {
    /// The token ids: 1,2,3 or @FILE; without it, standard input
    #[arg(value_name = "IDS")]
    ids: Option<String>,
    /// Show special tokens in the text, as the vocabulary writes them
    #[arg(long)]
    special: bool,
}

/// Runs `muser detokenize` with these arguments.
pub(crate) fn run(common: &Common, args: &DetokenizeArgs) -> anyhow::Result<()> {
    let tokenizer = load::tokenizer(common)?;
    let ids = match &args.ids {
        Some(list) => token_list::read("token ids", list)?,
        None => token_list::parse("standard input", &prompt::text_file(Path::new("-"))?)?,
    };
    let text = tokenizer.decode(&ids, args.special)?;
    let end = if text.ends_with('\n') { "" } else { "\n" };
    Ok(output::content(&format!("{text}{end}"))?)
}
