//! Counts the bytes of memory that requests hold against one budget.
//!
//! A client may hold at most as many bytes as are then left free. So one client alone
//! gets half of the budget, two get a third each, and something is always left for the
//! next client.

use super::work::Client;
use crate::error::ApiError;
use axum::http::StatusCode;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The memory that all requests together may hold, and what each client holds of it.
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

/// Why a request does not get the memory that it asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Refused {
    /// The request asks for more memory than one request can ever get.
    Never { most: u64 },
    /// Other requests, of this client or of others, hold the memory now.
    Now,
}

impl Budget {
    /// Creates a budget of this many bytes for the memory of all requests.
    pub(crate) fn new(total: u64) -> Arc<Self> {
        Arc::new(Self {
            total,
            held: Mutex::default(),
        })
    }

    fn held(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the bytes of memory that all requests hold now.
    pub(crate) fn used(&self) -> u64 {
        self.held().all
    }

    /// Returns the most bytes of memory that one request can get: half of the budget.
    pub(crate) fn most(&self) -> u64 {
        self.total / 2
    }

    /// Creates the claim of one request of this client, which holds no memory yet.
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

/// The bytes of memory that one request holds of the budget; given back when dropped.
#[derive(Debug)]
pub(crate) struct Claim {
    budget: Arc<Budget>,
    client: Client,
    bytes: u64,
}

impl Claim {
    /// Takes more bytes of memory from the budget for a request; `what` names their use
    /// in a refusal.
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

    /// Gives memory of the request back to the budget until it holds no more than
    /// `bytes`.
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
