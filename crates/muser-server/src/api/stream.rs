//! Streams an answer to the client as server-sent events.

use super::render::{self, Render};
use super::text::Offsets;
use crate::error::ApiError;
use crate::scheduler::{Counts, Event, Events};
use axum::body::Body;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use hyper::body::{Body as HttpBody, Bytes, Frame};
use serde_json::{Map, Value};
use std::collections::VecDeque;
use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::time::{Interval, interval};

/// The longest time for which a stream sends nothing: a proxy may otherwise close the
/// connection while a long prompt is evaluated.
const ALIVE: Duration = Duration::from_secs(15);

/// Which of a stream's chunks report token counts in a `usage` field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Usage {
    Never,
    /// An extra last chunk of the stream has the token counts (`usage`); in the others
    /// `usage` is null.
    Last,
    /// All chunks of the stream have the token counts up to then (`usage`), and so has an
    /// extra last one.
    Each,
}

/// Creates the HTTP response that streams an answer from its events.
pub(super) fn response(render: Render, events: Events, usage: Usage) -> Response {
    let stream = Stream {
        opened: vec![None; render.choices],
        open: render.choices,
        counts: vec![Counts::default(); render.choices],
        ready: VecDeque::new(),
        over: false,
        alive: interval(ALIVE),
        render,
        events,
        usage,
    };
    let headers = [
        (header::CONTENT_TYPE, "text/event-stream"),
        (header::CACHE_CONTROL, "no-cache"),
        // Tells proxies not to collect the stream before they pass it on.
        (header::HeaderName::from_static("x-accel-buffering"), "no"),
    ];
    (headers, Body::new(stream)).into_response()
}

/// Turns the scheduler's events about a request into frames of the response's body. It
/// reads no event ahead: the events of a client that does not read stay in their channel,
/// where the scheduler sees them.
struct Stream {
    render: Render,
    events: Events,
    /// One value for each of the request's completions (choices): the offset, in
    /// characters, that its text has reached; `None` if it has not begun.
    opened: Vec<Option<Offsets>>,
    open: usize,
    /// One value for each of the request's completions (choices): its token counts so
    /// far.
    counts: Vec<Counts>,
    ready: VecDeque<Bytes>,
    over: bool,
    alive: Interval,
    usage: Usage,
}

impl Stream {
    fn push(&mut self, mut chunk: Map<String, Value>) {
        let usage = match self.usage {
            Usage::Never => None,
            Usage::Last => Some(Value::Null),
            Usage::Each => Some(render::usage(self.total())),
        };
        if let Some(usage) = usage.filter(|_| !chunk.contains_key("usage")) {
            chunk.insert("usage".into(), usage);
        }
        self.line(&Value::from(chunk));
    }

    fn total(&self) -> Counts {
        let mut total = Counts::default();
        for &counts in &self.counts {
            total += counts;
        }
        total
    }

    fn count(&mut self, choice: usize, counts: Counts) {
        if let Some(place) = self.counts.get_mut(choice) {
            *place = counts;
        }
    }

    fn line(&mut self, value: &Value) {
        self.ready.push_back(format!("data: {value}\n\n").into());
    }

    fn begin(&mut self, choice: usize) {
        if self.opened.get(choice).is_some_and(Option::is_none) {
            self.opened[choice] = Some(Offsets::default());
            if let Some(chunk) = self.render.opening(choice) {
                self.push(chunk);
            }
        }
    }

    fn take(&mut self, event: Result<Event, ApiError>) {
        match event {
            Ok(Event::Delta {
                choice,
                delta,
                counts,
            }) => {
                self.count(choice, counts);
                self.begin(choice);
                let opened = self.opened.get_mut(choice);
                let mut offsets = opened.and_then(Option::take).unwrap_or_default();
                let chunk = self.render.delta(choice, &delta, &mut offsets);
                if let Some(opened) = self.opened.get_mut(choice) {
                    *opened = Some(offsets);
                }
                self.push(chunk);
            }
            Ok(Event::Done {
                choice,
                finish,
                counts,
            }) => {
                self.count(choice, counts);
                self.begin(choice);
                let chunk = self.render.closing(choice, finish);
                self.push(chunk);
                self.open = self.open.saturating_sub(1);
                if self.open == 0 {
                    if self.usage != Usage::Never {
                        let chunk = self.render.usage(self.total());
                        self.push(chunk);
                    }
                    self.ready
                        .push_back(Bytes::from_static(b"data: [DONE]\n\n"));
                    self.over = true;
                }
            }
            Ok(Event::State { .. }) => {}
            // The HTTP status has been sent, so the error is an event in the stream.
            Err(e) => self.fail(&e),
        }
    }

    fn fail(&mut self, error: &ApiError) {
        self.line(&error.body());
        self.over = true;
    }
}

impl HttpBody for Stream {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let this = self.get_mut();
        loop {
            if let Some(bytes) = this.ready.pop_front() {
                this.alive.reset();
                return Poll::Ready(Some(Ok(Frame::data(bytes))));
            }
            if this.over {
                return Poll::Ready(None);
            }
            if let Poll::Ready(event) = this.events.poll(cx) {
                this.take(event);
                continue;
            }
            if this.alive.poll_tick(cx).is_ready() {
                // The first tick is immediate and opens the stream.
                this.ready.push_back(Bytes::from_static(b": working\n\n"));
                continue;
            }
            return Poll::Pending;
        }
    }
}
