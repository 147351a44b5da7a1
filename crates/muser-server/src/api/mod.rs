//! Routes, and what stands before every one of them.

pub(crate) mod body;
mod chat;
mod completions;
mod embeddings;
mod extra;
mod params;
mod render;
mod stream;

use crate::error::{ApiError, json_response};
use crate::grammar::Grammars;
use crate::keys::Keys;
use crate::metrics::{Metrics, Route};
use crate::options::Limits;
use crate::prompt::Guard;
use crate::scheduler::Handle;
use axum::Router;
use axum::extract::{MatchedPath, Request, State};
use axum::http::{HeaderValue, Method, StatusCode, header};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use muser_engine::Codec;
use serde_json::{Value, json};
use std::ffi::OsString;
use std::hash::{BuildHasher as _, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Instant, SystemTime, UNIX_EPOCH};
use tokio::sync::Semaphore;

/// What handlers share.
pub(crate) struct App {
    pub(crate) handle: Handle,
    pub(crate) codec: Codec,
    pub(crate) guard: Guard,
    pub(crate) keys: Keys,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) limits: Limits,
    pub(crate) model: String,
    /// What `/props` says of the model.
    pub(crate) facts: Value,
    pub(crate) vocab: usize,
    pub(crate) hidden: usize,
    /// The arithmetic, for `system_fingerprint`.
    pub(crate) fingerprint: String,
    pub(crate) created: u64,
    /// Made when first asked for: a walk over the vocabulary.
    pub(crate) grammars: OnceLock<Result<Arc<Grammars>, ApiError>>,
    /// Command line of what compiles grammars.
    pub(crate) grammar_worker: Option<Vec<OsString>>,
    pub(crate) ids: Ids,
    /// Places for bodies in memory.
    pub(crate) reading: Arc<Semaphore>,
}

impl App {
    pub(crate) fn grammars(&self) -> Result<&Arc<Grammars>, ApiError> {
        let made = self.grammars.get_or_init(|| {
            let (worker, limits) = (self.grammar_worker.as_deref(), &self.limits);
            let (grammar, schema) = (limits.grammar.clone(), limits.schema.clone());
            Grammars::new(&self.codec, worker, grammar, schema).map(Arc::new)
        });
        made.as_ref().map_err(Clone::clone)
    }

    /// Refuses another model's name.
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

/// Names of answers.
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

    /// 16 digits that no other answer of this process has, but by accident.
    pub(crate) fn next(&self) -> String {
        let n = self.next.fetch_add(1, Ordering::Relaxed);
        format!("{:016x}", self.salt.hash_one(n))
    }

    /// A seed for who gives none.
    pub(crate) fn seed(&self) -> u64 {
        let n = self.next.fetch_add(1, Ordering::Relaxed);
        self.salt.hash_one((n, "seed")) >> 32
    }
}

/// Seconds since 1970.
pub(crate) fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |d| d.as_secs())
}

/// All routes.
pub(crate) fn router(app: Arc<App>) -> Router {
    Router::new()
        .route("/", get(extra::page))
        .route("/health", get(extra::health))
        .route("/metrics", get(extra::metrics))
        .route("/openapi.json", get(extra::openapi))
        .route("/props", get(extra::props))
        .route("/slots", get(extra::slots))
        .route("/v1/models", get(models))
        .route("/v1/models/{model}", get(model))
        .route("/v1/chat/completions", post(chat::chat))
        .route("/v1/completions", post(completions::completions))
        .route("/v1/embeddings", post(embeddings::embeddings))
        .route("/tokenize", post(extra::tokenize))
        .route("/detokenize", post(extra::detokenize))
        .route("/apply-template", post(extra::apply_template))
        .fallback(unknown)
        .method_not_allowed_fallback(wrong_method)
        .layer(from_fn_with_state(app.clone(), front))
        .with_state(app)
}

/// Routes that need no key: they say nothing of anybody's requests.
const OPEN: [&str; 3] = ["/", "/health", "/openapi.json"];

/// Key, count, log.
async fn front(State(app): State<Arc<App>>, request: Request, next: Next) -> Response {
    let started = Instant::now();
    let path = request.extensions().get::<MatchedPath>();
    let route = path.map_or("none", |p| known(p.as_str()));
    let open = OPEN.contains(&route) && request.method() == Method::GET;
    let mut response = match open || app.keys.accept(request.headers()) {
        true => next.run(request).await,
        false => ApiError::unauthorized().into_response(),
    };
    let headers = response.headers_mut();
    let nosniff = HeaderValue::from_static("nosniff");
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, nosniff);
    let status = response.status().as_u16();
    app.metrics
        .requests
        .get_or_create(&Route { route, status })
        .inc();
    let ms = started.elapsed().as_secs_f64() * 1e3;
    tracing::info!(route, status, ms, "request");
    response
}

/// The pattern as a name that outlives the request; nothing of the client's.
fn known(pattern: &str) -> &'static str {
    const ROUTES: [&str; 14] = [
        "/",
        "/health",
        "/metrics",
        "/openapi.json",
        "/props",
        "/slots",
        "/v1/models",
        "/v1/models/{model}",
        "/v1/chat/completions",
        "/v1/completions",
        "/v1/embeddings",
        "/tokenize",
        "/detokenize",
        "/apply-template",
    ];
    ROUTES.into_iter().find(|r| *r == pattern).unwrap_or("none")
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
    axum::extract::Path(name): axum::extract::Path<String>,
) -> Result<Response, ApiError> {
    app.check_model(Some(&name))?;
    Ok(json_response(StatusCode::OK, &card(&app)))
}
