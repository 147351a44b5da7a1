//! The checks before every route: host names, API keys, time limits; also counts and logs
//! requests.

use super::App;
use crate::error::ApiError;
use crate::keys::Entry;
use crate::limits::work::{Client, Work};
use crate::listen::wire::Arrived;
use crate::metrics::Route;
use axum::body::Body;
use axum::extract::{MatchedPath, Request, State};
use axum::http::{HeaderValue, Method, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use hyper::body::{Body as HttpBody, Bytes, Frame, SizeHint};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;

/// Routes that need no API key, since they tell nothing about anybody's requests.
const OPEN: [&str; 3] = ["/", "/health", "/openapi.json"];
/// Routes that are answered even when all ordinary connections are in use.
const OPERATORS: [&str; 2] = ["/health", "/metrics"];

/// A guard of a waiting request: if dropped before the answer is made, it tells the
/// request's work that the client has left.
struct Waits(Option<Arc<Work>>);

impl Drop for Waits {
    fn drop(&mut self) {
        if let Some(work) = &self.0 {
            work.leave();
        }
    }
}

/// Answers an HTTP request by its route, or refuses it; counts and logs it.
pub(super) async fn front(State(app): State<Arc<App>>, request: Request, next: Next) -> Response {
    let arrived = request.extensions().get::<Arrived>().cloned();
    let started = arrived.as_ref().map_or_else(Instant::now, |a| a.started);
    let path = request.extensions().get::<MatchedPath>();
    let mut route = path.map_or("none", |p| known(p.as_str()));
    if arrived.as_ref().is_some_and(|a| a.refusal.is_some()) {
        route = "none";
    }
    let origin = request.headers().get(header::ORIGIN).cloned();
    let mut response = match arrived {
        Some(arrived) => match answer(&app, route, arrived, request, next).await {
            Ok(response) => response,
            Err(error) => error.into_response(),
        },
        None => ApiError::internal("the request came by no connection").into_response(),
    };
    let headers = response.headers_mut();
    let nosniff = HeaderValue::from_static("nosniff");
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, nosniff);
    app.sites.share(origin.as_ref(), headers);
    let status = response.status().as_u16();
    app.metrics
        .requests
        .get_or_create(&Route { route, status })
        .inc();
    let ms = started.elapsed().as_secs_f64() * 1e3;
    tracing::info!(route, status, ms, "request");
    response
}

async fn answer(
    app: &Arc<App>,
    route: &'static str,
    arrived: Arrived,
    mut request: Request,
    next: Next,
) -> Result<Response, ApiError> {
    if let Some(refusal) = arrived.refusal {
        return Err(refusal);
    }
    app.sites.check(request.uri(), request.headers())?;
    if let Some(response) = app
        .sites
        .preflight::<Body>(request.method(), request.headers())
    {
        return Ok(response);
    }
    let reads = [Method::GET, Method::HEAD].contains(request.method());
    let open = OPEN.contains(&route) && reads;
    let client = match app.keys().enter(request.headers()) {
        Entry::Key(number) => Client::Key(number),
        Entry::Free => Client::at(arrived.seat.address),
        Entry::Refused if open => Client::at(arrived.seat.address),
        Entry::Refused => return Err(ApiError::unauthorized()),
    };
    if !OPERATORS.contains(&route) && !arrived.seat.is_ordinary() {
        let most = app.limits.connections;
        let message = format!("all {most} connections of this server are in use");
        return Err(ApiError::busy(message, "connections_full", 1));
    }
    let time = app.limits.request_time;
    let work = Arc::new(Work::new(client, arrived.started, time, &app.budget));
    request.extensions_mut().insert(work.clone());
    let mut waits = Waits(Some(work.clone()));
    let mut cut = app.cut.clone();
    let response = tokio::select! {
        // An answer that is ready goes before a deadline that has passed.
        biased;
        response = next.run(request) => response,
        () = work.expired() => return Err(ApiError::deadline()),
        _ = cut.wait_for(|cut| *cut) => return Err(ApiError::closing()),
    };
    waits.0 = None;
    // The memory that the request holds is freed when the answer is sent.
    Ok(response.map(|body| Body::new(Holding { body, _work: work })))
}

/// A response's body that keeps its request's claim on memory until it is sent or
/// dropped.
struct Holding {
    body: Body,
    _work: Arc<Work>,
}

impl HttpBody for Holding {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.get_mut().body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// Returns a route's pattern as a static name for metrics, or `none`; never text from the
/// client.
fn known(pattern: &str) -> &'static str {
    const ROUTES: [&str; 14] = [
        "/",
        "/health",
        "/metrics",
        "/openapi.json",
        "/props",
        "/slots",
        "/v1/models",
        "/v1/models/{*model}",
        "/v1/chat/completions",
        "/v1/completions",
        "/v1/embeddings",
        "/tokenize",
        "/detokenize",
        "/apply-template",
    ];
    ROUTES.into_iter().find(|r| *r == pattern).unwrap_or("none")
}
