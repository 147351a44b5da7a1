//! For whom and until when a request is worked on.

use super::budget::{Budget, Claim};
use crate::error::ApiError;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::Notify;

/// Whose requests share: those of one key, or of one address where there are
/// no keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Client {
    /// The key's number.
    Key(usize),
    /// The peer's address; of IPv6 the network of 64 bits, which one host
    /// usually has for itself.
    Address(IpAddr),
}

impl Client {
    /// The client at an address.
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

/// One request's claim on the machine, from its first byte to the end of its
/// answer. Whatever takes time for it asks [`Work::check`] in between.
#[derive(Debug)]
pub(crate) struct Work {
    pub(crate) client: Client,
    /// When the first byte of the request came.
    pub(crate) started: Instant,
    /// Microseconds from then on that it may take.
    allowed: AtomicU64,
    /// Told when that changes.
    shortened: Notify,
    /// Nobody waits for it any more.
    gone: AtomicBool,
    /// What it holds of the memory for requests, until nothing of it is left.
    claim: Mutex<Claim>,
}

impl Work {
    /// A request that began at this time and may take so long.
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

    /// Work of a day.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(crate) fn unbounded() -> Self {
        let here = Client::at(std::net::Ipv4Addr::LOCALHOST.into());
        let budget = Budget::new(1 << 40);
        Self::new(here, Instant::now(), Duration::from_secs(86_400), &budget)
    }

    /// When it has to be done.
    pub(crate) fn deadline(&self) -> Instant {
        self.started + Duration::from_micros(self.allowed.load(Ordering::Relaxed))
    }

    /// Allows it no more than this, counted from its beginning.
    pub(crate) fn shorten(&self, allowed: Duration) {
        self.allowed.fetch_min(micros(allowed), Ordering::Relaxed);
        self.shortened.notify_one();
    }

    /// Waits until its time is up.
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

    /// Holds more memory; `what` names it in a refusal.
    ///
    /// # Errors
    /// 413 for what never fits, 429 for what does not fit now.
    pub(crate) fn hold(&self, more: u64, what: &str) -> Result<(), ApiError> {
        self.claim().grow(more, what)
    }

    /// Holds this much memory and no more.
    pub(crate) fn keep(&self, bytes: u64) {
        self.claim().shrink(bytes);
    }

    /// Tells that nobody waits for it any more.
    pub(crate) fn leave(&self) {
        self.gone.store(true, Ordering::Relaxed);
    }

    /// Whether to stop: its client is gone or its time is up.
    pub(crate) fn is_over(&self) -> bool {
        self.gone.load(Ordering::Relaxed) || Instant::now() >= self.deadline()
    }

    /// Refuses to go on with what is over.
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
    // Options bound durations to far below half a million years.
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
