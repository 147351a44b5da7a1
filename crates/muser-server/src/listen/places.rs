//! Manages the limited places for open connections, and chooses which connection is
//! closed when all are taken.
//!
//! A connection whose request is complete keeps its place until its answer is sent: how
//! many such there are is the queue's to bound. Any other (idle, sending a head, sending
//! a body) gives way when all places are taken, first one of the address that has most.
//! So neither idle sockets nor slow senders keep others out. A connection that has come
//! just now is spared unless its address has more than its share; the newcomer then gets
//! one of some further places, which are for `/health` and `/metrics` alone, and another
//! request takes an ordinary place once it is complete.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};
use tokio::sync::Notify;

/// How many places for connections there are beyond the ordinary ones; they serve only
/// `/health` and `/metrics`.
pub(crate) const RESERVED: usize = 16;

/// How long a connection is spared from being closed after its last change of activity,
/// since it may be about to send something.
const YOUNG: Duration = Duration::from_secs(1);

/// What a connection is doing (idle, sending, being answered). When all places are taken,
/// one with a greater value is closed first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Doing {
    /// The connection's request is complete and being answered.
    Answer,
    /// The connection's client is sending a request's body.
    Body,
    /// The connection's client is sending a request's head.
    Head,
    /// The connection is idle: its client sends nothing.
    Idle,
}

#[derive(Debug)]
struct State {
    doing: Doing,
    since: Instant,
    evicted: bool,
    waker: Option<Waker>,
}

/// The place of one connection among the limited number of open ones; given back when
/// dropped.
#[derive(Debug)]
pub(crate) struct Seat {
    places: Arc<Places>,
    id: u64,
    pub(crate) address: IpAddr,
    /// Whether the connection's place is one of those reserved for the routes `/health`
    /// and `/metrics`.
    reserved: AtomicBool,
    state: Arc<Mutex<State>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Seat {
    /// Records what the connection is doing now (idle, sending, being answered), and
    /// since when if that has changed.
    pub(crate) fn does(&self, doing: Doing) {
        let mut state = lock(&self.state);
        if state.doing != doing {
            state.doing = doing;
            state.since = Instant::now();
        }
    }

    /// Returns whether the connection has an ordinary place. If not, tries to get one:
    /// closes a connection that waits for its client, however young.
    pub(crate) fn is_ordinary(&self) -> bool {
        if !self.reserved.load(Ordering::Relaxed) {
            return true;
        }
        let mut taken = lock(&self.places.taken);
        let has = taken.len() <= self.places.most || {
            let leaves = victim(&taken, Duration::ZERO).filter(|&id| id != self.id);
            leaves.is_some_and(|id| evict(&mut taken, id))
        };
        self.reserved.store(!has, Ordering::Relaxed);
        has
    }

    /// Polls whether the connection has to close, to make room; wakes the task that asks
    /// once it has to.
    pub(crate) fn poll_evicted(&self, cx: &mut Context<'_>) -> Poll<()> {
        let mut state = lock(&self.state);
        if state.evicted {
            return Poll::Ready(());
        }
        state.waker = Some(cx.waker().clone());
        Poll::Pending
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        if lock(&self.places.taken).remove(&self.id).is_some() {
            self.places.freed.notify_one();
        }
    }
}

/// The connections that have a place, by number: the address and the state of each.
type Taken = HashMap<u64, (IpAddr, Arc<Mutex<State>>)>;

/// The limited number of places for open connections, and the connections that have them.
#[derive(Debug)]
pub(crate) struct Places {
    most: usize,
    next: Mutex<u64>,
    taken: Mutex<Taken>,
    freed: Notify,
}

impl Places {
    pub(crate) fn new(most: usize) -> Arc<Self> {
        Arc::new(Self {
            most,
            next: Mutex::new(0),
            taken: Mutex::default(),
            freed: Notify::new(),
        })
    }

    /// Waits until a further connection can be accepted: a place is free, or some
    /// connection may be closed to free one.
    pub(crate) async fn room(&self) {
        loop {
            let freed = self.freed.notified();
            let full = {
                let taken = lock(&self.taken);
                taken.len() >= self.most + RESERVED && victim(&taken, YOUNG).is_none()
            };
            if !full {
                return;
            }
            // No signal is sent when a connection becomes idle, so this looks again after
            // a pause.
            let pause = Duration::from_millis(20);
            let _ = tokio::time::timeout(pause, freed).await;
        }
    }

    /// Gives a place to a connection from this address. If all ordinary places are taken,
    /// it closes another connection for that, or gives a reserved place.
    pub(crate) fn take(self: &Arc<Self>, address: IpAddr) -> Seat {
        let mut taken = lock(&self.taken);
        if taken.len() >= self.most
            && let Some(id) = victim(&taken, YOUNG)
        {
            evict(&mut taken, id);
        }
        let reserved = taken.len() >= self.most;
        let state = Arc::new(Mutex::new(State {
            doing: Doing::Idle,
            since: Instant::now(),
            evicted: false,
            waker: None,
        }));
        let mut next = lock(&self.next);
        *next += 1;
        taken.insert(*next, (address, state.clone()));
        Seat {
            places: self.clone(),
            id: *next,
            address,
            reserved: AtomicBool::new(reserved),
            state,
        }
    }
}

/// Returns the connection to close when all places are taken: of the address with most
/// connections, an idle one first, then one that is sending a head, then a body; of
/// several, the one that has done so for longest. One that has done so for less than
/// `young` is spared if its address has no more than an equal share.
fn victim(taken: &Taken, young: Duration) -> Option<u64> {
    let mut counts: HashMap<IpAddr, usize> = HashMap::new();
    for (address, _) in taken.values() {
        *counts.entry(*address).or_default() += 1;
    }
    let share = taken.len().div_ceil(counts.len().max(1));
    let now = Instant::now();
    let each = taken.iter().filter_map(|(&id, (address, state))| {
        let state = lock(state);
        let age = now.saturating_duration_since(state.since);
        let count = counts[address];
        let may = state.doing != Doing::Answer && (age >= young || count > share);
        may.then_some((count, state.doing, age, id))
    });
    each.max().map(|(.., id)| id)
}

/// Tells a connection that it has to close, and takes away its place; returns whether it
/// had one.
fn evict(taken: &mut Taken, id: u64) -> bool {
    let Some((_, state)) = taken.remove(&id) else {
        return false;
    };
    let mut state = lock(&state);
    state.evicted = true;
    if let Some(waker) = state.waker.take() {
        waker.wake();
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(last: u8) -> IpAddr {
        [127, 0, 0, last].into()
    }

    fn is_evicted(seat: &Seat) -> bool {
        lock(&seat.state).evicted
    }

    /// Makes a connection look to the test as if it had done the same for long, so that
    /// it is not spared.
    fn age(seat: &Seat) {
        lock(&seat.state).since -= YOUNG;
    }

    #[test]
    fn of_the_address_with_most_the_one_that_does_least_gives_way() {
        let places = Places::new(4);
        let many: Vec<_> = (0..3).map(|_| places.take(ip(1))).collect();
        let other = places.take(ip(2));
        many[0].does(Doing::Answer);
        many[1].does(Doing::Body);
        // Evicted however young, for its address has more than half of the places.
        let new = places.take(ip(2));
        assert!(is_evicted(&many[2]) && !is_evicted(&other) && new.is_ordinary());
        for seat in [&other, &new, &many[1]] {
            seat.does(Doing::Answer);
        }
        // All connections are answering requests, so only a place reserved for `/health`
        // and `/metrics` is left.
        let last = places.take(ip(3));
        assert!(!last.is_ordinary() && !is_evicted(&many[1]));
        drop(other);
        assert!(last.is_ordinary());
    }

    #[test]
    fn who_came_just_now_is_spared_until_a_request_is_complete() {
        let places = Places::new(2);
        let (first, second) = (places.take(ip(1)), places.take(ip(1)));
        let third = places.take(ip(1));
        assert!(!is_evicted(&first) && !is_evicted(&second));
        age(&second);
        let fourth = places.take(ip(1));
        assert!(is_evicted(&second) && !is_evicted(&first));
        third.does(Doing::Answer);
        fourth.does(Doing::Answer);
        assert!(fourth.is_ordinary() && is_evicted(&first));
    }
}
