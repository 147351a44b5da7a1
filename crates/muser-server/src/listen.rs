//! Connections: accepted up to a number, each with limits and an end.

use crate::options::Limits;
use crate::tls::Acceptor;
use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};

/// Bytes of a request's head: its line and headers.
const HEAD: usize = 64 << 10;
/// Headers of a request.
const HEADERS: usize = 64;
/// After an accept that failed, for want of file descriptors say.
const PAUSE: Duration = Duration::from_millis(50);

/// Serves until told to stop, then until the last answer is sent or the grace
/// is over.
pub(crate) async fn serve(
    listener: TcpListener,
    router: Router,
    acceptor: Option<Acceptor>,
    limits: Limits,
    mut stop: watch::Receiver<bool>,
) {
    let graceful = GracefulShutdown::new();
    let places = Arc::new(Semaphore::new(limits.connections));
    loop {
        // No place, no accept: who is too many waits in the system's queue.
        let place = tokio::select! {
            place = places.clone().acquire_owned() => place,
            _ = stop.changed() => break,
        };
        let Ok(place) = place else {
            break;
        };
        let stream = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = stop.changed() => break,
        };
        let stream = match stream {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::warn!(%error, "a connection was not accepted");
                tokio::time::sleep(PAUSE).await;
                continue;
            }
        };
        let connection = Connection {
            router: router.clone(),
            read_time: limits.read_time,
            watcher: graceful.watcher(),
        };
        let acceptor = acceptor.clone();
        tokio::spawn(async move {
            connection.open(stream, acceptor).await;
            drop(place);
        });
    }
    drop(listener);
    tokio::select! {
        () = graceful.shutdown() => {}
        () = tokio::time::sleep(limits.grace) => {
            tracing::warn!("connections were cut off at the end of the grace period");
        }
    }
}

struct Connection {
    router: Router,
    read_time: Duration,
    watcher: hyper_util::server::graceful::Watcher,
}

impl Connection {
    async fn open(self, stream: TcpStream, acceptor: Option<Acceptor>) {
        // Tokens are small packets that should not wait for more.
        let _ = stream.set_nodelay(true);
        let Some(acceptor) = acceptor else {
            return self.run(stream).await;
        };
        match tokio::time::timeout(self.read_time, acceptor.accept(stream)).await {
            Ok(Ok(stream)) => self.run(stream).await,
            Ok(Err(error)) => tracing::debug!(%error, "a TLS handshake failed"),
            Err(_) => tracing::debug!("a TLS handshake took too long"),
        }
    }

    async fn run(self, stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static) {
        let service = TowerToHyperService::new(self.router);
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(self.read_time)
            .max_buf_size(HEAD)
            .max_headers(HEADERS)
            .serve_connection(TokioIo::new(stream), service);
        if let Err(error) = self.watcher.watch(connection).await {
            tracing::debug!(%error, "a connection broke");
        }
    }
}
