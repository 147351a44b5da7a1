//! Tries every grammar in a worker process before the server itself compiles it.
//!
//! Limits on schemas cannot rule out that the grammar library recurses, loops or
//! allocates without bound; in a worker process that harms no other client. Each client
//! has at most one grammar on trial, and clients take turns, so a grammar that costs a
//! worker its time, or kills it, delays others by one trial at most.

use super::vocabulary::Vocabulary;
use super::worker::{FITS, READY, REFUSED, TOO_LONG, read_frame, settings, write_frame};
use crate::limits::GrammarLimits;
use crate::limits::work::Client;
use std::collections::VecDeque;
use std::ffi::OsString;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::oneshot;

/// The longest time that a new worker process may take to read the model's vocabulary.
const START: Duration = Duration::from_secs(60);
/// How often the server checks whether a running trial of a grammar was cancelled or is
/// too late.
const TICK: Duration = Duration::from_millis(20);
/// How many times a grammar's limit of CPU time may pass on the clock before the worker
/// process is given up: the machine may be busy, or the worker may hang.
const PATIENCE: u32 = 5;

/// The result of trying a grammar in a worker process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// The worker process compiled the grammar and computed its first token masks.
    Fits,
    /// The grammar library refused the grammar, for this reason.
    Refused(String),
    /// Compiling the grammar took more time than its limit.
    TooLong,
    /// The worker process died, which means that its stack or its memory ran out.
    TooMuch,
    /// No worker process could be started, for this reason.
    NoWorker(String),
    /// The trial of a grammar was cancelled: the request is gone, or the server closes.
    Left,
}

/// A grammar that waits for its trial in a worker process, with its client and the
/// channel for the result.
struct Ticket {
    client: Client,
    lark: Arc<str>,
    reply: oneshot::Sender<Verdict>,
}

#[derive(Default)]
struct State {
    queue: VecDeque<Ticket>,
    /// The clients whose grammars are on trial now.
    running: Vec<Client>,
    /// The clients whose grammars were tried of late, the latest last.
    served: VecDeque<Client>,
    closed: bool,
}

/// The number of clients of which the queue of grammars remembers when they last had a
/// turn.
const SERVED: usize = 256;

impl State {
    /// Removes from the queue the waiting grammar whose turn it is, and returns it:
    /// among clients without a grammar on trial, that of the client served longest ago.
    fn turn(&mut self) -> Option<Ticket> {
        let last = |client: Client| self.served.iter().position(|&c| c == client);
        let free = self.queue.iter().enumerate();
        let free = free.filter(|(_, t)| !self.running.contains(&t.client));
        let (at, _) = free.min_by_key(|(at, t)| (last(t.client).map_or(0, |n| n + 1), *at))?;
        let ticket = self.queue.remove(at)?;
        self.running.push(ticket.client);
        self.served.retain(|&c| c != ticket.client);
        self.served.push_back(ticket.client);
        if self.served.len() > SERVED {
            self.served.pop_front();
        }
        Some(ticket)
    }
}

struct Shared {
    command: Vec<OsString>,
    limits: GrammarLimits,
    vocabulary: Vec<u8>,
    state: Mutex<State>,
    wake: Condvar,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for the next grammar to try; returns `None` once the server closes.
    fn next(&self) -> Option<Ticket> {
        let mut state = self.state();
        loop {
            if state.closed {
                return None;
            }
            state.queue.retain(|ticket| !ticket.reply.is_closed());
            if let Some(ticket) = state.turn() {
                return Some(ticket);
            }
            let waited = self.wake.wait(state);
            state = waited.unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn done(&self, client: Client) {
        let mut state = self.state();
        if let Some(at) = state.running.iter().position(|&c| c == client) {
            state.running.swap_remove(at);
        }
        drop(state);
        self.wake.notify_all();
    }
}

/// The queue of grammars that wait for a trial, and the threads that try them in worker
/// processes.
pub(crate) struct Quarantine(Arc<Shared>);

impl Quarantine {
    /// Starts the threads that run one worker process each; a process starts with its
    /// thread's first grammar.
    pub(super) fn new(
        command: Vec<OsString>,
        limits: &GrammarLimits,
        vocabulary: &Vocabulary,
    ) -> std::io::Result<Self> {
        let shared = Arc::new(Shared {
            command,
            limits: limits.clone(),
            vocabulary: vocabulary.to_bytes(),
            state: Mutex::default(),
            wake: Condvar::new(),
        });
        let this = Self(shared.clone());
        for _ in 0..limits.workers.max(1) {
            let shared = shared.clone();
            let thread = std::thread::Builder::new().name("grammar".into());
            thread.spawn(move || keep(&shared))?;
        }
        Ok(this)
    }

    /// Queues a grammar for its trial in a worker process and returns where the result
    /// will come. Dropping that receiver cancels the trial.
    pub(super) fn verdict(&self, client: Client, lark: Arc<str>) -> oneshot::Receiver<Verdict> {
        let (reply, receiver) = oneshot::channel();
        self.0.state().queue.push_back(Ticket {
            client,
            lark,
            reply,
        });
        self.0.wake.notify_all();
        receiver
    }
}

impl Drop for Quarantine {
    fn drop(&mut self) {
        self.0.state().closed = true;
        self.0.wake.notify_all();
    }
}

/// Runs one thread of the trials: takes waiting grammars in turn and tries each in this
/// thread's own worker process.
fn keep(shared: &Shared) {
    let mut worker: Option<Worker> = None;
    while let Some(mut ticket) = shared.next() {
        let verdict = attempt(shared, &mut worker, &mut ticket);
        let client = ticket.client;
        // Whoever asked may have left; then nobody needs the verdict.
        let _ = ticket.reply.send(verdict);
        shared.done(client);
    }
}

fn attempt(shared: &Shared, worker: &mut Option<Worker>, ticket: &mut Ticket) -> Verdict {
    let mut running = match worker.take() {
        Some(running) => running,
        None => match Worker::start(shared) {
            Ok(started) => started,
            Err(e) => {
                tracing::error!(error = %e, "no process to compile grammars");
                return Verdict::NoWorker(e.to_string());
            }
        },
    };
    let verdict = running.attempt(shared, ticket);
    match &verdict {
        Verdict::Fits | Verdict::Refused(_) => *worker = Some(running),
        Verdict::TooLong | Verdict::TooMuch | Verdict::NoWorker(_) | Verdict::Left => {
            tracing::warn!(?verdict, "a process that compiles grammars is replaced");
        }
    }
    verdict
}

/// A running worker process, which is killed when this is dropped.
struct Worker {
    child: Child,
    input: ChildStdin,
    answers: Receiver<Vec<u8>>,
}

impl Drop for Worker {
    fn drop(&mut self) {
        // Errors are ignored: the process may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Worker {
    fn start(shared: &Shared) -> std::io::Result<Self> {
        let missing = || std::io::Error::other("there is no command line");
        let (program, arguments) = shared.command.split_first().ok_or_else(missing)?;
        let mut child = Command::new(program)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()?;
        let pipes = (child.stdin.take(), child.stdout.take());
        let (Some(input), Some(mut output)) = pipes else {
            return Err(std::io::Error::other("the pipes are missing"));
        };
        let (sender, answers) = channel();
        let mut worker = Self {
            child,
            input,
            answers,
        };
        let thread = std::thread::Builder::new().name("grammar-read".into());
        thread.spawn(move || {
            // The loop ends when the worker process closes its output.
            while let Ok(Some(frame)) = read_frame(&mut output) {
                if sender.send(frame).is_err() {
                    return;
                }
            }
        })?;
        write_frame(&mut worker.input, &settings(&shared.limits))?;
        write_frame(&mut worker.input, &shared.vocabulary)?;
        match worker.answers.recv_timeout(START) {
            Ok(frame) if frame == [READY] => Ok(worker),
            _ => Err(std::io::Error::other("it does not take the vocabulary")),
        }
    }

    fn attempt(&mut self, shared: &Shared, ticket: &Ticket) -> Verdict {
        if write_frame(&mut self.input, ticket.lark.as_bytes()).is_err() {
            return Verdict::TooMuch;
        }
        let until = Instant::now() + shared.limits.time * PATIENCE;
        loop {
            match self.answers.recv_timeout(TICK) {
                Ok(frame) => return verdict(&frame),
                Err(RecvTimeoutError::Disconnected) => return Verdict::TooMuch,
                Err(RecvTimeoutError::Timeout) if ticket.reply.is_closed() => {
                    return Verdict::Left;
                }
                Err(RecvTimeoutError::Timeout) if Instant::now() >= until => {
                    return Verdict::TooLong;
                }
                Err(RecvTimeoutError::Timeout) => {}
            }
            if shared.state().closed {
                return Verdict::Left;
            }
        }
    }
}

fn verdict(frame: &[u8]) -> Verdict {
    match frame.split_first() {
        Some((&FITS, _)) => Verdict::Fits,
        Some((&REFUSED, reason)) => Verdict::Refused(String::from_utf8_lossy(reason).into_owned()),
        Some((&TOO_LONG, _)) => Verdict::TooLong,
        Some(_) | None => Verdict::TooMuch,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_take_turns() {
        let mut state = State::default();
        let mut receivers = Vec::new();
        for client in [1, 1, 1, 3, 3, 2].map(Client::Key) {
            let (reply, receiver) = oneshot::channel();
            receivers.push(receiver);
            state.queue.push_back(Ticket {
                client,
                lark: "".into(),
                reply,
            });
        }
        let mut order = Vec::new();
        // As with two workers: once two grammars are on trial, the older trial ends.
        while let Some(ticket) = state.turn() {
            order.push(ticket.client);
            if state.running.len() == 2 {
                state.running.remove(0);
            }
        }
        assert_eq!(order, [1, 3, 2, 1, 3, 1].map(Client::Key));
    }

    /// Starts the trials of grammars with one worker process that accepts the
    /// vocabulary and then never answers.
    #[cfg(unix)]
    fn hanging(time: Duration) -> Quarantine {
        let command = [
            "sh",
            "-c",
            "printf '\\001\\000\\000\\000\\000'; exec 3>&1 cat >/dev/null",
        ];
        let limits = GrammarLimits {
            workers: 1,
            time,
            ..GrammarLimits::default()
        };
        let vocabulary = Vocabulary::new(vec![0], vec![b"<end>".to_vec()]);
        Quarantine::new(command.map(OsString::from).into(), &limits, &vocabulary).unwrap()
    }

    #[test]
    #[cfg(unix)]
    fn a_worker_that_hangs_is_given_up() {
        let quarantine = hanging(Duration::from_millis(1));
        for client in [1, 2].map(Client::Key) {
            let verdict = quarantine.verdict(client, "start: \"a\"".into());
            assert_eq!(verdict.blocking_recv(), Ok(Verdict::TooLong));
        }
    }

    /// Checks that a request that leaves frees the only worker process for the next
    /// one's grammar, though its own grammar would keep the process for an hour.
    #[test]
    #[cfg(unix)]
    fn who_leaves_frees_the_worker_for_others() {
        let quarantine = hanging(Duration::from_secs(3600));
        let leaves = quarantine.verdict(Client::Key(1), "start: \"a\"".into());
        let running = || quarantine.0.state().running.clone();
        while running().is_empty() {
            std::thread::sleep(TICK);
        }
        let waits = quarantine.verdict(Client::Key(2), "start: \"b\"".into());
        assert_eq!(running(), [Client::Key(1)]);
        drop(leaves);
        while running() != [Client::Key(2)] {
            std::thread::sleep(TICK);
        }
        drop(waits);
    }
}
