//! Handlers of the routes that OpenAI's API lacks: those of llama.cpp's server, and those
//! that operators need.

use super::body::fields;
use super::history::conversation;
use super::tools::Tools;
use super::{App, params};
use crate::error::{ApiError, json_response};
use crate::fields::Fields;
use crate::prompt;
use axum::extract::{Request, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use muser_engine::{Error, Token};
use muser_text::{EncodeOptions, Message, RenderOptions, Special, Tokenizer};
use serde_json::{Value, json};
use std::sync::Arc;

/// Serves the server's web page. The page loads nothing else; its content security policy
/// forbids that too.
pub(super) async fn page() -> Response {
    let policy = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; \
                  connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; \
                  frame-ancestors 'none'";
    let headers = [
        (header::CONTENT_TYPE, "text/html; charset=utf-8"),
        (header::CONTENT_SECURITY_POLICY, policy),
        (header::REFERRER_POLICY, "no-referrer"),
    ];
    (headers, include_str!("../page.html")).into_response()
}

pub(super) async fn health(State(app): State<Arc<App>>) -> Result<Response, ApiError> {
    if app.handle.is_closing() {
        return Err(ApiError::closing());
    }
    Ok(json_response(StatusCode::OK, &json!({"status": "ok"})))
}

pub(super) async fn metrics(State(app): State<Arc<App>>) -> Response {
    let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    app.metrics.memory_bytes.set(app.budget.used() as i64);
    ([(header::CONTENT_TYPE, kind)], app.metrics.text()).into_response()
}

pub(super) async fn openapi() -> Response {
    let kind = [(header::CONTENT_TYPE, "application/json")];
    (kind, include_str!("../openapi.json")).into_response()
}

pub(super) async fn props(State(app): State<Arc<App>>) -> Response {
    let props = json!({
        "model": app.model,
        "total_slots": app.limits.slots,
        "default_generation_settings": {"n_ctx": app.limits.context},
        "model_facts": app.facts,
        "system_fingerprint": app.fingerprint,
    });
    json_response(StatusCode::OK, &props)
}

pub(super) async fn slots(State(app): State<Arc<App>>) -> Response {
    let slots = json!(app.handle.slots());
    json_response(StatusCode::OK, &slots)
}

pub(super) async fn tokenize(
    State(app): State<Arc<App>>,
    request: Request,
) -> Result<Response, ApiError> {
    let body = fields(&app, request).await?;
    body.read(move |work, f| {
        let (content, options, pieces) = to_tokenize(f)?;
        let tokenizer = app.codec.tokenizer()?;
        let bounds = app.text_bounds(work);
        let ids = bounds.encode(tokenizer, "content", &content, options)?;
        let tokens: Vec<Value> = match pieces {
            true => ids.iter().map(|&id| piece(tokenizer, id)).collect(),
            false => ids.into_iter().map(Value::from).collect(),
        };
        Ok(json_response(StatusCode::OK, &json!({"tokens": tokens})))
    })
    .await
}

/// Reads a request to `/tokenize`: the text, how to encode it, and whether the tokens'
/// texts are asked for.
pub(super) fn to_tokenize(mut f: Fields) -> Result<(String, EncodeOptions, bool), ApiError> {
    let missing = || ApiError::field("content", "expected a string, found none");
    let content = f.string("content")?.ok_or_else(missing)?;
    let options = EncodeOptions {
        add_bos: f.flag("add_special")?.unwrap_or(false),
        special: match f.flag("parse_special")?.unwrap_or(true) {
            true => Special::Parse,
            false => Special::Plain,
        },
    };
    let pieces = f.flag("with_pieces")?.unwrap_or(false);
    f.finish()?;
    Ok((content, options, pieces))
}

/// Renders a token for `/tokenize`: its id with its text, or with its bytes if they are
/// not whole characters.
fn piece(tokenizer: &Tokenizer, id: Token) -> Value {
    let bytes = tokenizer.token_bytes(id).unwrap_or_default();
    match std::str::from_utf8(bytes) {
        Ok(text) => json!({"id": id, "piece": text}),
        Err(_) => json!({"id": id, "piece": bytes}),
    }
}

pub(super) async fn detokenize(
    State(app): State<Arc<App>>,
    request: Request,
) -> Result<Response, ApiError> {
    let body = fields(&app, request).await?;
    body.read(move |_, f| {
        let items = to_detokenize(f)?;
        let ids = params::tokens(&app, "tokens", &items)?;
        let tokenizer = app.codec.tokenizer()?;
        let text = tokenizer.decode(&ids, true).map_err(Error::from)?;
        Ok(json_response(StatusCode::OK, &json!({"content": text})))
    })
    .await
}

/// Reads the array `tokens` of a request to `/detokenize`, without checking that its
/// items are token ids.
pub(super) fn to_detokenize(mut f: Fields) -> Result<Vec<Value>, ApiError> {
    let missing = || ApiError::field("tokens", "expected an array, found none");
    let items = f.array("tokens")?.ok_or_else(missing)?;
    f.finish()?;
    Ok(items)
}

pub(super) async fn apply_template(
    State(app): State<Arc<App>>,
    request: Request,
) -> Result<Response, ApiError> {
    let body = fields(&app, request).await?;
    body.read(move |work, f| {
        let (messages, options) = to_render(&app, f)?;
        let bounds = app.text_bounds(work);
        let prompt = prompt::chat(&app.codec, messages, options, &bounds)?;
        let answer = json!({"prompt": prompt.text, "tokens": prompt.tokens});
        Ok(json_response(StatusCode::OK, &answer))
    })
    .await
}

/// Reads a request to `/apply-template`: the conversation, and the other variables of the
/// chat template.
pub(super) fn to_render(
    app: &App,
    mut f: Fields,
) -> Result<(Vec<Message>, RenderOptions), ApiError> {
    app.check_model(f.string("model")?.as_deref())?;
    let tools = Tools::read(&mut f)?;
    let all = conversation(&mut f, &tools)?;
    f.finish()?;
    Ok(all)
}
