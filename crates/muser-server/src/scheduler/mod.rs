//! The scheduler decides which requests the model works on: one thread owns the model and
//! the slots, in which answers are generated.
//!
//! ```text
//! handlers ── submit: bounded by permits ──► queue ─► slots ─► one forward pass
//!     ▲                                                │         for all of them
//!     └────────── events, a bounded channel a request ◄┘
//! ```
//!
//! A slot is one choice of one request. Each turn of the loop makes one forward pass: the
//! next token of every answer, and pieces of the prompts that are not evaluated yet,
//! together at most as many rows as are computed at the machine's peak. So a long prompt
//! delays other answers by one pass at most, and decoding reads the weights once for all
//! answers. In the strict lane (muser's own arithmetic) none of this moves a bit; in the
//! pinned lane (llama.cpp's arithmetic) a prompt is one call and nothing is shared.
//!
//! Clients take turns at slots, and so do the requests of one client, however many
//! of them wait ([`crate::limits::turns`]).
//!
//! A client that does not read cannot fill memory: a slot whose channel has no room
//! is left out of the pass. If others wait for a slot, it is parked: the state of its
//! answer goes back to the queue, and to a slot again when the client reads on. In the
//! same way a client with several slots gives one to a client that has none. A parked
//! answer continues with the same bits: from its own session or, in the strict lane,
//! from its tokens evaluated anew.

mod answer;
mod prefix;
mod request;
mod run;
mod slot;

pub(crate) use request::{
    Counts, Delta, Event, Finish, Generate, Request, Scored, Task, TokenLogProb,
};

use crate::error::ApiError;
use crate::limits::work::{Client, Work};
use crate::metrics::Metrics;
use crate::options::Limits;
use muser_engine::{Backend, Model};
use run::Scheduler;
use serde::Serialize;
use std::collections::HashMap;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::{Context, Poll};
use std::time::Instant;
use tokio::sync::{mpsc as events, watch};

/// How many events a request's channel holds in addition to two for each of its answers
/// (choices).
const EVENTS: usize = 32;
/// The most answers (choices) that one request may ask for, over all its prompts.
pub(crate) const MOST_UNITS: usize = 4096;
/// The least number of clients that can have a full queue of requests at the same time.
const FULL_CLIENTS: usize = 4;

/// A command that an HTTP handler or the server's shutdown sends to the scheduler's
/// thread.
pub(crate) enum Command {
    Submit(Arc<Job>),
    /// Tells the scheduler's thread to end once no request is left, and to cut off at
    /// this time the requests that still run.
    Close(Instant),
}

/// A request on its way through the scheduler, with the channel for the events of its
/// answers.
pub(crate) struct Job {
    /// The request's place among those that wait or run. Declared before the channel of
    /// events: fields are dropped in order, so a client that reads the end of its answer
    /// finds the place free.
    _place: Place,
    pub(crate) work: Arc<Work>,
    pub(crate) request: Request,
    /// The number of slots (places of running answers) that the scheduler had given out
    /// when this request last got one, or when it came.
    pub(crate) served: AtomicU64,
    pub(crate) events: events::Sender<Event>,
    /// Why the request failed as a whole. Its handler reads it when the channel of events
    /// ends, so reporting a failure needs no room in the channel.
    pub(crate) failure: Arc<OnceLock<ApiError>>,
    pub(crate) arrived: Instant,
}

impl Job {
    /// Whether the request's channel has room for the events that one forward pass can
    /// bring.
    fn has_room(&self) -> bool {
        self.events.capacity() >= 2 * self.request.units()
    }
}

/// Receives the events of one request in its HTTP handler.
pub(crate) struct Events {
    receiver: events::Receiver<Event>,
    failure: Arc<OnceLock<ApiError>>,
    /// A future that becomes ready when the server cuts off running answers, even if the
    /// scheduler's thread is busy then.
    cut: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
}

impl Events {
    /// Waits for the scheduler's next event about a request.
    ///
    /// # Errors
    /// The request failed; nothing follows.
    pub(crate) async fn next(&mut self) -> Result<Event, ApiError> {
        std::future::poll_fn(|cx| self.poll(cx)).await
    }

    /// Polls for the scheduler's next event about a request, as [`Events::next`] awaits
    /// it.
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<Event, ApiError>> {
        let ended = || {
            self.failure
                .get()
                .cloned()
                .unwrap_or_else(ApiError::closing)
        };
        if let Poll::Ready(event) = self.receiver.poll_recv(cx) {
            return Poll::Ready(event.ok_or_else(ended));
        }
        let cut = self.cut.as_mut().map(|cut| cut.as_mut().poll(cx));
        if cut.is_none_or(|poll| poll.is_ready()) {
            self.cut = None;
            return Poll::Ready(Err(ApiError::closing()));
        }
        Poll::Pending
    }
}

/// The state of one of the scheduler's slots (the place of one running answer), as the
/// route `/slots` shows it.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct SlotStatus {
    pub(crate) id: usize,
    pub(crate) is_processing: bool,
    pub(crate) prompt_tokens: usize,
    pub(crate) cached_tokens: usize,
    pub(crate) completion_tokens: usize,
}

/// Counts, by client, the requests that wait or run. A client may have as many as the
/// queue and the slots hold, but never more than stay free for others: so a client
/// without a request always finds a place.
#[derive(Debug)]
struct Places {
    each: usize,
    all: usize,
    taken: Mutex<Taken>,
}

#[derive(Debug, Default)]
struct Taken {
    all: usize,
    by: HashMap<Client, usize>,
}

/// One request's place among those that may wait or run ([`Places`]); given back when
/// dropped.
#[derive(Debug)]
struct Place {
    places: Arc<Places>,
    client: Client,
}

impl Places {
    fn taken(&self) -> MutexGuard<'_, Taken> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a place for a client's request; if there is none, returns how many places
    /// the client may have, and how many it has.
    fn take(self: &Arc<Self>, client: Client) -> Result<Place, (usize, usize)> {
        let mut taken = self.taken();
        let own = taken.by.get(&client).copied().unwrap_or(0);
        let free = self.all - taken.all;
        if own >= self.each || own >= free {
            return Err((self.each.min(own), own));
        }
        taken.all += 1;
        taken.by.insert(client, own + 1);
        let places = self.clone();
        Ok(Place { places, client })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut taken = self.places.taken();
        taken.all = taken.all.saturating_sub(1);
        if let Some(own) = taken.by.get_mut(&self.client) {
            *own -= 1;
            if *own == 0 {
                taken.by.remove(&self.client);
            }
        }
    }
}

/// Gives HTTP handlers access to the scheduler's thread: submits requests, tells it to
/// close, and shows the slots (places of running answers).
pub(crate) struct Handle {
    commands: Mutex<Sender<Command>>,
    places: Arc<Places>,
    slots: usize,
    context: usize,
    closing: AtomicBool,
    cut: watch::Receiver<bool>,
    shared: Arc<Shared>,
}

/// The part of the scheduler's state that other threads may read: metrics, the answers in
/// its slots, and the mean time that an answer takes.
pub(crate) struct Shared {
    pub(crate) metrics: Arc<Metrics>,
    slots: Mutex<Vec<SlotStatus>>,
    /// The running mean of the seconds that an answer takes, stored as the bits of an
    /// f64.
    mean_seconds: AtomicU64,
}

impl Shared {
    fn slots(&self) -> MutexGuard<'_, Vec<SlotStatus>> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn took(&self, seconds: f64) {
        let before = f64::from_bits(self.mean_seconds.load(Ordering::Relaxed));
        let after = 0.9 * before + 0.1 * seconds;
        self.mean_seconds.store(after.to_bits(), Ordering::Relaxed);
    }
}

impl Handle {
    /// Creates a scheduler's handle, and the closure that its thread runs.
    pub(crate) fn new<B: Backend>(
        model: Arc<Model<B>>,
        limits: &Limits,
        metrics: Arc<Metrics>,
        cut: watch::Receiver<bool>,
    ) -> (Self, impl FnOnce() + Send + 'static) {
        let (commands, inbox): (Sender<Command>, Receiver<Command>) = channel();
        let status = |id| SlotStatus {
            id,
            ..SlotStatus::default()
        };
        let shared = Arc::new(Shared {
            metrics,
            slots: Mutex::new((0..limits.slots).map(status).collect()),
            mean_seconds: AtomicU64::new(1f64.to_bits()),
        });
        let mut scheduler = Scheduler::new(model, limits, shared.clone(), inbox);
        let each = limits.slots + limits.queue;
        let handle = Self {
            commands: Mutex::new(commands),
            places: Arc::new(Places {
                each,
                all: each.saturating_mul(FULL_CLIENTS),
                taken: Mutex::default(),
            }),
            slots: limits.slots,
            context: limits.context,
            closing: AtomicBool::new(false),
            cut,
            shared,
        };
        (handle, move || scheduler.run())
    }

    /// Queues a request for the scheduler. With `whole`, memory is claimed for the
    /// complete answer, since it is sent only when it is complete.
    ///
    /// # Errors
    /// 400 for too many choices, 413 for an answer that could take too much memory, 429
    /// if there is no place, 503 if the server is going down.
    pub(crate) fn submit(
        &self,
        request: Request,
        work: Arc<Work>,
        whole: bool,
    ) -> Result<Events, ApiError> {
        if self.closing.load(Ordering::Relaxed) {
            return Err(ApiError::closing());
        }
        let units = request.units();
        if units > MOST_UNITS {
            let reason = format!("expected at most {MOST_UNITS} choices in all, found {units}");
            return Err(ApiError::field("n", reason));
        }
        work.hold(
            request.memory(whole, EVENTS, self.context),
            request.memory_of(),
        )?;
        let place = self.places.take(work.client);
        let place = place
            .map_err(|(most, taken)| ApiError::overloaded(taken, most, self.retry_after(taken)))?;
        let (sender, receiver) = events::channel(EVENTS + 2 * units);
        let failure = Arc::new(OnceLock::new());
        let job = Job {
            _place: place,
            work,
            request,
            served: AtomicU64::new(0),
            events: sender,
            failure: failure.clone(),
            arrived: Instant::now(),
        };
        self.send(Command::Submit(Arc::new(job)))?;
        let mut cut = self.cut.clone();
        let cut = async move {
            // The wait fails if the server is gone, which is an end as well.
            let _ = cut.wait_for(|cut| *cut).await;
        };
        Ok(Events {
            receiver,
            failure,
            cut: Some(Box::pin(cut)),
        })
    }

    fn send(&self, command: Command) -> Result<(), ApiError> {
        let commands = self.commands.lock();
        let commands = commands.unwrap_or_else(PoisonError::into_inner);
        commands.send(command).map_err(|_| ApiError::closing())
    }

    /// Estimates the seconds until a client's next request would find a place: the
    /// requests before it, at the recent pace of answers.
    fn retry_after(&self, taken: usize) -> u64 {
        let mean = f64::from_bits(self.shared.mean_seconds.load(Ordering::Relaxed));
        let rounds = taken.saturating_sub(self.slots) as f64 / self.slots.max(1) as f64;
        (rounds.max(1.0) * mean).ceil().clamp(1.0, 60.0) as u64
    }

    /// Makes the scheduler refuse new requests; running ones are cut off at the time
    /// `until`.
    pub(crate) fn close(&self, until: Instant) {
        self.closing.store(true, Ordering::Relaxed);
        // The thread may have ended already.
        let _ = self.send(Command::Close(until));
    }

    /// Whether the server is going down, so that new requests are refused.
    pub(crate) fn is_closing(&self) -> bool {
        self.closing.load(Ordering::Relaxed)
    }

    /// Returns the state of all the scheduler's slots (each the place of one running
    /// answer).
    pub(crate) fn slots(&self) -> Vec<SlotStatus> {
        self.shared.slots().clone()
    }
}
