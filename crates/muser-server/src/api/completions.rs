//! The route `/v1/completions`: continues a text.

use super::body::fields;
use super::params::{check_lengths, common, max_tokens, prompts};
use super::render::{Kind, Render, Shape};
use super::{App, compat, constraint, stream};
use crate::error::ApiError;
use crate::fields::Fields;
use crate::grammar::Draft;
use crate::limits::work::Work;
use crate::scheduler::{Generate, Request, Task};
use axum::extract::State;
use axum::response::Response;
use muser_engine::{Error, Token};
use serde_json::Value;
use std::sync::Arc;

/// The most tokens of a text completion whose request gives no number, as with OpenAI.
const MAX_TOKENS: usize = 16;
/// The most alternatives that may be listed with each token's log-probability in a text
/// completion.
const MOST_LOGPROBS: i64 = 20;

pub(crate) struct Parsed {
    request: Request,
    /// The grammar, not yet compiled, that the answers have to match.
    draft: Option<Draft>,
    stream: Option<stream::Usage>,
    shape: Shape,
}

pub(super) async fn completions(
    State(app): State<Arc<App>>,
    request: axum::extract::Request,
) -> Result<Response, ApiError> {
    let body = fields(&app, request).await?;
    let (shared, work) = (app.clone(), body.work.clone());
    let mut parsed = body.read(move |work, f| parse(&shared, work, f)).await?;
    constraint::admit(&app, &work, parsed.draft.take(), &mut parsed.request).await?;
    let choices = parsed.request.units();
    let whole = parsed.stream.is_none();
    let events = app.handle.submit(parsed.request, work, whole)?;
    let render = Render::new(app, Kind::Text, choices, parsed.shape);
    match parsed.stream {
        Some(usage) => Ok(stream::response(render, events, usage)),
        None => render.whole(events).await,
    }
}

pub(crate) fn parse(app: &App, work: &Work, mut f: Fields) -> Result<Parsed, ApiError> {
    let prompt = f.require("prompt")?;
    let common = common(app, work, &mut f)?;
    compat::text(&mut f)?;
    let max_tokens = max_tokens(&mut f, 0)?.unwrap_or(Some(MAX_TOKENS));
    let logprobs = f.count("logprobs", 0, MOST_LOGPROBS)?;
    let echo = f.flag("echo")?.unwrap_or(false);
    let show_special = !f.flag("skip_special_tokens")?.unwrap_or(true);
    let constraint = constraint::read(&mut f)?;
    if f.string("suffix")?.is_some_and(|suffix| !suffix.is_empty()) {
        return Err(ApiError::field("suffix", "this model fills no gaps"));
    }
    let best_of = f.count("best_of", 1, 128)?;
    if best_of.is_some_and(|best| best != common.generate.n) {
        let reason = "answers are not ranked: expected the value of n";
        return Err(ApiError::field("best_of", reason));
    }
    f.finish()?;
    let texts = texts(&prompt);
    let mut prompts = prompts(app, work, "prompt", prompt)?;
    check_lengths(app, "prompt", &prompts, max_tokens != Some(0))?;
    for prompt in &mut prompts {
        prompt.shrink_to_fit();
    }
    let shape = Shape {
        logprobs: logprobs.is_some(),
        show_special,
        echo: match echo {
            true => echoed(app, texts, &prompts, show_special)?,
            false => Vec::new(),
        },
        ..Shape::default()
    };
    let constraint = constraint.as_ref();
    let generate = Generate {
        max_tokens,
        logprobs,
        score: echo && logprobs.is_some(),
        show_special,
        ..common.generate
    };
    let draft = constraint.map(|c| c.draft(app, false, false)).transpose()?;
    Ok(Parsed {
        draft,
        request: Request {
            prompts,
            task: Task::Generate(Box::new(generate)),
            cache: common.cache,
            deadline: common.deadline,
        },
        stream: common.stream,
        shape,
    })
}

/// Returns those prompts of a request that it gives as texts rather than token ids.
fn texts(prompt: &Value) -> Vec<String> {
    match prompt {
        Value::String(text) => vec![text.clone()],
        Value::Array(items) => {
            let texts = items.iter().filter_map(Value::as_str);
            texts.map(str::to_owned).collect()
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Object(_) => Vec::new(),
    }
}

/// Returns, for each prompt, the text that its answers begin with (`echo`): the prompt as
/// given, or the text of its tokens.
fn echoed(
    app: &App,
    texts: Vec<String>,
    prompts: &[Vec<Token>],
    show_special: bool,
) -> Result<Vec<String>, ApiError> {
    if texts.len() == prompts.len() && !show_special {
        return Ok(texts);
    }
    let tokenizer = app.codec.tokenizer()?;
    let each = prompts
        .iter()
        .map(|tokens| tokenizer.decode(tokens, show_special));
    let all: Result<Vec<String>, _> = each.collect();
    all.map_err(|e| Error::from(e).into())
}
