//! Limits how many requests are read at once, and lets clients take turns.
//!
//! Reading a request (parsing its JSON, running its chat template, tokenizing, making
//! its grammar) may occupy a processor for a while. If as many requests as processors
//! were read at once, the running answers would get none.

use super::turns::Turns;
use super::work::Client;
use crate::error::ApiError;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::oneshot;

/// Admits a limited number of requests at once to the costly part of reading them; the
/// clients that wait take turns.
#[derive(Debug)]
pub(crate) struct Gate(Mutex<State>);

#[derive(Debug)]
struct State {
    free: usize,
    waiting: Turns<Client, oneshot::Sender<Pass>>,
}

/// Permission to read a request; when dropped it passes to the next client that waits
/// at the gate.
#[derive(Debug)]
pub(crate) struct Pass(Option<Arc<Gate>>);

impl Gate {
    /// Creates a gate that lets `places` requests at once through to the costly part of
    /// reading them.
    pub(crate) fn new(places: usize) -> Arc<Self> {
        Arc::new(Self(Mutex::new(State {
            free: places,
            waiting: Turns::new(),
        })))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits at the gate until it is this client's turn to have a request read.
    ///
    /// # Errors
    /// The server is going down.
    pub(crate) async fn enter(self: &Arc<Self>, client: Client) -> Result<Pass, ApiError> {
        let turn = {
            let mut state = self.state();
            // Removes requests that gave up waiting, so that the queue does not fill
            // with them.
            state.waiting.retain(|sender| !sender.is_closed());
            if state.free > 0 {
                state.free -= 1;
                return Ok(Pass(Some(self.clone())));
            }
            let (sender, turn) = oneshot::channel();
            state.waiting.push(client, sender);
            turn
        };
        turn.await.map_err(|_| ApiError::closing())
    }
}

impl Drop for Pass {
    fn drop(&mut self) {
        let Some(gate) = self.0.take() else {
            return;
        };
        loop {
            let next = {
                let mut state = gate.state();
                let next = state
                    .waiting
                    .pop(|sender| (!sender.is_closed()).then_some(0));
                if next.is_none() {
                    state.free += 1;
                }
                next
            };
            let Some(next) = next else {
                return;
            };
            match next.send(Pass(Some(gate.clone()))) {
                Ok(()) => return,
                // The receiver left just now: disarms the pass, which would otherwise
                // free its place a second time.
                Err(mut unused) => unused.0 = None,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run<F: Future>(work: F) -> F::Output {
        let runtime = tokio::runtime::Builder::new_current_thread().build();
        runtime.unwrap().block_on(work)
    }

    #[test]
    fn clients_take_turns_and_who_leaves_frees_nothing_twice() {
        run(async {
            let gate = Gate::new(1);
            let pass = gate.enter(Client::Key(1)).await.unwrap();
            let waits = |key| {
                let gate = gate.clone();
                tokio::spawn(async move { gate.enter(Client::Key(key)).await.unwrap() })
            };
            let (first, gone, other) = (waits(1), waits(1), waits(2));
            tokio::task::yield_now().await;
            gone.abort();
            tokio::task::yield_now().await;
            drop(pass);
            let pass = first.await.unwrap();
            assert!(!other.is_finished());
            drop(pass);
            drop(other.await.unwrap());
            assert_eq!(gate.state().free, 1);
        });
    }
}
