//! The one thread that owns model and slots.
//!
//! ```text
//! handlers ── submit: bounded by permits ──► queue ─► slots ─► one forward pass
//!     ▲                                                │         for all of them
//!     └────────── events, a bounded channel a request ◄┘
//! ```
//!
//! A slot is one choice of one request. Each turn of the loop makes one forward
//! pass: the next token of every answer, and pieces of the prompts that are not
//! evaluated yet, together at most as many rows as are computed at the machine's
//! peak. So a long prompt holds nobody up for longer than one pass, and decode
//! reads the weights once for all answers. In the strict lane none of this moves
//! a bit; in the pinned lane a prompt is one call and nothing is shared.
//!
//! Clients take turns at slots, and the requests of a client among each other,
//! whatever each has waiting ([`crate::limits::turns`]).
//!
//! Who does not read does not fill memory: a slot whose channel has no room is
//! left out of the pass. Where others wait for a slot it is parked: the answer's
//! state goes back to the queue, and on in a slot when its client reads on. The
//! same way a client that has several slots gives one to a client that has none.
//! A parked answer goes on with the same bits: from its own session or, in the
//! strict lane, from its tokens evaluated anew.

mod answer;
mod prefix;
mod request;
mod run;
mod slot;

pub(crate) use request::{
    CallDelta, Counts, Delta, Event, Finish, Format, Generate, Request, Scored, Task, TokenLogProb,
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

/// Events that a channel holds beside two a choice.
const EVENTS: usize = 32;
/// Choices of all prompts of a request.
pub(crate) const MOST_UNITS: usize = 4096;
/// How many clients can have a full queue each, at least.
const FULL_CLIENTS: usize = 4;

/// What the thread is told.
pub(crate) enum Command {
    Submit(Arc<Job>),
    /// Ends the thread once nothing is left to do, or at this time.
    Close(Instant),
}

/// A request on its way through the scheduler.
pub(crate) struct Job {
    /// Its place among those that wait and run. Before the channel, for fields
    /// are dropped in order: who reads of the end finds the place free.
    _place: Place,
    pub(crate) work: Arc<Work>,
    pub(crate) request: Request,
    /// When one of its choices last got a slot, on the scheduler's count.
    pub(crate) served: AtomicU64,
    pub(crate) events: events::Sender<Event>,
    /// Why it failed as a whole: told when the channel ends, for which there is
    /// always room.
    pub(crate) failure: Arc<OnceLock<ApiError>>,
    pub(crate) arrived: Instant,
}

impl Job {
    /// Whether there is room for what one pass can add.
    fn has_room(&self) -> bool {
        self.events.capacity() >= 2 * self.request.units()
    }
}

/// A request's events, as its handler gets them.
pub(crate) struct Events {
    receiver: events::Receiver<Event>,
    failure: Arc<OnceLock<ApiError>>,
    /// Ready when the server ends, whatever the scheduler is doing then.
    cut: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
}

impl Events {
    /// The next one.
    ///
    /// # Errors
    /// The request failed; nothing follows.
    pub(crate) async fn next(&mut self) -> Result<Event, ApiError> {
        std::future::poll_fn(|cx| self.poll(cx)).await
    }

    /// [`Events::next`] for who polls.
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

/// What `/slots` shows of a slot.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct SlotStatus {
    pub(crate) id: usize,
    pub(crate) is_processing: bool,
    pub(crate) prompt_tokens: usize,
    pub(crate) cached_tokens: usize,
    pub(crate) completion_tokens: usize,
}

/// Requests that wait or run, by client. A client may have as many as the queue
/// and the slots hold, and no more than it leaves free of what all clients may
/// have: there is always a place for who has none.
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

/// One of [`Places`], given back when dropped.
#[derive(Debug)]
struct Place {
    places: Arc<Places>,
    client: Client,
}

impl Places {
    fn taken(&self) -> MutexGuard<'_, Taken> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A place, or how many the client may have and has.
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

/// The scheduler, as handlers see it.
pub(crate) struct Handle {
    commands: Mutex<Sender<Command>>,
    places: Arc<Places>,
    slots: usize,
    context: usize,
    closing: AtomicBool,
    cut: watch::Receiver<bool>,
    shared: Arc<Shared>,
}

/// What the thread shows.
pub(crate) struct Shared {
    pub(crate) metrics: Arc<Metrics>,
    slots: Mutex<Vec<SlotStatus>>,
    /// Seconds that an answer takes, as bits of an f64: a running mean.
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
    /// The scheduler's handle, and the work of its thread.
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

    /// Queues a request; `whole` says that its answer is kept until it is
    /// complete.
    ///
    /// # Errors
    /// 400 for more choices than a request may have, 413 for an answer that
    /// could take more memory than one may, 429 if there is no place, 503 if the
    /// server is going down.
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
            // Its sender is gone with the server.
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

    /// Seconds until a place is likely: what waits, at the pace of late.
    fn retry_after(&self, taken: usize) -> u64 {
        let mean = f64::from_bits(self.shared.mean_seconds.load(Ordering::Relaxed));
        let rounds = taken.saturating_sub(self.slots) as f64 / self.slots.max(1) as f64;
        (rounds.max(1.0) * mean).ceil().clamp(1.0, 60.0) as u64
    }

    /// Refuses new requests; running ones have until then to end.
    pub(crate) fn close(&self, until: Instant) {
        self.closing.store(true, Ordering::Relaxed);
        // The thread may have ended already.
        let _ = self.send(Command::Close(until));
    }

    /// Whether the server is going down.
    pub(crate) fn is_closing(&self) -> bool {
        self.closing.load(Ordering::Relaxed)
    }

    /// What the slots do.
    pub(crate) fn slots(&self) -> Vec<SlotStatus> {
        self.shared.slots().clone()
    }
}
