//! The parameters that both kinds of completion share.

use super::App;
use crate::error::ApiError;
use crate::fields::{Fields, number, wrong};
use crate::limits::work::Work;
use muser_engine::{MAX_STOP_BYTES, SamplingParams, Token};
use muser_text::{EncodeOptions, Special};
use serde_json::Value;
use std::time::{Duration, Instant};

/// Choices of one prompt.
const MOST_CHOICES: i64 = 128;
/// Alternatives of a token.
pub(super) const MOST_TOP: i64 = 20;
/// Stop strings; OpenAI takes four.
const MOST_STOPS: usize = 16;

/// What both kinds have.
pub(super) struct Common {
    pub(super) sampling: SamplingParams,
    pub(super) stop: Vec<String>,
    pub(super) n: usize,
    pub(super) stream: bool,
    pub(super) include_usage: bool,
    pub(super) cache: bool,
    pub(super) ignore_end: bool,
    pub(super) deadline: Instant,
}

/// Reads them, and the fields that change nothing here.
pub(super) fn common(app: &App, work: &Work, f: &mut Fields) -> Result<Common, ApiError> {
    app.check_model(f.string("model")?.as_deref())?;
    // Taken for compatibility: they tell a provider who asks and how to bill.
    f.string("user")?;
    f.string("service_tier")?;
    f.string("safety_identifier")?;
    f.string("prompt_cache_key")?;
    if let Some(metadata) = f.object("metadata")? {
        for (key, value) in metadata.rest() {
            if !value.is_string() {
                return Err(wrong(&format!("metadata.{key}"), "a string", &value));
            }
        }
    }
    if f.flag("store")? == Some(true) {
        return Err(ApiError::field("store", "this server keeps no answers"));
    }
    let stream = f.flag("stream")?.unwrap_or(false);
    let include_usage = match f.object("stream_options")? {
        None => false,
        Some(_) if !stream => {
            let reason = "expected only together with stream: true";
            return Err(ApiError::field("stream_options", reason));
        }
        Some(mut options) => {
            let wanted = options.flag("include_usage")?.unwrap_or(false);
            options.flag("include_obfuscation")?;
            options.finish()?;
            wanted
        }
    };
    match f.number("timeout")? {
        None => {}
        Some(seconds) if seconds < 1.0 => {
            let reason = format!("expected at least 1 second, found {seconds}");
            return Err(ApiError::field("timeout", reason));
        }
        // What no duration can hold is longer than any limit.
        Some(seconds) => {
            work.shorten(Duration::try_from_secs_f32(seconds).unwrap_or(Duration::MAX))
        }
    }
    Ok(Common {
        sampling: sampling(app, f)?,
        stop: stop(f)?,
        n: f.count("n", 1, MOST_CHOICES)?.unwrap_or(1),
        stream,
        include_usage,
        cache: f.flag("cache_prompt")?.unwrap_or(true),
        ignore_end: f.flag("ignore_eos")?.unwrap_or(false),
        deadline: work.deadline(),
    })
}

/// OpenAI's defaults: the model's own distribution.
fn sampling(app: &App, f: &mut Fields) -> Result<SamplingParams, ApiError> {
    let d = SamplingParams::default();
    let seed = f.integer("seed", i64::MIN, i64::MAX)?;
    let params = SamplingParams {
        temperature: f.number("temperature")?.unwrap_or(d.temperature),
        top_k: f.count("top_k", 0, i64::from(u32::MAX))?.unwrap_or(d.top_k),
        top_p: f.number("top_p")?.unwrap_or(d.top_p),
        min_p: f.number("min_p")?.unwrap_or(d.min_p),
        repeat_penalty: f.number("repeat_penalty")?.unwrap_or(d.repeat_penalty),
        frequency_penalty: f
            .number("frequency_penalty")?
            .unwrap_or(d.frequency_penalty),
        presence_penalty: f.number("presence_penalty")?.unwrap_or(d.presence_penalty),
        penalty_window: f
            .count("repeat_last_n", 0, i64::from(u32::MAX))?
            .unwrap_or(d.penalty_window),
        logit_bias: logit_bias(f)?,
        seed: seed.map_or_else(|| app.ids.seed(), i64::cast_unsigned),
    };
    params.validate(app.vocab)?;
    Ok(params)
}

/// `{"50256": -100}`. A token that is biased by -100 is ruled out, as OpenAI
/// has it.
fn logit_bias(f: &mut Fields) -> Result<Vec<(Token, f32)>, ApiError> {
    let Some(map) = f.object("logit_bias")? else {
        return Ok(Vec::new());
    };
    let mut biases = Vec::new();
    for (key, value) in map.rest() {
        let name = format!("logit_bias.{key}");
        let token: Token = key.parse().map_err(|_| {
            ApiError::field("logit_bias", format!("expected token ids, found {key:?}"))
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

/// A string, or some of them.
fn stop(f: &mut Fields) -> Result<Vec<String>, ApiError> {
    let stops = match f.take("stop") {
        None => Vec::new(),
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

/// An array of strings.
pub(super) fn strings(name: &str, items: Vec<Value>) -> Result<Vec<String>, ApiError> {
    let each = items.into_iter().enumerate().map(|(i, item)| match item {
        Value::String(s) => Ok(s),
        other => Err(wrong(&format!("{name}[{i}]"), "a string", &other)),
    });
    each.collect()
}

/// An array of token ids.
pub(super) fn tokens(app: &App, name: &str, items: &[Value]) -> Result<Vec<Token>, ApiError> {
    let each = items.iter().enumerate().map(|(i, item)| {
        let id = item.as_u64().and_then(|n| Token::try_from(n).ok());
        let id = id.filter(|&t| (t as usize) < app.vocab);
        let reason = || format!("expected a token id below {}", app.vocab);
        id.ok_or_else(|| ApiError::field(format!("{name}[{i}]"), reason()))
    });
    each.collect()
}

/// A text, several, a list of tokens, or several: OpenAI's four forms.
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

/// Refuses prompts of no tokens, and such that leave no room for an answer.
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
            return Err(ApiError::context(name, prompt.len(), context));
        }
    }
    Ok(())
}
