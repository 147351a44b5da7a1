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
//! Who does not read does not fill memory: a slot whose channel has no room is
//! left out of the pass until there is some, or until its time is up.

mod answer;
mod prefix;
mod request;
mod run;

pub(crate) use request::{
    CallDelta, Counts, Delta, Event, Finish, Format, Generate, Request, Scored, Task, TokenLogProb,
};

use crate::error::ApiError;
use crate::metrics::Metrics;
use crate::options::Limits;
use muser_engine::{Backend, Model};
use run::Scheduler;
use serde::Serialize;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::{Context, Poll};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tokio::sync::mpsc as events;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Events that a channel holds beside two a choice.
const EVENTS: usize = 32;

/// What the thread is told.
pub(crate) enum Command {
    Submit(Arc<Job>),
    /// Ends the thread once nothing is left to do, or at this time.
    Close(Instant),
}

/// A request on its way through the scheduler.
pub(crate) struct Job {
    /// Its places in queue and slots. Before the channel, for fields are dropped
    /// in order: who reads of the end finds the places free.
    _places: OwnedSemaphorePermit,
    pub(crate) request: Request,
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
        self.receiver.poll_recv(cx).map(|e| e.ok_or_else(ended))
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

/// The scheduler, as handlers see it.
pub(crate) struct Handle {
    commands: Mutex<Sender<Command>>,
    places: Arc<Semaphore>,
    all_places: usize,
    slots: usize,
    closing: AtomicBool,
    shared: Arc<Shared>,
}

/// What the thread shows.
pub(crate) struct Shared {
    pub(crate) metrics: Arc<Metrics>,
    slots: Mutex<Vec<SlotStatus>>,
    /// Seconds that an answer takes, as bits of an f64: a running mean.
    mean_seconds: std::sync::atomic::AtomicU64,
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
    /// Starts the thread.
    pub(crate) fn start<B: Backend>(
        model: Arc<Model<B>>,
        limits: &Limits,
        metrics: Arc<Metrics>,
    ) -> Result<(Self, JoinHandle<()>), std::io::Error> {
        let (commands, inbox): (Sender<Command>, Receiver<Command>) = channel();
        let status = |id| SlotStatus {
            id,
            ..SlotStatus::default()
        };
        let shared = Arc::new(Shared {
            metrics,
            slots: Mutex::new((0..limits.slots).map(status).collect()),
            mean_seconds: std::sync::atomic::AtomicU64::new(1f64.to_bits()),
        });
        let mut scheduler = Scheduler::new(model, limits, shared.clone(), inbox);
        let thread = std::thread::Builder::new()
            .name("scheduler".into())
            .spawn(move || scheduler.run())?;
        let all_places = limits.slots + limits.queue;
        let handle = Self {
            commands: Mutex::new(commands),
            places: Arc::new(Semaphore::new(all_places)),
            all_places,
            slots: limits.slots,
            closing: AtomicBool::new(false),
            shared,
        };
        Ok((handle, thread))
    }

    /// Queues a request.
    ///
    /// # Errors
    /// 429 if there is no place, 503 if the server is going down.
    pub(crate) fn submit(&self, request: Request) -> Result<Events, ApiError> {
        if self.closing.load(Ordering::Relaxed) {
            return Err(ApiError::closing());
        }
        let units = request.units();
        let too_many = || {
            ApiError::field(
                "n",
                format!(
                    "expected at most {} choices in all, which is what this server has room for, \
                     found {units}",
                    self.all_places
                ),
            )
        };
        let places = u32::try_from(units).map_err(|_| too_many())?;
        if units > self.all_places {
            return Err(too_many());
        }
        let places = self.places.clone().try_acquire_many_owned(places);
        let places = places.map_err(|_| {
            let taken = self.all_places - self.places.available_permits();
            ApiError::overloaded(taken, self.retry_after(taken))
        })?;
        let (sender, receiver) = events::channel(EVENTS + 2 * units);
        let failure = Arc::new(OnceLock::new());
        let job = Job {
            request,
            events: sender,
            failure: failure.clone(),
            arrived: Instant::now(),
            _places: places,
        };
        self.send(Command::Submit(Arc::new(job)))?;
        Ok(Events { receiver, failure })
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
    pub(crate) fn close(&self, grace: Duration) {
        self.closing.store(true, Ordering::Relaxed);
        // The thread may have ended already.
        let _ = self.send(Command::Close(Instant::now() + grace));
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
