//! Refusals in the shape that OpenAI's clients read.

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

/// A refusal: the status, and the body that says what is wrong and where.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct ApiError {
    /// The status.
    pub status: StatusCode,
    /// OpenAI's class: `invalid_request_error`, `server_error`, …
    pub class: &'static str,
    /// The field that is the reason.
    pub param: Option<String>,
    /// A word that programs look at.
    pub code: Option<&'static str>,
    /// For people.
    pub message: String,
    /// Seconds after which it is worth another try.
    pub retry_after: Option<u64>,
}

impl ApiError {
    fn new(status: StatusCode, class: &'static str, message: impl Into<String>) -> Self {
        Self {
            status,
            class,
            param: None,
            code: None,
            message: message.into(),
            retry_after: None,
        }
    }

    /// 400: something about the request as a whole.
    pub(crate) fn invalid(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "invalid_request_error", message)
    }

    /// 400: this field is the reason.
    pub(crate) fn field(param: impl Into<String>, reason: impl std::fmt::Display) -> Self {
        let param = param.into();
        let mut error = Self::invalid(format!("{param}: {reason}"));
        error.param = Some(param);
        error
    }

    /// Another status of the same class.
    pub(crate) fn status(status: StatusCode, message: impl Into<String>) -> Self {
        Self::new(status, "invalid_request_error", message)
    }

    /// 500: our fault.
    pub(crate) fn internal(message: impl Into<String>) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "server_error", message)
    }

    /// 401, telling nothing of the key.
    pub(crate) fn unauthorized() -> Self {
        Self::new(
            StatusCode::UNAUTHORIZED,
            "invalid_request_error",
            "a valid API key is required: Authorization: Bearer KEY",
        )
        .code("invalid_api_key")
    }

    /// 429: the queue is full.
    pub(crate) fn overloaded(waiting: usize, retry_after: u64) -> Self {
        let message = format!("the queue is full: {waiting} answers are waiting or running");
        let mut error = Self::new(StatusCode::TOO_MANY_REQUESTS, "rate_limit_error", message)
            .code("queue_full");
        error.retry_after = Some(retry_after);
        error
    }

    /// 503: the server is going down.
    pub(crate) fn closing() -> Self {
        let message = "the server is shutting down";
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "server_error", message).code("shutting_down")
    }

    /// 504: the request took longer than one may.
    pub(crate) fn deadline() -> Self {
        let message = "the request took longer than this server allows";
        Self::new(StatusCode::GATEWAY_TIMEOUT, "server_error", message).code("deadline_exceeded")
    }

    /// 408: the client does not read its answer.
    pub(crate) fn unread() -> Self {
        let message = "the answer was not read in time";
        Self::status(StatusCode::REQUEST_TIMEOUT, message)
    }

    /// 400: more tokens than the context has positions.
    pub(crate) fn context(param: &str, needed: usize, context: usize) -> Self {
        let reason = format!(
            "expected less than {context} tokens, which is this server's context, found {needed}"
        );
        Self::field(param, reason).code("context_length_exceeded")
    }

    /// With this code.
    pub(crate) fn code(mut self, code: &'static str) -> Self {
        self.code = Some(code);
        self
    }

    /// The body.
    pub(crate) fn body(&self) -> Value {
        json!({"error": {
            "message": self.message,
            "type": self.class,
            "param": self.param,
            "code": self.code,
        }})
    }
}

impl From<muser_engine::Error> for ApiError {
    fn from(error: muser_engine::Error) -> Self {
        use muser_engine::Error as Engine;
        match &error {
            Engine::Parameter { name, .. } => Self {
                param: Some((*name).to_owned()),
                ..Self::invalid(error.to_string())
            },
            Engine::NothingToSample => Self::field("logit_bias", error),
            Engine::Text(_)
            | Engine::NoTokenizer
            | Engine::OtherTokenizer(_)
            | Engine::NoChatTemplate
            | Engine::EmptyPrompt
            | Engine::UnknownToken { .. } => Self::invalid(error.to_string()),
            _ => Self::internal(error.to_string()),
        }
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = json_response(self.status, &self.body());
        let headers = response.headers_mut();
        if let Some(seconds) = self.retry_after {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        if self.status == StatusCode::UNAUTHORIZED {
            let scheme = HeaderValue::from_static("Bearer");
            headers.insert(header::WWW_AUTHENTICATE, scheme);
        }
        response
    }
}

/// A JSON body.
pub(crate) fn json_response(status: StatusCode, body: &Value) -> Response {
    let kind = [(header::CONTENT_TYPE, "application/json")];
    (status, kind, body.to_string()).into_response()
}
