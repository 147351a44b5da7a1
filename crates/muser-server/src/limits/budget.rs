//! Bytes that requests hold, counted against one budget.
//!
//! A client may hold as much as it leaves free. So one alone gets half of the
//! budget, two get a third each, and there is always something left for who
//! comes next.

use super::work::Client;
use crate::error::ApiError;
use axum::http::StatusCode;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The budget of all requests.
#[derive(Debug)]
pub(crate) struct Budget {
    total: u64,
    held: Mutex<Held>,
}

#[derive(Debug, Default)]
struct Held {
    all: u64,
    by: HashMap<Client, u64>,
}

/// Why bytes are not given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Refused {
    /// Even alone the request would not get them.
    Never { most: u64 },
    /// Others, or other requests of the client, hold them.
    Now,
}

impl Budget {
    /// Of this many bytes.
    pub(crate) fn new(total: u64) -> Arc<Self> {
        Arc::new(Self {
            total,
            held: Mutex::default(),
        })
    }

    fn held(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Bytes held by all.
    pub(crate) fn used(&self) -> u64 {
        self.held().all
    }

    /// The most that one request can get.
    pub(crate) fn most(&self) -> u64 {
        self.total / 2
    }

    /// A claim of this client's, of nothing yet.
    pub(crate) fn claim(self: &Arc<Self>, client: Client) -> Claim {
        Claim {
            budget: self.clone(),
            client,
            bytes: 0,
        }
    }

    fn take(&self, client: Client, own: u64, more: u64) -> Result<(), Refused> {
        if own.saturating_add(more) > self.most() {
            return Err(Refused::Never { most: self.most() });
        }
        let mut held = self.held();
        let of_client = held.by.get(&client).copied().unwrap_or(0) + more;
        let all = held.all + more;
        if all > self.total || of_client > self.total - all {
            return Err(Refused::Now);
        }
        held.all = all;
        held.by.insert(client, of_client);
        Ok(())
    }

    fn give_back(&self, client: Client, bytes: u64) {
        let mut held = self.held();
        held.all = held.all.saturating_sub(bytes);
        if let Some(of_client) = held.by.get_mut(&client) {
            *of_client = of_client.saturating_sub(bytes);
            if *of_client == 0 {
                held.by.remove(&client);
            }
        }
    }
}

/// What one request holds; given back when dropped.
#[derive(Debug)]
pub(crate) struct Claim {
    budget: Arc<Budget>,
    client: Client,
    bytes: u64,
}

impl Claim {
    /// Holds more. `what` names it in a refusal.
    ///
    /// # Errors
    /// 413 for what never fits, 429 for what does not fit now.
    pub(crate) fn grow(&mut self, more: u64, what: &str) -> Result<(), ApiError> {
        match self.budget.take(self.client, self.bytes, more) {
            Ok(()) => {
                self.bytes += more;
                Ok(())
            }
            Err(Refused::Never { most }) => {
                let found = self.bytes.saturating_add(more);
                let message = format!(
                    "{what}: expected at most {most} bytes of memory for a request, found {found}"
                );
                let status = StatusCode::PAYLOAD_TOO_LARGE;
                Err(ApiError::status(status, message).code("memory_limit"))
            }
            Err(Refused::Now) => {
                let message = format!(
                    "{what}: the memory for requests is in use; {more} bytes are not free for \
                     this client"
                );
                Err(ApiError::busy(message, "memory_busy", 1))
            }
        }
    }

    /// Holds this much and no more.
    pub(crate) fn shrink(&mut self, bytes: u64) {
        let back = self.bytes.saturating_sub(bytes);
        self.budget.give_back(self.client, back);
        self.bytes -= back;
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.budget.give_back(self.client, self.bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_holds_what_it_leaves_free() {
        let budget = Budget::new(1200);
        let mut first = budget.claim(Client::Key(1));
        first.grow(600, "x").unwrap();
        let mut more = budget.claim(Client::Key(1));
        assert_eq!(more.grow(1, "x").unwrap_err().status, 429);
        let mut second = budget.claim(Client::Key(2));
        second.grow(300, "x").unwrap();
        assert_eq!(second.grow(1, "x").unwrap_err().status, 429);
        assert_eq!(budget.used(), 900);
        drop(first);
        second.grow(300, "x").unwrap();
        assert_eq!(second.grow(1, "x").unwrap_err().status, 413);
        second.shrink(100);
        assert_eq!(budget.used(), 100);
        drop((second, more));
        assert_eq!(budget.used(), 0);
        assert!(budget.held().by.is_empty());
    }
}
