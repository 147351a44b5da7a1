//! Places for connections, and who has to leave when there is none.
//!
//! A connection whose request is complete keeps its place until its answer is
//! sent: how many such there are is the queue's to bound. Any other (idle,
//! sending a head, sending a body) gives way when all places are taken, first
//! one of the address that has most. So neither idle sockets nor slow senders
//! keep others out. Some further places are for `/health` and `/metrics` alone.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Instant;
use tokio::sync::Notify;

/// Places beyond the ordinary ones, for operators' routes.
pub(crate) const RESERVED: usize = 16;

/// What a connection is doing, by who gives way first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Doing {
    /// Its request is complete and being answered.
    Answer,
    /// Its client is sending a body.
    Body,
    /// Its client is sending a head.
    Head,
    /// Its client sends nothing.
    Idle,
}

#[derive(Debug)]
struct State {
    doing: Doing,
    since: Instant,
    evicted: bool,
    waker: Option<Waker>,
}

/// One connection's place, given back when dropped.
#[derive(Debug)]
pub(crate) struct Seat {
    places: Arc<Places>,
    id: u64,
    pub(crate) address: IpAddr,
    /// Whether it is one of the reserved ones.
    pub(crate) reserved: bool,
    state: Arc<Mutex<State>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Seat {
    /// Tells what it does now.
    pub(crate) fn does(&self, doing: Doing) {
        let mut state = lock(&self.state);
        if state.doing != doing {
            state.doing = doing;
            state.since = Instant::now();
        }
    }

    /// Whether it has to leave; wakes the task that asks once it has to.
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

/// All places.
#[derive(Debug)]
pub(crate) struct Places {
    most: usize,
    next: Mutex<u64>,
    taken: Mutex<HashMap<u64, (IpAddr, Arc<Mutex<State>>)>>,
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

    /// Waits until a further connection can be accepted.
    pub(crate) async fn room(&self) {
        loop {
            let freed = self.freed.notified();
            let full = {
                let taken = lock(&self.taken);
                taken.len() >= self.most + RESERVED && victim(&taken).is_none()
            };
            if !full {
                return;
            }
            // Nobody is told when a connection comes to be idle.
            let pause = std::time::Duration::from_millis(20);
            let _ = tokio::time::timeout(pause, freed).await;
        }
    }

    /// Gives a place to a connection from this address; if all are taken, that
    /// of another one which can leave, or a reserved one.
    pub(crate) fn take(self: &Arc<Self>, address: IpAddr) -> Seat {
        let mut taken = lock(&self.taken);
        let leaves = match taken.len() >= self.most {
            true => victim(&taken),
            false => None,
        };
        let entry = leaves.and_then(|id| taken.remove(&id));
        if let Some((_, state)) = &entry {
            let mut state = lock(state);
            state.evicted = true;
            if let Some(waker) = state.waker.take() {
                waker.wake();
            }
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
            reserved,
            state,
        }
    }
}

/// Who gives way: of the address with most connections, the one that does
/// least, and of those the one that has done it for longest.
fn victim(taken: &HashMap<u64, (IpAddr, Arc<Mutex<State>>)>) -> Option<u64> {
    let mut counts: HashMap<IpAddr, usize> = HashMap::new();
    for (address, _) in taken.values() {
        *counts.entry(*address).or_default() += 1;
    }
    let now = Instant::now();
    let each = taken.iter().filter_map(|(&id, (address, state))| {
        let state = lock(state);
        let age = now.saturating_duration_since(state.since);
        let may = state.doing != Doing::Answer;
        may.then_some((counts[address], state.doing, age, id))
    });
    each.max().map(|(.., id)| id)
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

    #[test]
    fn the_longest_idle_of_the_address_with_most_gives_way() {
        let places = Places::new(4);
        let many: Vec<_> = (0..3).map(|_| places.take(ip(1))).collect();
        let other = places.take(ip(2));
        many[0].does(Doing::Answer);
        many[1].does(Doing::Body);
        let new = places.take(ip(2));
        assert!(is_evicted(&many[2]) && !is_evicted(&other) && !new.reserved);
        for seat in [&other, &new, &many[1]] {
            seat.does(Doing::Answer);
        }
        // Everybody is being answered: what is left is for operators.
        let last = places.take(ip(3));
        assert!(last.reserved && !is_evicted(&many[1]));
        drop(other);
        drop(last);
        assert!(!places.take(ip(3)).reserved);
    }
}
