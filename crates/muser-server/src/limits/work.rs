//! Tracks for which client, until when and with how much memory an HTTP request is
//! worked on.

use super::budget::{Budget, Claim};
use crate::error::ApiError;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::Notify;

/// A client, whose requests share its part of the server: all requests with one API
/// key, or from one address if the server has no keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Client {
    /// The client with the API key of this number.
    Key(usize),
    /// The client at this IP address; of IPv6 only the first 64 bits count, the network
    /// that one host usually has to itself.
    Address(IpAddr),
}

impl Client {
    /// Returns the client at an IP address.
    pub(crate) fn at(address: IpAddr) -> Self {
        match address.to_canonical() {
            IpAddr::V6(v6) => {
                let bits = v6.to_bits() & !u128::from(u64::MAX);
                Self::Address(Ipv6Addr::from_bits(bits).into())
            }
            v4 @ IpAddr::V4(_) => Self::Address(v4),
        }
    }
}

/// The deadline, memory and client of one HTTP request, from its first byte to the end
/// of its answer. Code that works long for the request calls [`Work::check`] in
/// between.
#[derive(Debug)]
pub(crate) struct Work {
    pub(crate) client: Client,
    /// The time at which the first byte of the request arrived.
    pub(crate) started: Instant,
    /// Microseconds that the request may take, counted from its first byte.
    allowed: AtomicU64,
    /// Wakes whoever waits for the deadline when the allowed time is shortened.
    shortened: Notify,
    /// Whether the client is gone, so that nobody waits for the answer.
    gone: AtomicBool,
    /// The request's share of the memory for requests, given back when the request is
    /// dropped.
    claim: Mutex<Claim>,
}

impl Work {
    /// Makes the record of a request (its deadline, memory and client) whose first byte
    /// came at `started` and that may take `allowed`.
    pub(crate) fn new(
        client: Client,
        started: Instant,
        allowed: Duration,
        budget: &Arc<Budget>,
    ) -> Self {
        Self {
            claim: Mutex::new(budget.claim(client)),
            client,
            started,
            allowed: AtomicU64::new(micros(allowed)),
            shortened: Notify::new(),
            gone: AtomicBool::new(false),
        }
    }

    /// Returns the record of a request, for tests and fuzzing, that may take a day and
    /// half a TiB of memory.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(crate) fn unbounded() -> Self {
        let here = Client::at(std::net::Ipv4Addr::LOCALHOST.into());
        let budget = Budget::new(1 << 40);
        Self::new(here, Instant::now(), Duration::from_secs(86_400), &budget)
    }

    /// Returns the time by which the request's answer has to be complete.
    pub(crate) fn deadline(&self) -> Instant {
        self.started + Duration::from_micros(self.allowed.load(Ordering::Relaxed))
    }

    /// Lowers the time that the request may take, counted from its first byte; never
    /// raises it.
    pub(crate) fn shorten(&self, allowed: Duration) {
        self.allowed.fetch_min(micros(allowed), Ordering::Relaxed);
        self.shortened.notify_one();
    }

    /// Waits until the request's deadline has passed.
    pub(crate) async fn expired(&self) {
        loop {
            let deadline = self.deadline();
            if Instant::now() >= deadline {
                return;
            }
            let _ = tokio::time::timeout_at(deadline.into(), self.shortened.notified()).await;
        }
    }

    fn claim(&self) -> MutexGuard<'_, Claim> {
        self.claim.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Claims more bytes of the memory for requests; `what` names their use in a
    /// refusal.
    ///
    /// # Errors
    /// 413 for what never fits, 429 for what does not fit now.
    pub(crate) fn hold(&self, more: u64, what: &str) -> Result<(), ApiError> {
        self.claim().grow(more, what)
    }

    /// Gives memory of the request back until it holds no more than `bytes`.
    pub(crate) fn keep(&self, bytes: u64) {
        self.claim().shrink(bytes);
    }

    /// Records that the client is gone, so that work for the request stops.
    pub(crate) fn leave(&self) {
        self.gone.store(true, Ordering::Relaxed);
    }

    /// Returns whether work for the request must stop: its client is gone or its time
    /// is up.
    pub(crate) fn is_over(&self) -> bool {
        self.gone.load(Ordering::Relaxed) || Instant::now() >= self.deadline()
    }

    /// Fails if work for the request must stop: its client is gone or its time is up.
    ///
    /// # Errors
    /// 504.
    pub(crate) fn check(&self) -> Result<(), ApiError> {
        match self.is_over() {
            true => Err(ApiError::deadline()),
            false => Ok(()),
        }
    }
}

fn micros(time: Duration) -> u64 {
    // A `u64` holds the microseconds of half a million years; options bound durations
    // to far less.
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_is_counted_from_the_beginning_and_only_shortened() {
        let started = Instant::now();
        let work = Work::new(
            Client::Key(0),
            started,
            Duration::from_secs(100),
            &Budget::new(1),
        );
        work.shorten(Duration::from_secs(200));
        assert_eq!(work.deadline(), started + Duration::from_secs(100));
        work.shorten(Duration::from_secs(50));
        assert_eq!(work.deadline(), started + Duration::from_secs(50));
        work.check().unwrap();
        work.shorten(Duration::ZERO);
        assert!(work.check().is_err());
    }

    #[test]
    fn work_nobody_waits_for_is_over() {
        let work = Work::unbounded();
        assert!(!work.is_over());
        work.leave();
        assert!(work.is_over());
    }

    #[test]
    fn an_ipv6_client_is_its_network_and_a_mapped_address_is_ipv4() {
        let at = |text: &str| Client::at(text.parse().unwrap());
        assert_eq!(at("2001:db8::1"), at("2001:db8::ffff:2"));
        assert_ne!(at("2001:db8::1"), at("2001:db8:0:1::1"));
        assert_eq!(at("::ffff:192.0.2.1"), at("192.0.2.1"));
        assert_ne!(at("192.0.2.1"), at("192.0.2.2"));
    }
}
