//! `/v1/completions`: a text goes on.

use super::App;
use super::body::fields;
use super::params::{check_lengths, common, prompts};
use super::render::{Kind, Render};
use super::stream;
use crate::error::ApiError;
use crate::fields::Fields;
use crate::scheduler::{Format, Generate, Request, Task};
use axum::extract::State;
use axum::response::Response;
use serde_json::Value;
use std::collections::HashMap;
use std::sync::Arc;

/// OpenAI's default for this route.
const MAX_TOKENS: usize = 16;
/// Alternatives of a token on this route.
const MOST_LOGPROBS: i64 = 20;

struct Parsed {
    request: Request,
    stream: bool,
    include_usage: bool,
    logprobs: bool,
    echo: Vec<String>,
}

pub(super) async fn completions(
    State(app): State<Arc<App>>,
    request: axum::extract::Request,
) -> Result<Response, ApiError> {
    let body = fields(&app, request).await?;
    let shared = app.clone();
    let parsed = body.read(move |f| parse(&shared, f)).await?;
    let choices = parsed.request.units();
    let events = app.handle.submit(parsed.request)?;
    let mut render = Render::new(app, Kind::Text, choices, parsed.logprobs);
    render.echo = parsed.echo;
    if parsed.stream {
        return Ok(stream::response(render, events, parsed.include_usage));
    }
    render.whole(events).await
}

fn parse(app: &App, mut f: Fields) -> Result<Parsed, ApiError> {
    let prompt = f.require("prompt")?;
    let texts = match &prompt {
        Value::String(text) => vec![text.clone()],
        Value::Array(items) => items
            .iter()
            .filter_map(Value::as_str)
            .map(Into::into)
            .collect(),
        _ => Vec::new(),
    };
    let mut prompts = prompts(app, "prompt", prompt)?;
    check_lengths(app, "prompt", &prompts, true)?;
    let common = common(app, &mut f)?;
    let max_tokens = f.count("max_tokens", 0, i64::from(u32::MAX))?;
    let logprobs = f.count("logprobs", 0, MOST_LOGPROBS)?;
    let echo = f.flag("echo")?.unwrap_or(false);
    if echo && logprobs.is_some() {
        let reason = "the prompt's log-probabilities are not computed: expected no logprobs";
        return Err(ApiError::field("echo", reason));
    }
    if echo && texts.len() != prompts.len() {
        return Err(ApiError::field("echo", "expected the prompt as text"));
    }
    if f.take("suffix").is_some() {
        return Err(ApiError::field("suffix", "this model fills no gaps"));
    }
    let best_of = f.count("best_of", 1, 128)?;
    if best_of.is_some_and(|best| best != common.n) {
        let reason = "answers are not ranked: expected the value of n";
        return Err(ApiError::field("best_of", reason));
    }
    f.finish()?;
    for prompt in &mut prompts {
        prompt.shrink_to_fit();
    }
    let generate = Generate {
        sampling: common.sampling,
        max_tokens: Some(max_tokens.unwrap_or(MAX_TOKENS)),
        stop: common.stop,
        logprobs,
        format: Format::Plain,
        grammar: None,
        parameters: HashMap::new(),
        ignore_end: common.ignore_end,
        n: common.n,
    };
    Ok(Parsed {
        request: Request {
            prompts,
            task: Task::Generate(Box::new(generate)),
            cache: common.cache,
            deadline: common.deadline,
        },
        stream: common.stream,
        include_usage: common.include_usage,
        logprobs: logprobs.is_some(),
        echo: if echo { texts } else { Vec::new() },
    })
}
