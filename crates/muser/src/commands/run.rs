//! `muser run`: continues a prompt, or answers it, and streams the text to standard output.

use crate::answer::{Answer, Show};
use crate::cli::Common;
use crate::exit::{Interrupted, Usage};
use crate::load::{self, Loaded};
use crate::output::{self, note};
use crate::sampling::SamplingArgs;
use crate::{interrupt, prompt, token_list};
use clap::Args;
use muser_engine::{GenerateOptions, Generation, StopReason, Token, generate};
use muser_text::Message;
use muser_text::chat::Format;
use std::path::PathBuf;
use std::time::Duration;

/// Continues a prompt and streams the text to standard output.
///
/// The prompt is the argument, a file, or standard input; without any of
/// these, a built-in one. A model with a chat template gets it as a user's
/// message (--raw: as the beginning of a text to continue).
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  muser run
  muser run \"I want a story about a fox.\" --seed 7 -n 200
  muser run --raw \"Once upon a time\" --temperature 0
  cat prompt.txt | muser run -
  muser run --tokens 4088,377,274 --ids     ids in, ids out (no tokenizer needed)
  muser run --json -n 50 | jq .timings

What a model writes as reasoning before its answer is dimmed on a terminal and left
out of a file or a pipe.

--json prints one object when all is done: model, prompt_tokens, tokens, text,
reasoning if there is any, stop (end, stop, length, context, cancelled), seed, and
timings in seconds. A context that is full (exit code 1) and Ctrl-C (130) print it too, with what there
is; without -n, a full context is the length that was asked for.")]
pub(crate) struct RunArgs {
    /// Text of the prompt; `-` is standard input
    #[arg(value_name = "PROMPT")]
    prompt: Option<String>,
    /// Read the prompt from a file
    #[arg(short, long, value_name = "FILE", conflicts_with = "prompt")]
    file: Option<PathBuf>,
    /// Take these token ids as the prompt: 1,2,3 or @FILE
    #[arg(long, value_name = "IDS", conflicts_with_all = ["prompt", "file", "raw", "chat"])]
    tokens: Option<String>,
    /// Take the prompt as the beginning of a text to continue, not as a user's message
    #[arg(long, conflicts_with = "chat")]
    raw: bool,
    /// Take the prompt as a user's message; an error if the model has no chat template
    #[arg(long)]
    chat: bool,
    /// System message before the prompt
    #[arg(
        long,
        value_name = "TEXT",
        conflicts_with_all = ["raw", "tokens"],
        allow_hyphen_values = true
    )]
    system: Option<String>,
    /// Most tokens to generate, those of the chat format's hidden header (about
    /// five) among them; without it, until the model ends its answer or the
    /// context is full
    #[arg(short = 'n', long, value_name = "N")]
    max_tokens: Option<usize>,
    /// End the generation before this text. May be repeated
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    stop: Vec<String>,
    /// Size of the context in positions (tokens of prompt and answer); without it, the
    /// model's own
    #[arg(long, value_name = "N")]
    context: Option<usize>,
    /// Print token ids, comma-separated, instead of text
    #[arg(long)]
    ids: bool,
    /// Print one JSON object at the end instead of streaming the text
    #[arg(long)]
    json: bool,
    /// Print no timings at the end
    #[arg(long)]
    no_timings: bool,
    /// The sampling options: how each token is chosen.
    #[command(flatten)]
    sampling: SamplingArgs,
}

/// The JSON object that `muser run --json` prints: prompt, generated tokens and text, why it
/// ended, seed and timings.
#[derive(serde::Serialize)]
struct Report<'a> {
    model: &'a str,
    prompt_tokens: &'a [Token],
    tokens: &'a [Token],
    text: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    reasoning: &'a str,
    stop: &'a str,
    seed: u64,
    timings: Timings,
}

/// The timings of a run: loading, prefill and decoding, durations in seconds and rates per
/// second.
#[derive(serde::Serialize)]
struct Timings {
    load: f64,
    prefill: f64,
    prefill_tokens: usize,
    prefill_tokens_per_second: f64,
    decode: f64,
    decode_tokens: usize,
    decode_tokens_per_second: f64,
    decode_bytes_per_second: f64,
    read_bandwidth: f64,
}

/// Runs `muser run` with these arguments.
pub(crate) fn run(common: &Common, args: &RunArgs) -> anyhow::Result<()> {
    // Before the model, which takes longer to load than a mistyped list to refuse.
    let given = args.tokens.as_deref().map(given_tokens).transpose()?;
    let loaded = load::model(common)?;
    let model = &loaded.model;
    let mut session = load::session(model, args.context)?;
    let tokens = match given {
        Some(tokens) => tokens,
        None => prompt_tokens(args, &loaded)?,
    };
    let ends = model
        .tokenizer()
        .map_or_else(|_| Vec::new(), |t| t.eog().iter().collect());
    let mut sampler = args.sampling.sampler(model.spec().vocab, ends)?;
    let options = GenerateOptions {
        max_tokens: Some(args.max_tokens.unwrap_or_else(|| {
            // One more than the positions left: the last token is not stored and needs none.
            (session.context() + 1).saturating_sub(tokens.len()).max(1)
        })),
        stop: args.stop.clone(),
        format: match is_chat(args, &loaded) {
            true => model.format(),
            false => Format::Plain,
        },
    };

    interrupt::set_mode(interrupt::Mode::Once);
    let mut answer = Answer::new(match args.json {
        true => Show::Nothing,
        false if args.ids || model.tokenizer().is_err() => Show::Ids,
        false => Show::Text,
    });
    let result = generate(
        &mut session,
        &tokens,
        &mut sampler,
        &options,
        &interrupt::FLAG,
        &mut |event| answer.event(event),
    );
    answer.finish()?;
    let generation = result?;
    let seed = sampler.params().seed;
    if args.json {
        let timings = Timings::of(&loaded, &generation, !args.no_timings);
        output::json(&Report {
            model: &loaded.path,
            prompt_tokens: &tokens,
            tokens: &generation.tokens,
            text: &generation.text,
            reasoning: &generation.reasoning,
            stop: generation.reason.name(),
            seed,
            timings,
        })?;
    } else if !common.quiet && !args.no_timings {
        note(format_args!(
            "{} · seed {seed}",
            Timings::of(&loaded, &generation, true)
        ));
    }
    match generation.reason {
        StopReason::Cancelled => Err(Interrupted.into()),
        StopReason::ContextFull { needed, context } => {
            Err(muser_engine::Error::ContextFull { needed, context }.into())
        }
        StopReason::EndOfGeneration(_) | StopReason::StopString(_) | StopReason::MaxTokens => {
            Ok(())
        }
    }
}

fn is_chat(args: &RunArgs, loaded: &Loaded) -> bool {
    if args.tokens.is_some() || args.raw {
        return false;
    }
    args.chat || args.system.is_some() || loaded.model.chat_template().is_ok()
}

/// Reads the token ids in the value of `--tokens`: `1,2,3` or `@FILE`.
fn given_tokens(list: &str) -> anyhow::Result<Vec<Token>> {
    let tokens = token_list::read("--tokens", list)?;
    match tokens.is_empty() {
        true => Err(Usage("--tokens: expected at least one token".to_owned()).into()),
        false => Ok(tokens),
    }
}

/// Reads the prompt's text and returns its tokens: as a user's message in the chat
/// format, or as the beginning of a text to continue.
fn prompt_tokens(args: &RunArgs, loaded: &Loaded) -> anyhow::Result<Vec<Token>> {
    if loaded.model.tokenizer().is_err() {
        let hint = format!(
            "{} has no tokenizer: give token ids with --tokens",
            loaded.path
        );
        return Err(Usage(hint).into());
    }
    let text = prompt::read(args.prompt.as_deref(), args.file.as_deref())?;
    if !is_chat(args, loaded) {
        return Ok(loaded.model.raw_prompt(&text)?);
    }
    let message = |role: &str, content: String| Message {
        role: role.to_owned(),
        content,
        ..Message::default()
    };
    let system = args.system.clone().map(|text| message("system", text));
    let messages: Vec<Message> = system.into_iter().chain([message("user", text)]).collect();
    Ok(loaded.model.chat_prompt(&messages)?)
}

impl Timings {
    fn of(loaded: &Loaded, g: &Generation, measure: bool) -> Self {
        let rate = |n: usize, time: Duration| {
            if n == 0 {
                0.0
            } else {
                n as f64 / time.as_secs_f64()
            }
        };
        let weights = loaded.model.transformer().bytes_per_token();
        let decode = rate(g.decoded, g.decode);
        // The bandwidth is measured over as many bytes as a token reads, so that a model that
        // fits a processor cache is compared with that cache; bounded, so that it takes a few
        // tens of milliseconds.
        let buffer = usize::try_from(weights)
            .unwrap_or(usize::MAX)
            .clamp(8 << 20, 256 << 20);
        let read = |buffer| loaded.device.read_bandwidth(buffer);
        Self {
            load: loaded.time.as_secs_f64(),
            prefill: g.prefill.as_secs_f64(),
            prefill_tokens: g.prompt.evaluated,
            prefill_tokens_per_second: rate(g.prompt.evaluated, g.prefill),
            decode: g.decode.as_secs_f64(),
            decode_tokens: g.decoded,
            decode_tokens_per_second: decode,
            decode_bytes_per_second: decode * weights as f64,
            read_bandwidth: if measure { read(buffer) } else { 0.0 },
        }
    }
}

impl std::fmt::Display for Timings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (got, peak) = (
            self.decode_bytes_per_second / 1e9,
            self.read_bandwidth / 1e9,
        );
        write!(
            f,
            "load {:.1} ms · prefill {} tokens, {:.0} tok/s · decode {} tokens, {:.1} tok/s, \
             {got:.1} GB/s ({:.0} % of {peak:.1} read)",
            self.load * 1e3,
            self.prefill_tokens,
            self.prefill_tokens_per_second,
            self.decode_tokens,
            self.decode_tokens_per_second,
            100.0 * got / peak,
        )
    }
}
