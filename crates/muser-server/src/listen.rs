//! Accepts TCP connections, up to a number, and serves HTTP on each within time limits
//! until the server is shut down.

pub(crate) mod head;
pub(crate) mod places;
pub(crate) mod wire;

use crate::options::Limits;
use crate::tls::Acceptor;
use axum::Router;
use axum::body::Body;
use axum::http::{HeaderValue, header};
use head::{HEAD, HEADERS};
use hyper::body::{Body as HttpBody, Bytes, Frame, Incoming, SizeHint};
use hyper::server::conn::http1;
use hyper::service::{Service as _, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use places::{Doing, Places, Seat};
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::watch;
use wire::{Answering, Line, Times, Wire};

/// The pause after a failure to accept a TCP connection (for want of file descriptors,
/// say), before the next attempt.
const PAUSE: Duration = Duration::from_millis(50);

/// How many bytes of an answer the system buffers for a client that does not read.
const UNSENT: u32 = 256 << 10;
/// How many connections may wait in the system's queue to be accepted.
const BACKLOG: u32 = 1024;

/// Binds a socket that listens at an address. Its send buffers are bounded: else the
/// system would keep megabytes of unread answers for each connection.
pub(crate) fn bind(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = match address {
        SocketAddr::V4(_) => TcpSocket::new_v4()?,
        SocketAddr::V6(_) => TcpSocket::new_v6()?,
    };
    // A server that starts anew takes its port again at once.
    socket.set_reuseaddr(true)?;
    socket.set_send_buffer_size(UNSENT)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// What the server needs to serve connections: routes, TLS, limits and the signal to end.
pub(crate) struct Listening {
    pub(crate) router: Router,
    /// The acceptor of TLS connections, with the certificate in use; replaced when the
    /// certificate's files are read anew.
    pub(crate) acceptor: Option<watch::Receiver<Acceptor>>,
    pub(crate) limits: Limits,
    /// The time at which the server ends at the latest; `None` until it is told to end.
    pub(crate) stop: watch::Receiver<Option<Instant>>,
}

/// Accepts and serves HTTP connections until told to stop; then goes on until the last
/// answer is sent or the grace period is over.
pub(crate) async fn serve(listener: TcpListener, with: Listening) {
    let Listening {
        router,
        acceptor,
        limits,
        mut stop,
    } = with;
    let graceful = GracefulShutdown::new();
    let places = Places::new(limits.connections);
    loop {
        let accepted = async {
            // Nothing is accepted without a free place: further connections wait in the
            // system's queue.
            places.room().await;
            listener.accept().await
        };
        let accepted = tokio::select! {
            accepted = accepted => accepted,
            _ = stop.changed() => break,
        };
        let (stream, peer) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::warn!(%error, "a connection was not accepted");
                tokio::time::sleep(PAUSE).await;
                continue;
            }
        };
        let connection = Connection {
            router: router.clone(),
            times: Times {
                head: limits.read_time,
                idle: limits.idle_time,
            },
            watcher: graceful.watcher(),
            seat: places.take(peer.ip()),
        };
        let acceptor = acceptor.as_ref().map(|a| a.borrow().clone());
        tokio::spawn(connection.open(stream, acceptor));
    }
    drop(listener);
    let end = (*stop.borrow()).unwrap_or_else(Instant::now);
    tokio::select! {
        () = graceful.shutdown() => {}
        () = tokio::time::sleep_until(end.into()) => {
            tracing::warn!("connections were cut off at the end of the grace period");
        }
    }
}

struct Connection {
    router: Router,
    times: Times,
    watcher: hyper_util::server::graceful::Watcher,
    seat: Seat,
}

impl Connection {
    async fn open(self, stream: TcpStream, acceptor: Option<Acceptor>) {
        // Tokens are small packets that should not wait for more.
        let _ = stream.set_nodelay(true);
        let Some(acceptor) = acceptor else {
            return self.run(stream).await;
        };
        self.seat.does(Doing::Head);
        let handshake = tokio::time::timeout(self.times.head, acceptor.accept(stream));
        let evicted = std::future::poll_fn(|cx| self.seat.poll_evicted(cx));
        let done = tokio::select! {
            done = handshake => done,
            () = evicted => return,
        };
        match done {
            Ok(Ok(stream)) => {
                self.seat.does(Doing::Idle);
                self.run(stream).await;
            }
            Ok(Err(error)) => tracing::debug!(%error, "a TLS handshake failed"),
            Err(_) => tracing::debug!("a TLS handshake took too long"),
        }
    }

    async fn run(self, stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static) {
        let line = Line::new(self.seat);
        let wire = Wire::new(stream, line.clone(), self.times);
        let router = TowerToHyperService::new(self.router);
        let service = service_fn(move |mut request: hyper::Request<Incoming>| {
            let arrived = line.next();
            let last = arrived.as_ref().is_none_or(|a| a.last);
            // Before the service runs: a request that is dropped is answered too.
            let answering = Answering(line.clone());
            request
                .extensions_mut()
                .extend(arrived.map(with_extension).unwrap_or_default());
            let watched = |body| Watched {
                body,
                line: line.clone(),
            };
            let answer = router.call(request.map(watched));
            async move {
                let mut response = answer.await?;
                if last {
                    let close = HeaderValue::from_static("close");
                    response.headers_mut().insert(header::CONNECTION, close);
                }
                let body = |body| Held {
                    body,
                    _answering: answering,
                };
                Ok::<_, std::convert::Infallible>(response.map(body))
            }
        });
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            // The `Wire` has time limits of its own for heads.
            .header_read_timeout(None)
            .max_header_size(HEAD)
            .max_buf_size(2 * HEAD)
            .max_headers(HEADERS)
            .serve_connection(TokioIo::new(wire), service);
        if let Err(error) = self.watcher.watch(connection).await {
            tracing::debug!(%error, "a connection broke");
        }
    }
}

/// A request's body that tells its connection when it has been read to its end.
struct Watched {
    body: Incoming,
    line: Arc<Line>,
}

impl HttpBody for Watched {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let this = self.get_mut();
        let frame = std::task::ready!(Pin::new(&mut this.body).poll_frame(cx));
        if frame.is_none() || this.body.is_end_stream() {
            this.line.body_ended();
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

fn with_extension(arrived: wire::Arrived) -> axum::http::Extensions {
    let mut extensions = axum::http::Extensions::new();
    extensions.insert(arrived);
    extensions
}

/// The body of an HTTP answer; when it is sent or dropped, its connection may read the
/// next request.
struct Held {
    body: Body,
    _answering: Answering,
}

impl HttpBody for Held {
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
