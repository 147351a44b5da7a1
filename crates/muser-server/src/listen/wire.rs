//! Cuts the bytes of a connection at its requests, before the HTTP library sees them.
//!
//! ```text
//! socket ─► Wire: head by head ─► hyper ─► service
//!             │ 400, 408, 414, 431: a head of our own in place of theirs,
//!             └─ whose request the service answers with the refusal
//! ```
//!
//! The library gets the bytes of one request and no more until its answer is sent. So
//! nothing in its hands (a byte too many, or the next request) can keep it from noticing
//! that a client has left; each request's clock starts with its first byte; and a head is
//! checked as [`head`] has it.

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

/// The most bytes that are read from a connection at once.
const CHUNK: usize = 16 << 10;
/// How long a client may have sent more than a head's worth of further requests while one
/// is answered; then those bytes are dropped, so that the client's leaving is noticed.
const PATIENCE: Duration = Duration::from_secs(1);
/// How long a closing connection reads what the client still sends: otherwise the system
/// would cut the connection before the client has read its answer.
const LINGER: Duration = Duration::from_secs(1);
/// The most bytes that a closing connection reads of what the client still sends.
const LINGER_BYTES: usize = 64 << 20;

/// The head that the HTTP library gets in place of one that is refused.
const REFUSED: &[u8] = b"GET / HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";

/// A request whose head has come on a connection: when it began, and whether it is
/// refused.
#[derive(Clone, Debug)]
pub(crate) struct Arrived {
    /// When the first byte of the request came.
    pub(crate) started: Instant,
    pub(crate) seat: Arc<Seat>,
    /// The error that answers the request, if its head is refused.
    pub(crate) refusal: Option<ApiError>,
    /// Whether the connection ends with the answer to this request.
    pub(crate) last: bool,
}

/// The state that a connection's byte stream ([`Wire`]) and its HTTP service share.
#[derive(Debug)]
pub(crate) struct Line {
    pub(crate) seat: Arc<Seat>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// The requests that were given to the HTTP library but have not reached the service
    /// yet.
    arrived: VecDeque<Arrived>,
    /// Whether the connection's current request is still being read or answered.
    busy: bool,
    /// Whether the current request's body has been read to its end.
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

    /// Returns the request that the HTTP library hands to the service now.
    pub(crate) fn next(&self) -> Option<Arrived> {
        self.state().arrived.pop_front()
    }

    /// Records that the current request's body was read to its end.
    pub(crate) fn body_ended(&self) {
        self.state().body_ended = true;
        self.seat.does(Doing::Answer);
    }

    /// Records that the current request's answer is sent or was dropped, and lets the
    /// connection read the next request.
    fn done(&self) {
        let mut state = self.state();
        state.busy = false;
        self.seat.does(Doing::Idle);
        if let Some(waker) = state.waker.take() {
            waker.wake();
        }
    }
}

/// A guard that an answer's body holds until it is sent or dropped; then the connection
/// may read its next request.
#[derive(Debug)]
pub(crate) struct Answering(pub(crate) Arc<Line>);

impl Drop for Answering {
    fn drop(&mut self) {
        self.0.done();
    }
}

/// The time limits of a connection: for a request's head, and for waiting without a
/// request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Times {
    /// The longest time for receiving a request's head, from its first byte.
    pub(crate) head: Duration,
    /// The longest time until the first byte of the connection's next request.
    pub(crate) idle: Duration,
}

/// A connection's byte stream, which gives the HTTP library one request at a time.
pub(crate) struct Wire<S> {
    stream: S,
    line: Arc<Line>,
    times: Times,
    /// The bytes received from the client; the first `free` of them may be given to the
    /// HTTP library.
    buffer: Vec<u8>,
    free: usize,
    /// How many of the received bytes were scanned for the end of a request's head
    /// already.
    seen: usize,
    started: Instant,
    /// The part of the current request's body that has not been given to the HTTP library
    /// yet.
    body: BodyKind,
    timer: Pin<Box<Sleep>>,
    /// What the connection's timer is running for (the next request, say); `None` if it
    /// does not run.
    waiting: Option<Waiting>,
    /// Whether the connection closes after the current answer and takes no further
    /// request.
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

    /// Whether the connection has waited for `what` (the next request, or the rest of a
    /// head, say) for as long as `time`; starts the timer when that wait begins.
    fn is_late(&mut self, what: Waiting, time: Duration, cx: &mut Context<'_>) -> bool {
        if self.waiting != Some(what) {
            self.waiting = Some(what);
            self.timer
                .as_mut()
                .reset(tokio::time::Instant::now() + time);
        }
        self.timer.as_mut().poll(cx).is_ready()
    }

    /// Reads more bytes from the client into the buffer; returns how many, 0 at the end.
    fn fill(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        let mut chunk = [0; CHUNK];
        let mut into = ReadBuf::new(&mut chunk);
        ready!(Pin::new(&mut self.stream).poll_read(cx, &mut into))?;
        let more = into.filled();
        self.buffer.extend_from_slice(more);
        Poll::Ready(Ok(more.len()))
    }

    /// Copies received bytes to the HTTP library: as many as are released to it and as it
    /// has room for.
    fn hand_out(&mut self, into: &mut ReadBuf<'_>) {
        let n = self.free.min(into.remaining());
        into.put_slice(&self.buffer[..n]);
        self.buffer.drain(..n);
        self.free -= n;
    }

    /// Releases to the HTTP library those received bytes that belong to the request's
    /// body.
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

    /// Records that the client reads its answer (something was written), so that its
    /// connection does not count as idle.
    fn wrote(&mut self) {
        if self.waiting == Some(Waiting::Idle) {
            self.waiting = None;
        }
    }

    /// Refuses a request by its head: gives the HTTP library a head of our own instead,
    /// whose request the service answers with the error. No further request follows.
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

    /// Waits for the head of the connection's next request; `false` if the connection
    /// ends: the client has left, sends nothing in time, or has to make room.
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

    /// Watches the connection while a request is answered: keeps what the client sends,
    /// and returns when the client has left.
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

    /// Closes our side of the connection, and reads what the client still sends for a
    /// moment.
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
            // The end of the stream, or any failure, ends this too.
            match ready!(this.fill(cx)) {
                Ok(0) | Err(_) => return Poll::Ready(Ok(())),
                Ok(n) => this.lingered += n,
            }
        }
    }
}
