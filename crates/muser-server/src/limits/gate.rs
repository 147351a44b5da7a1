//! A gate before what takes a processor: few at once, clients in turn.
//!
//! Reading a request (its JSON, its template, its tokens, its grammar) may take
//! a processor for a while. As many at once as there are processors would leave
//! the answers that run none.

use super::turns::Turns;
use super::work::Client;
use crate::error::ApiError;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::oneshot;

/// The gate.
#[derive(Debug)]
pub(crate) struct Gate(Mutex<State>);

#[derive(Debug)]
struct State {
    free: usize,
    waiting: Turns<Client, oneshot::Sender<Pass>>,
}

/// Leave to work; the next one's when dropped.
#[derive(Debug)]
pub(crate) struct Pass(Option<Arc<Gate>>);

impl Gate {
    /// So many at once.
    pub(crate) fn new(places: usize) -> Arc<Self> {
        Arc::new(Self(Mutex::new(State {
            free: places,
            waiting: Turns::new(),
        })))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for this client's turn.
    ///
    /// # Errors
    /// The server is going down.
    pub(crate) async fn enter(self: &Arc<Self>, client: Client) -> Result<Pass, ApiError> {
        let turn = {
            let mut state = self.state();
            // Whoever gave up waiting must not be what the queue consists of.
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
                // It left just now: its pass is not to come back here.
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
