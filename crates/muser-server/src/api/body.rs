//! Receives a request's JSON body within the limits on its size, time and memory.

use super::App;
use crate::error::ApiError;
use crate::fields::Fields;
use crate::limits::json;
use crate::limits::work::Work;
use axum::body::Body as Incoming;
use axum::extract::Request;
use axum::http::{HeaderMap, StatusCode, header};
use hyper::body::Body as _;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How many copies of a request's texts exist at once on the way to its tokens: in the
/// JSON values, in the pieces that the guard cuts (against control tokens in users'
/// text), in the variables of the chat template, and in its output.
const COPIES: u64 = 4;

/// The received body of an HTTP request, with its claim on the memory for requests.
pub(super) struct Body {
    app: Arc<App>,
    pub(super) work: Arc<Work>,
    bytes: Vec<u8>,
}

impl Body {
    /// Parses the request's JSON body and hands its fields to `read`: once it is the
    /// client's turn, and on a blocking thread, not on those that serve connections.
    pub(super) async fn read<T: Send + 'static>(
        self,
        read: impl FnOnce(&Work, Fields) -> Result<T, ApiError> + Send + 'static,
    ) -> Result<T, ApiError> {
        let Self { app, work, bytes } = self;
        let pass = app.gate.enter(work.client).await?;
        let done = tokio::task::spawn_blocking(move || {
            let _pass = pass;
            work.check()?;
            let cost = json::check(&bytes, &app.limits.json, &work)?;
            let copies = COPIES * bytes.len() as u64;
            work.hold(cost.saturating_add(copies), "the request")?;
            let fields = Fields::body(&bytes, app.unknown_fields)?;
            drop(bytes);
            work.check()?;
            let done = read(&work, fields);
            work.keep(0);
            done
        })
        .await;
        done.unwrap_or_else(|_| Err(ApiError::internal("the request could not be read")))
    }
}

/// Receives the JSON body of an HTTP request.
///
/// The content type is required because browsers let any page send a body without
/// one to a server on this machine.
pub(super) async fn fields(app: &Arc<App>, request: Request) -> Result<Body, ApiError> {
    check_kind(request.headers())?;
    let work = request.extensions().get::<Arc<Work>>().cloned();
    let work = work.ok_or_else(|| ApiError::internal("the request came by no connection"))?;
    let declared = request.headers().get(header::CONTENT_LENGTH);
    let declared = declared.and_then(|v| v.to_str().ok()?.parse::<u64>().ok());
    let most = app.limits.body_bytes;
    if let Some(found) = declared.filter(|&n| n > most as u64) {
        return Err(too_long(most, &found.to_string()));
    }
    let room = declared.map_or(0, |n| usize::try_from(n).unwrap_or(most));
    let bytes = receive(app, request.into_body(), room, &work).await?;
    let app = app.clone();
    Ok(Body { app, work, bytes })
}

fn check_kind(headers: &HeaderMap) -> Result<(), ApiError> {
    let kind = headers.get(header::CONTENT_TYPE);
    let kind = kind.and_then(|v| v.to_str().ok()).unwrap_or_default();
    let kind = kind.split(';').next().unwrap_or_default().trim();
    let refused = |message: &str| {
        Err(ApiError::status(
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            message,
        ))
    };
    if !kind.eq_ignore_ascii_case("application/json") {
        return refused("expected the header Content-Type: application/json");
    }
    let mut codings = headers.get_all(header::CONTENT_ENCODING).iter();
    if codings.any(|c| !c.as_bytes().eq_ignore_ascii_case(b"identity")) {
        return refused("Content-Encoding: expected none, for bodies are read as they are");
    }
    Ok(())
}

fn too_long(most: usize, found: &str) -> ApiError {
    let message = format!("the body: expected at most {most} bytes, found {found}");
    ApiError::status(StatusCode::PAYLOAD_TOO_LARGE, message)
}

/// Receives the bytes of a request's body, and refuses one that comes too slowly. Memory
/// is claimed as bytes come; a declared length claims nothing.
async fn receive(
    app: &App,
    mut body: Incoming,
    room: usize,
    work: &Work,
) -> Result<Vec<u8>, ApiError> {
    let (most, began) = (app.limits.body_bytes, Instant::now());
    // Reserved pages take no memory until they are written.
    let mut bytes = Vec::with_capacity(room);
    let mut claimed = 0;
    loop {
        let until = began + allowed(app, bytes.len());
        let frame = std::future::poll_fn(|cx| Pin::new(&mut body).poll_frame(cx));
        let frame = tokio::time::timeout_at(until.into(), frame).await;
        let frame = match frame {
            Ok(None) => return Ok(bytes),
            Ok(Some(Ok(frame))) => frame,
            Ok(Some(Err(_))) => {
                return Err(ApiError::invalid(
                    "the body is cut off, or its chunks are wrong",
                ));
            }
            Err(_) => return Err(late(app, bytes.len())),
        };
        let Ok(data) = frame.into_data() else {
            continue;
        };
        if data.len() > most - bytes.len() {
            return Err(too_long(most, "more"));
        }
        bytes.extend_from_slice(&data);
        let held = match room {
            0 => bytes.capacity(),
            _ => bytes.len(),
        };
        work.hold((held - claimed) as u64, "the body")?;
        claimed = held;
    }
}

/// Returns the longest time that a request's body may have taken to arrive, given how
/// many bytes have come.
fn allowed(app: &App, bytes: usize) -> Duration {
    let earned = match app.limits.body_rate {
        0 => Duration::ZERO,
        rate => Duration::from_secs_f64(bytes as f64 / rate as f64),
    };
    app.limits.read_time.saturating_add(earned)
}

fn late(app: &App, found: usize) -> ApiError {
    let (time, rate) = (app.limits.read_time.as_secs_f64(), app.limits.body_rate);
    let message = format!(
        "the body did not arrive in time: expected {rate} bytes a second after {time} seconds, \
         found {found} bytes in all"
    );
    ApiError::status(StatusCode::REQUEST_TIMEOUT, message)
}
