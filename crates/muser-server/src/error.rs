//! Errors of the HTTP API, in the shape that OpenAI's clients read.

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

/// The most bytes of the message of an API error, and so of what it quotes from a
/// request.
const MOST_MESSAGE: usize = 1000;
/// The most bytes of a field's full name in an error.
const MOST_PARAM: usize = 200;
/// The most characters that an error's message repeats of a word from a request.
const MOST_SHOWN: usize = 64;

/// Makes a word from a request fit for an error's message: cuts it, and escapes
/// characters that would control a terminal.
pub(crate) fn shown(text: &str) -> String {
    let mut out = String::new();
    for c in text.chars().take(MOST_SHOWN) {
        match c.is_control() || is_reordering(c) {
            true => out.extend(c.escape_unicode()),
            false => out.push(c),
        }
    }
    if text.chars().nth(MOST_SHOWN).is_some() {
        out.push('…');
    }
    out
}

/// Whether a character changes the writing direction of the text that follows it.
fn is_reordering(c: char) -> bool {
    matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// Cuts a text to at most `most` bytes, in whole characters, and marks the cut by `…`.
fn cut(mut text: String, most: usize) -> String {
    if text.len() > most {
        text.truncate(text.floor_char_boundary(most));
        text.push('…');
    }
    text
}

/// An error of the HTTP API: a status, and a JSON body that says what is wrong and where.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct ApiError {
    /// The HTTP status of the error's response.
    pub status: StatusCode,
    /// OpenAI's class of the error: `invalid_request_error`, `server_error`, …
    pub class: &'static str,
    /// The full name of the request's field that is wrong, if it is one field's fault.
    pub param: Option<String>,
    /// The error's kind as a word for programs, such as `queue_full`.
    pub code: Option<&'static str>,
    /// The error's message for people.
    pub message: String,
    /// The number of seconds after which the client should try again (`Retry-After`).
    pub retry_after: Option<u64>,
}

impl ApiError {
    fn new(status: StatusCode, class: &'static str, message: impl Into<String>) -> Self {
        Self {
            status,
            class,
            param: None,
            code: None,
            message: cut(message.into(), MOST_MESSAGE),
            retry_after: None,
        }
    }

    /// Makes an error of status 400: the request as a whole is wrong.
    pub(crate) fn invalid(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "invalid_request_error", message)
    }

    /// Makes an error of status 400: this field of the request is wrong.
    pub(crate) fn field(param: impl Into<String>, reason: impl std::fmt::Display) -> Self {
        let param = cut(param.into(), MOST_PARAM);
        let mut error = Self::invalid(format!("{param}: {reason}"));
        error.param = Some(param);
        error
    }

    /// Makes an API error of class `invalid_request_error` with this HTTP status, where
    /// 400 does not fit.
    pub(crate) fn status(status: StatusCode, message: impl Into<String>) -> Self {
        Self::new(status, "invalid_request_error", message)
    }

    /// Makes an error of status 500: a fault of the server.
    pub(crate) fn internal(message: impl Into<String>) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "server_error", message)
    }

    /// Makes an error of status 401: no valid API key. It says nothing about the key that
    /// was sent.
    pub(crate) fn unauthorized() -> Self {
        Self::new(
            StatusCode::UNAUTHORIZED,
            "invalid_request_error",
            "a valid API key is required: Authorization: Bearer KEY",
        )
        .code("invalid_api_key")
    }

    /// Makes an error of status 429: the server is busy, try again after so many seconds.
    pub(crate) fn busy(message: impl Into<String>, code: &'static str, retry_after: u64) -> Self {
        let status = StatusCode::TOO_MANY_REQUESTS;
        let mut error = Self::new(status, "rate_limit_error", message).code(code);
        error.retry_after = Some(retry_after);
        error
    }

    /// Makes an error of status 429: the client's queue of requests is full.
    pub(crate) fn overloaded(waiting: usize, most: usize, retry_after: u64) -> Self {
        let message = format!(
            "the queue is full: expected at most {most} requests of a client waiting or running, \
             found {waiting}"
        );
        Self::busy(message, "queue_full", retry_after)
    }

    /// Makes an error of status 403: a host name or a web page that this server does not
    /// answer.
    pub(crate) fn forbidden(message: impl Into<String>, code: &'static str) -> Self {
        Self::status(StatusCode::FORBIDDEN, message).code(code)
    }

    /// Makes an error of status 503: the server is going down.
    pub(crate) fn closing() -> Self {
        let message = "the server is shutting down";
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "server_error", message).code("shutting_down")
    }

    /// Makes an error of status 504: the request took longer than allowed.
    pub(crate) fn deadline() -> Self {
        let message = "the request took longer than this server allows";
        Self::new(StatusCode::GATEWAY_TIMEOUT, "server_error", message).code("deadline_exceeded")
    }

    /// Makes an error of status 408: the client does not read its answer.
    pub(crate) fn unread() -> Self {
        let message = "the answer was not read in time";
        Self::status(StatusCode::REQUEST_TIMEOUT, message)
    }

    /// Makes an error of status 400: the field `param` has more tokens than the server's
    /// context holds.
    pub(crate) fn context(
        param: &str,
        found: impl std::fmt::Display,
        most: usize,
        context: usize,
    ) -> Self {
        let reason = format!(
            "expected at most {most} tokens in this server's context of {context}, found {found}"
        );
        Self::field(param, reason).code("context_length_exceeded")
    }

    /// If the error is about the request's field `from`, makes it one about the field
    /// `to` instead, in its message too.
    pub(crate) fn renamed(mut self, from: &str, to: &str) -> Self {
        if from != to && self.param.as_deref() == Some(from) {
            if let Some(rest) = self.message.strip_prefix(from) {
                self.message = format!("{to}{rest}");
            }
            self.param = Some(to.to_owned());
        }
        self
    }

    /// Sets the error's `code`: its kind as a word for programs, such as `queue_full`.
    pub(crate) fn code(mut self, code: &'static str) -> Self {
        self.code = Some(code);
        self
    }

    /// Returns the error's JSON body, in OpenAI's shape.
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
            Engine::Text(muser_text::Error::NoThread { .. }) => {
                let message = "this machine gives no further thread";
                Self::new(StatusCode::SERVICE_UNAVAILABLE, "server_error", message)
                    .code("no_thread")
            }
            Engine::Model(_) if error.is_memory() => {
                let message = format!("no memory for this request's K and V: {error}");
                Self::new(StatusCode::SERVICE_UNAVAILABLE, "server_error", message)
                    .code("kv_memory")
            }
            Engine::NothingToSample => Self::field("logit_bias", error),
            Engine::Text(_)
            | Engine::NoTokenizer
            | Engine::OtherTokenizer(_)
            | Engine::NoChatTemplate
            | Engine::EmptyPrompt
            | Engine::UnknownToken { .. } => Self::invalid(error.to_string()),
            Engine::Model(_)
            | Engine::BadChatTemplate { .. }
            | Engine::Part { .. }
            | Engine::ContextFull { .. }
            | Engine::NoLogits
            | Engine::Cancelled
            | Engine::NonFiniteLogit { .. } => Self::internal(error.to_string()),
        }
    }
}

impl From<muser_engine::ChoiceError> for ApiError {
    fn from(error: muser_engine::ChoiceError) -> Self {
        muser_engine::Error::from(error).into()
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

/// Makes an HTTP response from a status and a JSON value as its body.
pub(crate) fn json_response(status: StatusCode, body: &Value) -> Response {
    json_text(status, body.to_string())
}

/// Makes an HTTP response from a status and a body that is JSON text already.
pub(crate) fn json_text(status: StatusCode, text: String) -> Response {
    let kind = [(header::CONTENT_TYPE, "application/json")];
    (status, kind, text).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_cut_at_characters() {
        let error = ApiError::field("é".repeat(400), "x".repeat(5000));
        let param = error.param.unwrap();
        assert_eq!(param, format!("{}…", "é".repeat(100)));
        assert!(error.message.starts_with(&param) && error.message.len() < 1010);
        assert_eq!(shown("a\u{1b}b\u{202e}c"), "a\\u{1b}b\\u{202e}c");
        assert_eq!(shown(&"x".repeat(65)), format!("{}…", "x".repeat(64)));
    }

    #[test]
    fn a_field_is_renamed_where_it_is_the_reason() {
        let error = || ApiError::field("a", "expected b");
        assert_eq!(error().renamed("a", "c").message, "c: expected b");
        assert_eq!(error().renamed("x", "c"), error());
    }
}
