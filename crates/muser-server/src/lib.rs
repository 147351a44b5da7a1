//! An OpenAI-compatible server over the engine: every request gets the bits
//! that it would get alone.
//!
//! ```text
//! listen ─► api (routes, strict reading, rendering) ─► scheduler (one thread)
//!                                                        └─► engine: Batch
//! ```
//!
//! What an answer is follows from the request alone: not from what else runs,
//! the slots, the prefix cache, streaming or the number of threads. That is the
//! engine's promise in the strict lane, and the scheduler only orders its calls.
//!
//! No path from the network reaches the file system: after the start, nothing
//! here opens a file.
#![forbid(unsafe_code)]

mod api;
mod atem;
mod error;
mod fields;
mod grammar;
mod keys;
mod limits;
mod listen;
mod metrics;
mod options;
mod prompt;
mod scheduler;
mod tls;

pub use error::ApiError;
pub use grammar::grammar_worker;
pub use limits::{GrammarLimits, SchemaLimits};
pub use options::{Limits, Options, StartError, TlsFiles};

use api::{App, Ids};
use keys::Keys;
use metrics::Metrics;
use muser_engine::{Backend, Model};
use prompt::Guard;
use scheduler::Handle;
use serde_json::json;
use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, watch};

/// A running server.
pub struct Server {
    address: SocketAddr,
    app: Arc<App>,
    stop: watch::Sender<bool>,
    scheduler: JoinHandle<()>,
    listener: JoinHandle<()>,
}

impl Server {
    /// Starts to listen, and the threads that serve.
    ///
    /// # Errors
    /// Options that are unsafe or make no sense, an address that is not free, a
    /// certificate that cannot be used.
    pub fn start<B: Backend>(model: Arc<Model<B>>, options: Options) -> Result<Self, StartError> {
        options.check()?;
        let most = model.config().context;
        let context = options.limits.context;
        if !(2..=most).contains(&context) {
            return Err(StartError::Option {
                name: "context",
                expected: format!("2 to the model's {most} positions"),
                found: context.to_string(),
            });
        }
        let acceptor = options.tls.as_ref().map(tls::acceptor).transpose()?;
        let metrics = Arc::new(Metrics::new());
        let guard = Guard::new(model.codec());
        let facts = facts(&model);
        let lane = model.transformer().lane();
        let fingerprint = format!(
            "muser-{}-{lane}-v{}",
            env!("CARGO_PKG_VERSION"),
            lane.version()
        );
        let codec = model.codec().clone();
        let (vocab, hidden) = (model.config().vocab, model.config().hidden);
        let (handle, scheduler) =
            Handle::start(model, &options.limits, metrics.clone()).map_err(StartError::Thread)?;
        let app = Arc::new(App {
            handle,
            codec,
            guard,
            keys: Keys::new(&options.api_keys),
            metrics,
            limits: options.limits.clone(),
            model: options.model_name.clone(),
            facts,
            vocab,
            hidden,
            fingerprint,
            created: api::now(),
            grammars: OnceLock::new(),
            grammar_worker: options.grammar_worker.clone(),
            ids: Ids::new(),
            reading: Arc::new(Semaphore::new(api::body::READING)),
        });
        let (stop, stopped) = watch::channel(false);
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .max_blocking_threads(16)
            .thread_name("serve")
            .enable_all()
            .build()
            .map_err(StartError::Thread)?;
        let address = options.address;
        let bound = runtime.block_on(TcpListener::bind(address));
        let located = bound.and_then(|l| Ok((l.local_addr()?, l)));
        let (address, socket) = located.map_err(|source| StartError::Listen { address, source })?;
        let (router, limits) = (api::router(app.clone()), options.limits);
        let listener = std::thread::Builder::new()
            .name("listen".into())
            .spawn(move || {
                runtime.block_on(listen::serve(socket, router, acceptor, limits, stopped));
            })
            .map_err(StartError::Thread)?;
        Ok(Self {
            address,
            app,
            stop,
            scheduler,
            listener,
        })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Accepts nothing more, lets running answers end within the grace period,
    /// and waits for that.
    pub fn shutdown(self) {
        self.app.handle.close(self.app.limits.grace);
        // The receiver is gone if the listener has ended, which is as well.
        let _ = self.stop.send(true);
        for thread in [self.listener, self.scheduler] {
            if thread.join().is_err() {
                tracing::error!("a thread of the server panicked");
            }
        }
    }
}

impl std::fmt::Debug for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Server")
            .field("address", &self.address)
            .finish_non_exhaustive()
    }
}

fn facts<B: Backend>(model: &Model<B>) -> serde_json::Value {
    let (config, transformer) = (model.config(), model.transformer());
    let tokenizer = model.tokenizer().ok();
    let ends = tokenizer.into_iter().flat_map(|t| t.eog().iter());
    json!({
        "vocab": config.vocab,
        "context": config.context,
        "layers": config.layers,
        "hidden": config.hidden,
        "parameters": transformer.parameters(),
        "bytes": transformer.weights_bytes(),
        "bytes_per_token": transformer.bytes_per_token(),
        "chat": model.chat_template().is_ok(),
        "text": tokenizer.is_some(),
        "ends": ends.collect::<Vec<_>>(),
    })
}
