//! An OpenAI-compatible HTTP server over the muser engine: every request gets the bits
//! that it would get alone.
//!
//! ```text
//! listen ─► api (routes, strict reading, rendering) ─► scheduler (one thread)
//!                                                        └─► engine: Batch
//! ```
//!
//! An answer depends on the request alone: not on other requests, the slots, the prefix
//! cache, streaming or the number of threads. The engine guarantees that in the strict
//! lane (muser's own arithmetic); the scheduler only orders its calls.
//!
//! Nothing from the network reaches the file system: after the start, the server opens
//! no file but the certificate's, when the operator says so.
#![forbid(unsafe_code)]

mod api;
mod error;
mod fields;
#[doc(hidden)]
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod grammar;
mod json;
mod keys;
mod limits;
mod listen;
mod metrics;
mod options;
mod prompt;
mod scheduler;
mod sites;
mod tls;

pub use error::ApiError;
pub use grammar::grammar_worker;
pub use limits::{GrammarLimits, JsonLimits, SchemaLimits};
pub use options::{Limits, Options, StartError, TlsFiles, UnknownFields};

use api::{App, Ids};
use keys::Keys;
use limits::budget::Budget;
use limits::gate::Gate;
use listen::Listening;
use metrics::Metrics;
use muser_engine::{Backend, Model};
use scheduler::Handle;
use serde_json::json;
use sites::Sites;
use std::net::SocketAddr;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};
use std::time::{Duration, Instant};
use tls::Acceptor;
use tokio::sync::watch;

/// The most time kept, at the end of a shutdown's grace period, for telling clients that
/// their answers are cut off.
const FAREWELL: Duration = Duration::from_millis(500);

/// A running HTTP server: its listener, its scheduler and the state they share.
pub struct Server {
    address: SocketAddr,
    app: Arc<App>,
    stop: watch::Sender<Option<Instant>>,
    cut: watch::Sender<bool>,
    tls: Option<(TlsFiles, watch::Sender<Acceptor>)>,
    scheduler: Ending,
    listener: Ending,
}

/// Lets others wait, with a timeout, until one of the server's threads ends: the thread
/// drops the channel's sender when it ends.
struct Ending(Mutex<Receiver<()>>);

impl Ending {
    /// Starts a thread with this name that calls `work`, and returns what can wait for
    /// its end.
    fn start(name: &str, work: impl FnOnce() + Send + 'static) -> std::io::Result<Self> {
        let (sender, end) = channel::<()>();
        let thread = std::thread::Builder::new().name(name.into());
        thread.spawn(move || {
            let _held = sender;
            work();
        })?;
        Ok(Self(Mutex::new(end)))
    }

    /// Waits until the thread ends, but no longer than to the time `until`; returns
    /// whether it has ended.
    fn by(&self, until: Instant) -> bool {
        let left = until.saturating_duration_since(Instant::now());
        let end = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        end.recv_timeout(left) == Err(RecvTimeoutError::Disconnected)
    }
}

impl Server {
    /// Starts an HTTP server for a model.
    ///
    /// # Errors
    /// Options that are unsafe or make no sense, an address that is not free, a
    /// certificate that cannot be used.
    pub fn start<B: Backend>(model: Arc<Model<B>>, options: Options) -> Result<Self, StartError> {
        options.check()?;
        let most = model.spec().context;
        let context = options.limits.context;
        if !(2..=most).contains(&context) {
            return Err(StartError::Option {
                name: "context",
                expected: format!("2 to the model's {most} positions"),
                found: context.to_string(),
            });
        }
        let acceptor = options.tls.as_ref().map(tls::acceptor).transpose()?;
        let acceptor = acceptor.map(watch::channel);
        let metrics = Arc::new(Metrics::new(options.log_dropped.clone()));
        let sites = Sites::new(&options)?;
        let budget = Budget::new(options.limits.memory_bytes);
        let facts = facts(&model);
        let lane = model.transformer().lane();
        let fingerprint = format!(
            "muser-{}-{lane}-v{}",
            env!("CARGO_PKG_VERSION"),
            lane.version()
        );
        let codec = model.codec().clone();
        let (vocab, hidden) = (model.spec().vocab, model.spec().hidden);
        let (cut, cut_seen) = watch::channel(false);
        let (handle, work) = Handle::new(model, &options.limits, metrics.clone(), cut_seen.clone());
        let scheduler = Ending::start("scheduler", work).map_err(StartError::Thread)?;
        let app = Arc::new(App {
            handle,
            codec,
            keys: RwLock::new(Arc::new(Keys::new(&options.api_keys))),
            sites,
            metrics,
            limits: options.limits.clone(),
            model: options.model_name.clone(),
            facts,
            vocab,
            hidden,
            fingerprint,
            unknown_fields: options.unknown_fields,
            created: api::now(),
            grammars: OnceLock::new(),
            grammar_worker: options.grammar_worker.clone(),
            ids: Ids::new(),
            budget,
            gate: Gate::new(readers()),
            cut: cut_seen,
        });
        let (stop, stopped) = watch::channel(None);
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .max_blocking_threads(16)
            .thread_name("serve")
            .enable_all()
            .build()
            .map_err(StartError::Thread)?;
        let address = options.address;
        let bound = runtime.block_on(async { listen::bind(address) });
        let located = bound.and_then(|l| Ok((l.local_addr()?, l)));
        let (address, socket) = located.map_err(|source| StartError::Listen { address, source })?;
        let (sender, acceptor) = acceptor.unzip();
        let with = Listening {
            router: api::router(app.clone()),
            acceptor,
            limits: options.limits,
            stop: stopped,
        };
        let listener = Ending::start("listen", move || {
            runtime.block_on(listen::serve(socket, with));
            // Does not wait for a thread that is stuck.
            runtime.shutdown_background();
        });
        Ok(Self {
            address,
            app,
            stop,
            cut,
            tls: options.tls.zip(sender),
            scheduler,
            listener: listener.map_err(StartError::Thread)?,
        })
    }

    /// Returns the address that the server listens at.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Replaces the server's API keys by these, if given, and reads the certificate's
    /// files anew. Open connections stay open.
    ///
    /// # Errors
    /// No keys where there were some, or a certificate that cannot be used. Then keys and
    /// certificate stay as they were.
    pub fn reload(&self, api_keys: Option<Vec<String>>) -> Result<(), StartError> {
        if let Some(keys) = &api_keys {
            options::check_keys(keys)?;
            if keys.is_empty() {
                return Err(StartError::Option {
                    name: "API key",
                    expected: "at least one".to_owned(),
                    found: "none".to_owned(),
                });
            }
        }
        let acceptor = self.tls.as_ref().map(|(files, _)| tls::acceptor(files));
        let acceptor = acceptor.transpose()?;
        if let Some((acceptor, (_, sender))) = acceptor.zip(self.tls.as_ref()) {
            sender.send_replace(acceptor);
        }
        if let Some(keys) = api_keys {
            let mut current = self
                .app
                .keys
                .write()
                .unwrap_or_else(PoisonError::into_inner);
            *current = Arc::new(Keys::new(&keys));
        }
        Ok(())
    }

    /// Shuts the server down: refuses further requests, and waits for running answers,
    /// for the grace period at most. Just before the period ends, clients of answers that
    /// still run are told that these are cut off.
    pub fn shutdown(self) {
        let grace = self.app.limits.grace;
        let end = Instant::now() + grace;
        let told = end - FAREWELL.min(grace / 4);
        self.app.handle.close(told);
        // Fails if the listener has ended, which is fine.
        let _ = self.stop.send(Some(end));
        let all = [("listener", &self.listener), ("scheduler", &self.scheduler)];
        if all.iter().all(|(_, thread)| thread.by(told)) {
            return;
        }
        let _ = self.cut.send(true);
        for (name, thread) in all {
            if !thread.by(end) {
                tracing::error!(name, "left behind at the end of the grace period");
            }
        }
    }
}

/// Returns how many requests' bodies are parsed at once: few enough that processors are
/// left for the answers.
fn readers() -> usize {
    let all = std::thread::available_parallelism().map_or(1, usize::from);
    (all / 2).clamp(1, 8)
}

impl std::fmt::Debug for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Server")
            .field("address", &self.address)
            .finish_non_exhaustive()
    }
}

fn facts<B: Backend>(model: &Model<B>) -> serde_json::Value {
    let (spec, transformer) = (model.spec(), model.transformer());
    let tokenizer = model.tokenizer().ok();
    let ends = tokenizer.into_iter().flat_map(|t| t.eog().iter());
    json!({
        "vocab": spec.vocab,
        "context": spec.context,
        "layers": spec.layers.len(),
        "hidden": spec.hidden,
        "parameters": transformer.parameters(),
        "bytes": transformer.weights_bytes(),
        "bytes_per_token": transformer.bytes_per_token(),
        "chat": model.chat_template().is_ok(),
        "text": tokenizer.is_some(),
        "ends": ends.collect::<Vec<_>>(),
    })
}
