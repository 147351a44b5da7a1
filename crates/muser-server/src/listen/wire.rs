//! The bytes of a connection, cut at its requests before the HTTP library sees
//! them.
//!
//! ```text
//! socket ─► Wire: head by head ─► hyper ─► service
//!             │ 400, 408, 414, 431: a head of our own in place of theirs,
//!             └─ whose request the service answers with the refusal
//! ```
//!
//! The library gets the bytes of one request and no more until its answer is
//! sent. So what is in the way of noticing that a client has left, a byte too
//! many or the next request, is never in the library's hands; each request's
//! clock starts with its first byte; and a head is checked as [`head`] has it.

use super::head::{self, BodyKind, HEAD, Scan};
use super::places::{Doing, Seat};
use crate::error::ApiError;
use axum::http::StatusCode;
use std::collections::VecDeque;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker, ready};
use std::time::{Duration, Instant};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Sleep;

/// Bytes read at once.
const CHUNK: usize = 16 << 10;
/// How long more than a head's worth of further requests may wait for an
/// answer; then they are dropped, so that the client's leaving is noticed.
const PATIENCE: Duration = Duration::from_secs(1);
/// For what a client still sends when its connection is closed: without it the
/// system would cut the connection before the client has read the answer.
const LINGER: Duration = Duration::from_secs(1);
/// Bytes of it.
const LINGER_BYTES: usize = 64 << 20;

/// The head that stands for a refused one.
const REFUSED: &[u8] = b"GET / HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";

/// A request as it came.
#[derive(Clone, Debug)]
pub(crate) struct Arrived {
    /// When its first byte was there.
    pub(crate) started: Instant,
    pub(crate) seat: Arc<Seat>,
    /// What its answer is, where the request is none.
    pub(crate) refusal: Option<ApiError>,
    /// Whether the connection ends with its answer.
    pub(crate) last: bool,
}

/// What [`Wire`] and the service of a connection share.
#[derive(Debug)]
pub(crate) struct Line {
    pub(crate) seat: Arc<Seat>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Requests that the library has and the service has not.
    arrived: VecDeque<Arrived>,
    /// Whether a request is being read or answered.
    busy: bool,
    /// Whether its body has been read to its end.
    body_ended: bool,
    waker: Option<Waker>,
}

impl Line {
    pub(crate) fn new(seat: Seat) -> Arc<Self> {
        Arc::new(Self {
            seat: Arc::new(seat),
            state: Mutex::default(),
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The request that the library hands to the service now.
    pub(crate) fn next(&self) -> Option<Arrived> {
        self.state().arrived.pop_front()
    }

    /// Its body was read to its end.
    pub(crate) fn body_ended(&self) {
        self.state().body_ended = true;
        self.seat.does(Doing::Answer);
    }

    /// Its answer is sent, or nobody waits for it.
    fn done(&self) {
        let mut state = self.state();
        state.busy = false;
        self.seat.does(Doing::Idle);
        if let Some(waker) = state.waker.take() {
            waker.wake();
        }
    }
}

/// Held by an answer's body until its end.
#[derive(Debug)]
pub(crate) struct Answering(pub(crate) Arc<Line>);

impl Drop for Answering {
    fn drop(&mut self) {
        self.0.done();
    }
}

/// Times of a connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Times {
    /// For a head, from its first byte.
    pub(crate) head: Duration,
    /// For the first byte of the next request.
    pub(crate) idle: Duration,
}

/// A connection's stream.
pub(crate) struct Wire<S> {
    stream: S,
    line: Arc<Line>,
    times: Times,
    /// Bytes that came; the library may have the first `free` of them.
    buffer: Vec<u8>,
    free: usize,
    /// Bytes of the head that were looked at.
    seen: usize,
    started: Instant,
    /// Bytes of the body that the library may still have.
    body: BodyKind,
    timer: Pin<Box<Sleep>>,
    /// What the timer is for.
    waiting: Option<Waiting>,
    /// Whether there is no further request.
    closing: bool,
    ended: bool,
    lingered: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Waiting {
    Idle,
    Head,
    Surplus,
    Linger,
}

impl<S: AsyncRead + AsyncWrite + Unpin> Wire<S> {
    pub(crate) fn new(stream: S, line: Arc<Line>, times: Times) -> Self {
        Self {
            stream,
            line,
            times,
            buffer: Vec::new(),
            free: 0,
            seen: 0,
            started: Instant::now(),
            body: BodyKind::Sized(0),
            timer: Box::pin(tokio::time::sleep(Duration::ZERO)),
            waiting: None,
            closing: false,
            ended: false,
            lingered: 0,
        }
    }

    /// Whether the time for this is up; starts it the first time.
    fn is_late(&mut self, what: Waiting, time: Duration, cx: &mut Context<'_>) -> bool {
        if self.waiting != Some(what) {
            self.waiting = Some(what);
            self.timer
                .as_mut()
                .reset(tokio::time::Instant::now() + time);
        }
        self.timer.as_mut().poll(cx).is_ready()
    }

    /// More bytes into the buffer; how many.
    fn fill(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        let mut chunk = [0; CHUNK];
        let mut into = ReadBuf::new(&mut chunk);
        ready!(Pin::new(&mut self.stream).poll_read(cx, &mut into))?;
        let more = into.filled();
        self.buffer.extend_from_slice(more);
        Poll::Ready(Ok(more.len()))
    }

    /// Gives the library what it may have.
    fn hand_out(&mut self, into: &mut ReadBuf<'_>) {
        let n = self.free.min(into.remaining());
        into.put_slice(&self.buffer[..n]);
        self.buffer.drain(..n);
        self.free -= n;
    }

    /// Takes the body's bytes out of what came.
    fn release_body(&mut self) {
        let n = match &mut self.body {
            BodyKind::Sized(left) => {
                let n = usize::try_from(*left).unwrap_or(usize::MAX);
                let n = n.min(self.buffer.len());
                *left -= n as u64;
                n
            }
            BodyKind::Chunked => self.buffer.len(),
        };
        self.free = n;
    }

    fn body_is_open(&mut self) -> bool {
        if self.body == BodyKind::Chunked && self.line.state().body_ended {
            self.body = BodyKind::Sized(0);
        }
        self.body != BodyKind::Sized(0)
    }

    /// A client that reads its answer is not idle.
    fn wrote(&mut self) {
        if self.waiting == Some(Waiting::Idle) {
            self.waiting = None;
        }
    }

    /// Puts our own head in place of theirs; nothing follows it.
    fn refuse(&mut self, error: ApiError) {
        self.buffer.clear();
        self.buffer.extend_from_slice(REFUSED);
        self.closing = true;
        self.begin(REFUSED.len(), BodyKind::Sized(0), Some(error));
    }

    fn begin(&mut self, length: usize, body: BodyKind, refusal: Option<ApiError>) {
        self.free = length;
        self.seen = 0;
        self.waiting = None;
        self.body = body;
        self.closing |= body == BodyKind::Chunked;
        let mut state = self.line.state();
        state.busy = true;
        state.body_ended = false;
        state.arrived.push_back(Arrived {
            started: self.started,
            seat: self.line.seat.clone(),
            refusal,
            last: self.closing,
        });
        drop(state);
        let doing = match body {
            BodyKind::Sized(0) => Doing::Answer,
            BodyKind::Sized(_) | BodyKind::Chunked => Doing::Body,
        };
        self.line.seat.does(doing);
    }

    /// Waits for the next request, or for the client to leave; `false` at the
    /// end of the stream.
    fn poll_head(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<bool>> {
        loop {
            if self.line.seat.poll_evicted(cx).is_ready() {
                return Poll::Ready(Ok(false));
            }
            if !self.buffer.is_empty() {
                if self.seen == 0 && self.waiting != Some(Waiting::Head) {
                    self.started = Instant::now();
                    self.line.seat.does(Doing::Head);
                }
                match head::scan(&self.buffer, self.seen) {
                    Scan::Whole { length, body } => {
                        self.begin(length, body, None);
                        return Poll::Ready(Ok(true));
                    }
                    Scan::Refused(error) => {
                        self.refuse(error);
                        return Poll::Ready(Ok(true));
                    }
                    Scan::Partial => self.seen = self.buffer.len(),
                }
            }
            let (what, time) = match self.buffer.is_empty() {
                true => (Waiting::Idle, self.times.idle),
                false => (Waiting::Head, self.times.head),
            };
            if self.is_late(what, time, cx) {
                if what == Waiting::Idle {
                    return Poll::Ready(Ok(false));
                }
                let message = "the head did not arrive in time";
                self.refuse(ApiError::status(StatusCode::REQUEST_TIMEOUT, message));
                return Poll::Ready(Ok(true));
            }
            if ready!(self.fill(cx))? == 0 {
                return Poll::Ready(Ok(false));
            }
        }
    }

    /// While a request is answered: keeps what comes, and ends when the client
    /// does.
    fn poll_watch(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        loop {
            if self.buffer.len() > HEAD && !self.closing {
                if !self.is_late(Waiting::Surplus, PATIENCE, cx) {
                    return Poll::Pending;
                }
                self.closing = true;
            }
            if self.closing {
                self.buffer.clear();
            }
            if ready!(self.fill(cx))? == 0 {
                return Poll::Ready(Ok(()));
            }
        }
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncRead for Wire<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        loop {
            if this.ended {
                return Poll::Ready(Ok(()));
            }
            if this.free > 0 {
                this.hand_out(into);
                return Poll::Ready(Ok(()));
            }
            if this.body_is_open() {
                if this.line.seat.poll_evicted(cx).is_ready() {
                    this.ended = true;
                    continue;
                }
                if this.buffer.is_empty() && ready!(this.fill(cx))? == 0 {
                    this.ended = true;
                    continue;
                }
                this.release_body();
                continue;
            }
            let busy = {
                let mut state = this.line.state();
                state.waker = Some(cx.waker().clone());
                state.busy
            };
            if busy {
                ready!(this.poll_watch(cx))?;
                this.ended = true;
            } else if this.closing || !ready!(this.poll_head(cx))? {
                this.ended = true;
            }
        }
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Wire<S> {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let done = ready!(Pin::new(&mut this.stream).poll_write(cx, bytes));
        this.wrote();
        Poll::Ready(done)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let done = ready!(Pin::new(&mut this.stream).poll_write_vectored(cx, parts));
        this.wrote();
        Poll::Ready(done)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(cx)
    }

    /// Closes our side, and reads what the client still sends for a moment.
    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.waiting != Some(Waiting::Linger) {
            ready!(Pin::new(&mut this.stream).poll_shutdown(cx))?;
            this.line.seat.does(Doing::Idle);
        }
        loop {
            let evicted = this.line.seat.poll_evicted(cx).is_ready();
            if evicted || this.lingered > LINGER_BYTES || this.is_late(Waiting::Linger, LINGER, cx)
            {
                return Poll::Ready(Ok(()));
            }
            this.buffer.clear();
            // Whatever ends the stream ends this.
            match ready!(this.fill(cx)) {
                Ok(0) | Err(_) => return Poll::Ready(Ok(())),
                Ok(n) => this.lingered += n,
            }
        }
    }
}
