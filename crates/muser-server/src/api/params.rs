//! Reads the parameters that chat and text completions share.

use super::stream::Usage;
use super::{App, compat};
use crate::error::{ApiError, shown};
use crate::fields::{Fields, number, wrong};
use crate::limits::work::Work;
use crate::scheduler::Generate;
use muser_engine::{MAX_STOP_BYTES, SamplingParams, Token};
use muser_text::chat::Format;
use muser_text::{EncodeOptions, Special};
use serde_json::Value;
use std::time::{Duration, Instant};

/// The largest value of a request's field that counts tokens, such as `max_tokens`.
const MOST_TOKENS: i64 = u32::MAX as i64;
/// The most answers (choices) that a request may ask for with one prompt.
const MOST_CHOICES: i64 = 128;
/// The most alternatives that may be listed with each token's log-probability in a chat.
pub(super) const MOST_TOP: i64 = 20;
/// The most stop strings of a request; OpenAI takes four.
const MOST_STOPS: usize = 16;

/// The most tokens that a request may name to end its answer, in addition to the model's
/// own.
const MOST_STOP_TOKENS: usize = 1024;

/// The parameters that chat and text completions have in common.
pub(super) struct Common {
    /// How to generate the answers; parameters that only chats or only text completions
    /// have are at their defaults.
    pub(super) generate: Generate,
    /// Which chunks of the stream report token counts (`usage`); `None` if the answer is
    /// not streamed.
    pub(super) stream: Option<Usage>,
    pub(super) cache: bool,
    pub(super) deadline: Instant,
}

/// Reads the parameters that chat and text completions share, and those fields of theirs
/// that change nothing here.
pub(super) fn common(app: &App, work: &Work, f: &mut Fields) -> Result<Common, ApiError> {
    app.check_model(f.string("model")?.as_deref())?;
    compat::common(f)?;
    let streamed = f.flag("stream")?.unwrap_or(false);
    let usage = usage(f)?;
    match f.number("timeout")? {
        None => {}
        Some(seconds) if seconds < 1.0 => {
            let reason = format!("expected at least 1 second, found {seconds}");
            return Err(ApiError::field("timeout", reason));
        }
        // A number that no duration can hold is longer than any limit.
        Some(seconds) => {
            work.shorten(Duration::try_from_secs_f32(seconds).unwrap_or(Duration::MAX));
        }
    }
    // A cache salt asks to keep a prompt apart from those of other clients.
    let salted = f.string("cache_salt")?.is_some_and(|salt| !salt.is_empty());
    let generate = Generate {
        sampling: sampling(app, f)?,
        max_tokens: None,
        min_tokens: f.count("min_tokens", 0, MOST_TOKENS)?.unwrap_or(0),
        stop: stop(f)?,
        stop_tokens: stop_tokens(app, f)?,
        logprobs: None,
        score: false,
        format: Format::Plain,
        tools: None,
        show_special: false,
        grammar: None,
        ignore_end: f.flag("ignore_eos")?.unwrap_or(false),
        n: f.count("n", 1, MOST_CHOICES)?.unwrap_or(1),
    };
    Ok(Common {
        generate,
        stream: streamed.then_some(usage),
        cache: f.flag("cache_prompt")?.unwrap_or(true) && !salted,
        deadline: work.deadline(),
    })
}

/// Reads from `stream_options` which chunks of a stream report token counts; an answer in
/// one piece always has them.
fn usage(f: &mut Fields) -> Result<Usage, ApiError> {
    let Some(mut options) = f.object("stream_options")? else {
        return Ok(Usage::Never);
    };
    let last = options.flag("include_usage")?.unwrap_or(false);
    let each = options.flag("continuous_usage_stats")?.unwrap_or(false);
    options.flag("include_obfuscation")?;
    options.finish()?;
    Ok(match (last, each) {
        (false, _) => Usage::Never,
        (true, false) => Usage::Last,
        (true, true) => Usage::Each,
    })
}

/// Reads the most tokens of an answer, at least `low`, under all names that the field
/// has, the newest first. `None` if it is not given; `Some(None)` for -1: no limit but
/// the context.
pub(super) fn max_tokens(f: &mut Fields, low: i64) -> Result<Option<Option<usize>>, ApiError> {
    let mut found = None;
    for name in ["max_completion_tokens", "max_tokens", "n_predict"] {
        let Some(n) = f.integer(name, -1, MOST_TOKENS)? else {
            continue;
        };
        if (0..low).contains(&n) {
            let range = format!("{low} to {MOST_TOKENS}, or -1 for no limit");
            return Err(ApiError::field(
                name,
                format!("expected {range}, found {n}"),
            ));
        }
        // -1 is the only negative number here.
        found.get_or_insert(usize::try_from(n).ok());
    }
    Ok(found)
}

/// Reads the sampler's settings; their defaults are OpenAI's: the model's own
/// distribution.
fn sampling(app: &App, f: &mut Fields) -> Result<SamplingParams, ApiError> {
    let d = SamplingParams::default();
    let seed = f.integer("seed", i64::MIN, i64::MAX)?;
    // -1 means no limit, which the sampler writes as 0 for `top_k`, and as the largest
    // number for a window.
    let all = |n: i64, value: usize| usize::try_from(n).unwrap_or(value);
    let top_k = f.integer("top_k", -1, MOST_TOKENS)?;
    let window = f.integer("repeat_last_n", -1, MOST_TOKENS)?;
    // The penalty with the newer name looks at all tokens so far.
    let whole = f.number("repetition_penalty")?;
    let near = f.number("repeat_penalty")?;
    if let (Some(whole), Some(near)) = (whole, near)
        && whole != near
    {
        let reason = "expected the value of repeat_penalty, another name of it";
        return Err(ApiError::field("repetition_penalty", reason));
    }
    let default_window = match whole {
        Some(_) => usize::MAX,
        None => d.penalty_window,
    };
    let params = SamplingParams {
        temperature: f.number("temperature")?.unwrap_or(d.temperature),
        top_k: top_k.map_or(d.top_k, |n| all(n, 0)),
        top_p: match f.number("top_p")?.unwrap_or(d.top_p) {
            // The least share that the sampler takes: the likeliest token alone reaches
            // it.
            0.0 => f32::MIN_POSITIVE,
            share => share,
        },
        min_p: f.number("min_p")?.unwrap_or(d.min_p),
        repeat_penalty: near.or(whole).unwrap_or(d.repeat_penalty),
        frequency_penalty: f
            .number("frequency_penalty")?
            .unwrap_or(d.frequency_penalty),
        presence_penalty: f.number("presence_penalty")?.unwrap_or(d.presence_penalty),
        penalty_window: window.map_or(default_window, |n| all(n, usize::MAX)),
        logit_bias: logit_bias(f)?,
        seed: seed.map_or_else(|| app.ids.seed(), i64::cast_unsigned),
    };
    let name = match near {
        None if whole.is_some() => "repetition_penalty",
        _ => "repeat_penalty",
    };
    let checked = params.validate(app.vocab).map_err(ApiError::from);
    checked.map_err(|e| e.renamed("repeat_penalty", name))?;
    Ok(params)
}

/// Reads `logit_bias`, such as `{"50256": -100}`. A bias of -100 rules a token out, as
/// with OpenAI.
fn logit_bias(f: &mut Fields) -> Result<Vec<(Token, f32)>, ApiError> {
    let Some(map) = f.object("logit_bias")? else {
        return Ok(Vec::new());
    };
    let mut biases = Vec::new();
    for (key, value) in map.rest() {
        let name = format!("logit_bias.{}", shown(&key));
        // One spelling only: "5", "+5" and "005" would be one token, with three
        // biases.
        let token = key.parse().ok();
        let token: Token = token
            .filter(|t: &Token| t.to_string() == key)
            .ok_or_else(|| {
                let found = format!("expected token ids, found {:?}", shown(&key));
                ApiError::field("logit_bias", found)
            })?;
        let bias = number(&name, &value)?;
        if !(-100.0..=100.0).contains(&bias) {
            return Err(ApiError::field(
                name,
                format!("expected -100 to 100, found {bias}"),
            ));
        }
        let bias = if bias == -100.0 {
            f32::NEG_INFINITY
        } else {
            bias
        };
        biases.push((token, bias));
    }
    Ok(biases)
}

/// Reads `stop`: one string, or several, that end the answer.
fn stop(f: &mut Fields) -> Result<Vec<String>, ApiError> {
    let stops = match f.take("stop") {
        None => Vec::new(),
        // Some clients send an empty string if there is none.
        Some(Value::String(s)) if s.is_empty() => Vec::new(),
        Some(Value::String(s)) => vec![s],
        Some(Value::Array(items)) => strings("stop", items)?,
        Some(other) => return Err(wrong("stop", "a string or an array of strings", &other)),
    };
    let odd = stops
        .iter()
        .find(|s| s.is_empty() || s.len() > MAX_STOP_BYTES);
    if let Some(odd) = odd {
        let reason = format!("expected 1 to {MAX_STOP_BYTES} bytes, found {}", odd.len());
        return Err(ApiError::field("stop", reason));
    }
    if stops.len() > MOST_STOPS {
        let reason = format!(
            "expected at most {MOST_STOPS} strings, found {}",
            stops.len()
        );
        return Err(ApiError::field("stop", reason));
    }
    Ok(stops)
}

/// Reads `stop_token_ids`: the tokens that end the answer.
fn stop_tokens(app: &App, f: &mut Fields) -> Result<Vec<Token>, ApiError> {
    let items = f.array("stop_token_ids")?.unwrap_or_default();
    if items.len() > MOST_STOP_TOKENS {
        let found = items.len();
        let reason = format!("expected at most {MOST_STOP_TOKENS} tokens, found {found}");
        return Err(ApiError::field("stop_token_ids", reason));
    }
    tokens(app, "stop_token_ids", &items)
}

/// Checks that all items of the JSON array in field `name` are strings, and returns them.
pub(super) fn strings(name: &str, items: Vec<Value>) -> Result<Vec<String>, ApiError> {
    let each = items.into_iter().enumerate().map(|(i, item)| match item {
        Value::String(s) => Ok(s),
        other => Err(wrong(&format!("{name}[{i}]"), "a string", &other)),
    });
    each.collect()
}

/// Checks that all items of the JSON array in field `name` are ids of the model's tokens,
/// and returns them.
pub(super) fn tokens(app: &App, name: &str, items: &[Value]) -> Result<Vec<Token>, ApiError> {
    let each = items.iter().enumerate().map(|(i, item)| {
        let id = item.as_u64().and_then(|n| Token::try_from(n).ok());
        let id = id.filter(|&t| (t as usize) < app.vocab);
        let reason = || format!("expected a token id below {}", app.vocab);
        id.ok_or_else(|| ApiError::field(format!("{name}[{i}]"), reason()))
    });
    each.collect()
}

/// Reads OpenAI's four forms of a prompt: a text, several texts, a list of tokens,
/// several lists.
pub(super) fn prompts(
    app: &App,
    work: &Work,
    name: &str,
    value: Value,
) -> Result<Vec<Vec<Token>>, ApiError> {
    let bounds = app.text_bounds(work);
    let encode = |text: &str| {
        let tokenizer = app.codec.tokenizer()?;
        let options = EncodeOptions {
            special: Special::Plain,
            add_bos: tokenizer.add_bos(),
        };
        bounds.encode(tokenizer, name, text, options)
    };
    let prompts = match value {
        Value::String(text) => vec![encode(&text)?],
        Value::Array(items) if items.first().is_some_and(Value::is_number) => {
            vec![tokens(app, name, &items)?]
        }
        Value::Array(items) if items.first().is_some_and(Value::is_array) => {
            let each = items.into_iter().enumerate().map(|(i, item)| match item {
                Value::Array(ids) => tokens(app, &format!("{name}[{i}]"), &ids),
                other => Err(wrong(
                    &format!("{name}[{i}]"),
                    "an array of token ids",
                    &other,
                )),
            });
            each.collect::<Result<_, _>>()?
        }
        Value::Array(items) => {
            let texts = strings(name, items)?;
            texts.iter().map(|t| encode(t)).collect::<Result<_, _>>()?
        }
        other => {
            return Err(wrong(
                name,
                "a string, or an array of strings or tokens",
                &other,
            ));
        }
    };
    if prompts.is_empty() {
        return Err(ApiError::field(
            name,
            "expected at least one prompt, found none",
        ));
    }
    Ok(prompts)
}

/// Refuses prompts without tokens, and those that are too long for the context or (with
/// `answer`) leave no room for an answer.
pub(super) fn check_lengths(
    app: &App,
    name: &str,
    prompts: &[Vec<Token>],
    answer: bool,
) -> Result<(), ApiError> {
    let context = app.limits.context;
    for prompt in prompts {
        if prompt.is_empty() {
            return Err(ApiError::field(
                name,
                "expected at least one token, found none",
            ));
        }
        let most = if answer { context - 1 } else { context };
        if prompt.len() > most {
            return Err(ApiError::context(name, prompt.len(), most, context));
        }
    }
    Ok(())
}
