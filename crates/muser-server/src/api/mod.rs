//! The HTTP routes of the server, and the state that their handlers share.

pub(crate) mod body;
pub(crate) mod chat;
mod compat;
pub(crate) mod completions;
mod constraint;
#[cfg(test)]
mod described;
pub(crate) mod embeddings;
mod extra;
mod front;
mod history;
mod params;
mod render;
mod stream;
mod text;
mod tools;
mod whole;

use crate::error::{ApiError, json_response};
use crate::grammar::Grammars;
use crate::keys::Keys;
use crate::limits::budget::Budget;
use crate::limits::gate::Gate;
use crate::limits::text::TextBounds;
use crate::limits::work::Work;
use crate::metrics::Metrics;
use crate::options::{Limits, UnknownFields};
use crate::scheduler::Handle;
use crate::sites::Sites;
use axum::Router;
use axum::extract::State;
use axum::extract::rejection::PathRejection;
use axum::http::StatusCode;
use axum::middleware::from_fn_with_state;
use axum::response::Response;
use axum::routing::{get, post};
use muser_engine::Codec;
use serde_json::{Value, json};
use std::ffi::OsString;
use std::hash::{BuildHasher as _, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, PoisonError, RwLock};
use std::time::{SystemTime, UNIX_EPOCH};
use tokio::sync::watch;

/// The state that all HTTP handlers share: the scheduler's handle, the model's
/// properties, keys and limits.
pub(crate) struct App {
    pub(crate) handle: Handle,
    pub(crate) codec: Codec,
    /// The API keys that requests may have; replaced when the file of keys is read anew.
    pub(crate) keys: RwLock<Arc<Keys>>,
    pub(crate) sites: Sites,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) limits: Limits,
    pub(crate) model: String,
    /// The model's properties as JSON, which `/props` and `/v1/models` show.
    pub(crate) facts: Value,
    pub(crate) vocab: usize,
    pub(crate) hidden: usize,
    /// The version of muser and of its arithmetic, shown as `system_fingerprint` in
    /// answers.
    pub(crate) fingerprint: String,
    pub(crate) unknown_fields: UnknownFields,
    pub(crate) created: u64,
    /// The compiler of grammars for the model's vocabulary; made when first needed, since
    /// that takes a walk over the vocabulary.
    pub(crate) grammars: OnceLock<Result<Arc<Grammars>, ApiError>>,
    /// The command line of the worker process that compiles grammars; `None` to compile
    /// them in the server.
    pub(crate) grammar_worker: Option<Vec<OsString>>,
    pub(crate) ids: Ids,
    /// The budget of memory that requests and unfinished answers share.
    pub(crate) budget: Arc<Budget>,
    /// The gate that bounds how many requests are parsed at once; clients take turns.
    pub(crate) gate: Arc<Gate>,
    /// Turns true when running answers are to be cut off because the server ends.
    pub(crate) cut: watch::Receiver<bool>,
}

impl App {
    /// Returns the API keys that are valid now.
    pub(crate) fn keys(&self) -> Arc<Keys> {
        let keys = self.keys.read();
        keys.unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn grammars(&self) -> Result<&Arc<Grammars>, ApiError> {
        let made = self.grammars.get_or_init(|| {
            let (worker, limits) = (self.grammar_worker.as_deref(), &self.limits);
            let (grammar, schema) = (limits.grammar.clone(), limits.schema.clone());
            Grammars::new(&self.codec, worker, grammar, schema).map(Arc::new)
        });
        made.as_ref().map_err(Clone::clone)
    }

    /// Returns the bounds for encoding a request's texts: at most as many tokens as the
    /// context has.
    pub(crate) fn text_bounds<'w>(&self, work: &'w Work) -> TextBounds<'w> {
        TextBounds {
            most: self.limits.context,
            work,
        }
    }

    /// Refuses a request whose `model` field names another model than this server's.
    pub(crate) fn check_model(&self, name: Option<&str>) -> Result<(), ApiError> {
        match name {
            Some(name) if name != self.model => {
                let message = format!("model: this server has {:?} only", self.model);
                let mut error = ApiError::status(StatusCode::NOT_FOUND, message);
                error.param = Some("model".to_owned());
                Err(error.code("model_not_found"))
            }
            _ => Ok(()),
        }
    }
}

/// Makes the ids of answers, and the sampler's seeds for requests that have none.
pub(crate) struct Ids {
    next: AtomicU64,
    salt: RandomState,
}

impl Ids {
    pub(crate) fn new() -> Self {
        Self {
            next: AtomicU64::new(0),
            salt: RandomState::new(),
        }
    }

    /// Returns an answer's id: 16 hexadecimal digits that no other answer of this process
    /// has, except by accident.
    pub(crate) fn next(&self) -> String {
        let n = self.next.fetch_add(1, Ordering::Relaxed);
        format!("{:016x}", self.salt.hash_one(n))
    }

    /// Returns a seed for the sampler of a request that has none.
    pub(crate) fn seed(&self) -> u64 {
        let n = self.next.fetch_add(1, Ordering::Relaxed);
        self.salt.hash_one((n, "seed")) >> 32
    }
}

/// Returns the current time in seconds since 1970 (UTC).
pub(crate) fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |d| d.as_secs())
}

/// Builds the router: all HTTP routes, behind the checks that every request passes.
pub(crate) fn router(app: Arc<App>) -> Router {
    Router::new()
        .route("/", get(extra::page))
        .route("/health", get(extra::health))
        .route("/metrics", get(extra::metrics))
        .route("/openapi.json", get(extra::openapi))
        .route("/props", get(extra::props))
        .route("/slots", get(extra::slots))
        .route("/v1/models", get(models))
        .route("/v1/models/{*model}", get(model))
        .route("/v1/chat/completions", post(chat::chat))
        .route("/v1/completions", post(completions::completions))
        .route("/v1/embeddings", post(embeddings::embeddings))
        .route("/tokenize", post(extra::tokenize))
        .route("/detokenize", post(extra::detokenize))
        .route("/apply-template", post(extra::apply_template))
        .fallback(unknown)
        .method_not_allowed_fallback(wrong_method)
        .layer(from_fn_with_state(app.clone(), front::front))
        .with_state(app)
}

async fn unknown() -> ApiError {
    ApiError::status(StatusCode::NOT_FOUND, "there is no such route")
}

async fn wrong_method() -> ApiError {
    let message = "this route has another method";
    ApiError::status(StatusCode::METHOD_NOT_ALLOWED, message)
}

fn card(app: &App) -> Value {
    json!({
        "id": app.model,
        "object": "model",
        "created": app.created,
        "owned_by": "muser",
        "meta": app.facts,
    })
}

async fn models(State(app): State<Arc<App>>) -> Response {
    let list = json!({"object": "list", "data": [card(&app)]});
    json_response(StatusCode::OK, &list)
}

async fn model(
    State(app): State<Arc<App>>,
    name: Result<axum::extract::Path<String>, PathRejection>,
) -> Result<Response, ApiError> {
    // A name that is not valid UTF-8 belongs to no model.
    let name = name.map_or_else(|_| String::new(), |path| path.0);
    app.check_model(Some(&name))?;
    Ok(json_response(StatusCode::OK, &card(&app)))
}
