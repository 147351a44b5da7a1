//! A request's body, within its limits.

use super::App;
use crate::error::ApiError;
use crate::fields::Fields;
use axum::body::to_bytes;
use axum::extract::Request;
use axum::http::{StatusCode, header};
use std::time::Duration;
use tokio::sync::OwnedSemaphorePermit;

/// Bodies in memory at once, being received or read; more wait. What connections
/// could send together would be gigabytes.
pub(crate) const READING: usize = 64;

/// A body, which counts as one in memory until it is dropped.
pub(super) struct Body {
    pub(super) fields: Fields,
    place: OwnedSemaphorePermit,
}

impl Body {
    /// Reads the request out of it, off the threads that serve.
    pub(super) async fn read<T: Send + 'static>(
        self,
        read: impl FnOnce(Fields) -> Result<T, ApiError> + Send + 'static,
    ) -> Result<T, ApiError> {
        off_thread(move || {
            let done = read(self.fields);
            drop(self.place);
            done
        })
        .await
    }
}

/// Reads a JSON object.
///
/// The content type is asked for because browsers let any page send a body
/// without one to a server on this machine.
pub(super) async fn fields(app: &App, request: Request) -> Result<Body, ApiError> {
    let kind = request.headers().get(header::CONTENT_TYPE);
    let kind = kind.and_then(|v| v.to_str().ok()).unwrap_or_default();
    let kind = kind.split(';').next().unwrap_or_default().trim();
    if !kind.eq_ignore_ascii_case("application/json") {
        let message = "expected the header Content-Type: application/json";
        return Err(ApiError::status(
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            message,
        ));
    }
    let place = app.reading.clone().acquire_owned().await;
    let place = place.map_err(|_| ApiError::closing())?;
    let most = app.limits.body_bytes;
    let read = to_bytes(request.into_body(), most);
    let bytes = match within(app.limits.read_time, read).await {
        None => {
            let message = "the body did not arrive in time";
            return Err(ApiError::status(StatusCode::REQUEST_TIMEOUT, message));
        }
        Some(Err(_)) => {
            let message = format!("the body is cut off, or longer than {most} bytes");
            return Err(ApiError::status(StatusCode::PAYLOAD_TOO_LARGE, message));
        }
        Some(Ok(bytes)) => bytes,
    };
    let fields = Fields::body(&bytes, app.unknown_fields)?;
    Ok(Body { fields, place })
}

async fn within<F: Future>(time: Duration, work: F) -> Option<F::Output> {
    tokio::time::timeout(time, work).await.ok()
}

/// Work that takes a processor for a while, off the threads that serve.
async fn off_thread<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, ApiError> + Send + 'static,
) -> Result<T, ApiError> {
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or_else(|_| Err(ApiError::internal("the request could not be read")))
}
