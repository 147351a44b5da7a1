//! The team of threads that shares the tasks of one operation, with a low-latency
//! fork-join.
//!
//! A token of a small model takes half a millisecond and over a hundred dispatches, so a
//! dispatch must cost well under a microsecond. Workers spin between dispatches and join
//! a job through one atomic word.
//!
//! ```text
//! state:  epoch (48 bits) | open (1 bit) | workers inside (15 bits)
//!
//! leader  writes the job, then state = (epoch + 1, open, 0)
//! worker  sees an open epoch that it has not joined: CAS inside + 1,
//!         takes tasks until none is left, inside - 1
//! leader  takes tasks too; then clears open and waits for inside = 0
//! ```
//!
//! A worker joins only while the job is open. So nobody waits for a worker that the
//! system has descheduled, and such a worker cannot see a finished job. Tasks are taken
//! from a counter in runs of consecutive tasks, which get shorter as less work is left:
//! neighbouring tasks read neighbouring weights, and a kernel prefetches the bytes after
//! its own. Which thread computes a task varies; the result does not depend on it.
//!
//! A worker sleeps after about 200 µs without work; the leader wakes sleepers when it
//! opens a job. `unsafe` in this module: the job is borrowed from the leader's stack for
//! as long as it is open or a worker is inside.

use crate::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use crate::sync::thread::{self, JoinHandle, Thread};
use crate::sync::{Arc, Mutex, MutexGuard, UnsafeCell, hint};
use std::any::Any;
use std::io;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::PoisonError;
use std::time::{Duration, Instant};

/// The bit of the thread team's state word that says that the current job is open:
/// workers may join it.
const OPEN: u64 = 1 << 15;
/// The bits of the thread team's state word that count the workers inside the current
/// job.
const INSIDE: u64 = OPEN - 1;
/// The value that advances the epoch (the job's number) in the thread team's state word
/// by one.
const EPOCH: u64 = 1 << 16;
/// The largest number of threads in a team. It keeps the number of workers inside a job
/// below the bit `OPEN` of the state word.
pub(crate) const MAX_THREADS: usize = 1024;
/// The number of spins before a waiting thread of the team begins to yield its core.
/// Under loom a spin adds interleavings and tests nothing, so a worker yields once and
/// sleeps.
const SPINS: u32 = if cfg!(loom) { 0 } else { 2_000 };
/// The time that a worker thread without a job yields its core before it sleeps.
const PATIENCE: Duration = Duration::from_micros(if cfg!(loom) { 0 } else { 200 });

type Task<'a> = dyn Fn(usize) + Sync + 'a;

/// The current job of the thread team: a function and the number of its tasks.
struct Job {
    /// The function that runs the task of an index, with its lifetime erased by
    /// [`Team::run`].
    task: *const Task<'static>,
    count: usize,
}

struct Shared {
    state: AtomicU64,
    job: UnsafeCell<Job>,
    next: AtomicUsize,
    /// The number of threads in the team, the leader (the calling thread) included.
    threads: usize,
    sleepers: AtomicUsize,
    stop: AtomicBool,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

// SAFETY: `job` is written only by the leader, while no worker is inside and
// the state is not open; it is read only by workers inside. The state's
// release store and the workers' acquire CAS order the two. The rest is
// atomics and a mutex.
unsafe impl Sync for Shared {}
// SAFETY: the raw pointer in `job` is used under the same protocol from any
// thread; nothing in it is tied to the thread that made it.
unsafe impl Send for Shared {}

/// A team of threads that shares the tasks of a job: the leader, which is the calling
/// thread, and its workers.
pub(crate) struct Team {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
}

fn no_task(_: usize) {}

impl Team {
    /// Starts a team of `threads` threads, the calling thread included.
    pub(crate) fn new(threads: usize) -> io::Result<Self> {
        let threads = threads.clamp(1, MAX_THREADS);
        let shared = Arc::new(Shared {
            threads,
            state: AtomicU64::new(0),
            job: UnsafeCell::new(Job {
                task: &no_task,
                count: 0,
            }),
            next: AtomicUsize::new(0),
            sleepers: AtomicUsize::new(0),
            stop: AtomicBool::new(false),
            panic: Mutex::new(None),
        });
        let mut team = Self {
            shared,
            workers: Vec::new(),
        };
        for i in 1..threads {
            let shared = Arc::clone(&team.shared);
            let worker = thread::Builder::new().name(format!("muser-{i}"));
            team.workers.push(worker.spawn(move || work(&shared))?);
        }
        Ok(team)
    }

    /// Returns the number of threads in the team, the calling thread included.
    #[cfg(all(test, not(loom)))]
    fn threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// Calls `task(i)` exactly once for each `i < count`, shared among the team's
    /// threads, and returns when all calls have returned.
    ///
    /// # Panics
    /// If a task panics: with its panic, after the other threads have ended their tasks.
    /// Tasks that were not begun by then may not be called.
    pub(crate) fn run(&mut self, count: usize, task: &Task<'_>) {
        if count <= 1 || self.workers.is_empty() {
            (0..count).for_each(task);
            return;
        }
        let shared = &*self.shared;
        let task_static: *const Task<'static> =
            // SAFETY: the lifetime alone changes. The pointer is dereferenced only
            // by workers inside this epoch's job, and `Closed` below, dropped on
            // return and on unwinding, waits until none is.
            unsafe { std::mem::transmute::<*const Task<'_>, *const Task<'static>>(task) };
        let job = Job {
            task: task_static,
            count,
        };
        // SAFETY: the last job was closed and has nobody inside (`Closed`), and
        // `&mut self` means that no other leader is here.
        shared.job.with_mut(|place| unsafe { *place = job });
        // Drops the panic of a worker in an earlier job whose leader panicked as well.
        *lock(&shared.panic) = None;
        shared.next.store(0, Ordering::Relaxed);
        let epoch = (shared.state.load(Ordering::Relaxed) / EPOCH + 1) * EPOCH;
        // SeqCst orders this store with the load of `sleepers`: either the
        // leader sees the sleeper, or the sleeper sees the open job.
        shared.state.store(epoch | OPEN, Ordering::SeqCst);
        if shared.sleepers.load(Ordering::SeqCst) > 0 {
            self.workers
                .iter()
                .map(JoinHandle::thread)
                .for_each(Thread::unpark);
        }
        {
            let _closed = Closed(shared);
            take_tasks(shared, task, count);
        }
        // Not in one expression: the lock would be held, and poisoned, while the panic
        // is raised.
        let panic = lock(&shared.panic).take();
        if let Some(panic) = panic {
            resume_unwind(panic);
        }
    }
}

impl Drop for Team {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        for worker in self.workers.drain(..) {
            worker.thread().unpark();
            // A worker catches the panics of its tasks and has none of its own.
            let _ = worker.join();
        }
    }
}

/// A guard that, when dropped, closes the thread team's job and waits until no worker
/// is inside it, even if the leader (the calling thread) panics.
struct Closed<'a>(&'a Shared);

impl Drop for Closed<'_> {
    fn drop(&mut self) {
        // If the leader has panicked, workers must not take its remaining tasks.
        self.0.next.store(usize::MAX / 2, Ordering::Relaxed);
        self.0.state.fetch_and(!OPEN, Ordering::AcqRel);
        let mut spins = 0;
        while self.0.state.load(Ordering::Acquire) & INSIDE != 0 {
            wait(&mut spins);
        }
    }
}

/// Waits for a moment in a busy loop: spins the first times, then yields the core.
fn wait(spins: &mut u32) {
    if *spins < SPINS {
        *spins += 1;
        hint::spin_loop();
    } else {
        thread::yield_now();
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Takes tasks of the thread team's job and runs them until none is left.
fn take_tasks(shared: &Shared, task: &Task<'_>, count: usize) {
    while let Some(run) = take_run(shared, count) {
        run.for_each(task);
    }
}

/// Takes a run of consecutive tasks from the thread team's job: a quarter of a thread's
/// fair share of the remaining tasks, at least one.
fn take_run(shared: &Shared, count: usize) -> Option<Range<usize>> {
    let mut first = shared.next.load(Ordering::Relaxed);
    while first < count {
        let run = ((count - first) / (4 * shared.threads)).max(1);
        let taken = shared.next.compare_exchange_weak(
            first,
            first + run,
            Ordering::Relaxed,
            Ordering::Relaxed,
        );
        match taken {
            Ok(_) => return Some(first..first + run),
            Err(now) => first = now,
        }
    }
    None
}

/// Runs the main loop of a worker thread: joins one job of the team after the other,
/// until the team ends.
fn work(shared: &Shared) {
    let mut joined = 0;
    loop {
        let Some(epoch) = next_epoch(shared, joined) else {
            return;
        };
        joined = epoch;
        let (task, count) = shared.job.with(|job| {
            // SAFETY: this worker is inside an open job: the leader neither
            // rewrites the job nor lets the task go before `inside` is zero.
            unsafe { (&*(*job).task, (*job).count) }
        });
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| take_tasks(shared, task, count))) {
            lock(&shared.panic).get_or_insert(panic);
        }
        shared.state.fetch_sub(1, Ordering::Release);
    }
}

/// Waits for an open job of the thread team with another epoch (number) than `joined` and
/// enters it. Returns `None` when the team ends.
fn next_epoch(shared: &Shared, joined: u64) -> Option<u64> {
    let mut spins = 0;
    let mut since = None;
    loop {
        let state = shared.state.load(Ordering::Acquire);
        let epoch = state / EPOCH;
        if state & OPEN != 0 && epoch != joined {
            let entered = shared.state.compare_exchange_weak(
                state,
                state + 1,
                Ordering::AcqRel,
                Ordering::Relaxed,
            );
            if entered.is_ok() {
                return Some(epoch);
            }
            continue;
        }
        if shared.stop.load(Ordering::Relaxed) {
            return None;
        }
        wait(&mut spins);
        if spins >= SPINS && since.get_or_insert_with(Instant::now).elapsed() >= PATIENCE {
            sleep(shared, joined);
            (spins, since) = (0, None);
        }
    }
}

/// Puts a worker thread of the team to sleep, unless there is an open job that it has
/// not joined, or the team ends.
fn sleep(shared: &Shared, joined: u64) {
    shared.sleepers.fetch_add(1, Ordering::SeqCst);
    let state = shared.state.load(Ordering::SeqCst);
    let idle = state & OPEN == 0 || state / EPOCH == joined;
    if idle && !shared.stop.load(Ordering::SeqCst) {
        thread::park();
    }
    shared.sleepers.fetch_sub(1, Ordering::SeqCst);
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn every_task_runs_once() {
        for threads in [1, 2, 3, 7] {
            let mut team = Team::new(threads).unwrap();
            assert_eq!(team.threads(), threads);
            for count in [0, 1, 2, 3, 100, 1000] {
                let hits: Vec<AtomicUsize> = (0..count).map(|_| AtomicUsize::new(0)).collect();
                team.run(count, &|i| {
                    hits[i].fetch_add(1, Ordering::Relaxed);
                });
                assert!(hits.iter().all(|h| h.load(Ordering::Relaxed) == 1));
            }
        }
    }

    #[test]
    fn every_task_runs_in_many_small_jobs_between_which_workers_sleep() {
        let mut team = Team::new(3).unwrap();
        let sum = AtomicUsize::new(0);
        for round in 0..3_000 {
            team.run(5, &|i| {
                sum.fetch_add(i, Ordering::Relaxed);
            });
            if round % 500 == 0 {
                thread::sleep(Duration::from_millis(2)); // the workers go to sleep
            }
        }
        assert_eq!(sum.into_inner(), 3_000 * 10);
    }

    #[test]
    fn a_panic_is_raised_and_the_team_stays_usable() {
        let mut team = Team::new(2).unwrap();
        for bad in [0, 50, 99] {
            let raised = catch_unwind(AssertUnwindSafe(|| {
                team.run(100, &|i| assert!(i != bad, "task {i}"));
            }));
            let text = *raised.unwrap_err().downcast::<String>().unwrap();
            assert_eq!(text, format!("task {bad}"));
            let count = AtomicUsize::new(0);
            team.run(10, &|_| {
                count.fetch_add(1, Ordering::Relaxed);
            });
            assert_eq!(count.into_inner(), 10);
        }
    }

    #[test]
    fn a_job_does_not_raise_the_panics_of_an_earlier_job() {
        let mut team = Team::new(2).unwrap();
        let inside = AtomicUsize::new(0);
        let raised = catch_unwind(AssertUnwindSafe(|| {
            team.run(2, &|i| {
                // Both threads are in a task before either panics.
                inside.fetch_add(1, Ordering::AcqRel);
                while inside.load(Ordering::Acquire) < 2 {
                    thread::yield_now();
                }
                panic!("task {i}");
            });
        }));
        assert!(raised.is_err());
        let count = AtomicUsize::new(0);
        team.run(10, &|_| {
            count.fetch_add(1, Ordering::Relaxed);
        });
        assert_eq!(count.into_inner(), 10);
    }
}

/// Tests of the thread team under loom, in every order of its threads' steps.
#[cfg(all(test, loom))]
mod model {
    use super::*;

    /// Runs `count` tasks on a thread team and checks that each ran once. The counts are
    /// relaxed: the leader sees them all only if `run` returned after the calls did.
    fn each_once(team: &mut Team, count: usize) {
        let hits: Vec<AtomicUsize> = (0..count).map(|_| AtomicUsize::new(0)).collect();
        team.run(count, &|i| {
            hits[i].fetch_add(1, Ordering::Relaxed);
        });
        assert!(hits.iter().all(|h| h.load(Ordering::Relaxed) == 1));
    }

    #[test]
    fn each_task_of_two_jobs_runs_once_and_before_the_return() {
        loom::model(|| {
            let mut team = Team::new(2).unwrap();
            each_once(&mut team, 3);
            each_once(&mut team, 2);
        });
    }

    #[test]
    fn two_workers_share_a_job() {
        loom::model(|| each_once(&mut Team::new(3).unwrap(), 3));
    }

    #[test]
    fn a_panic_of_a_worker_is_raised_and_the_team_lives_on() {
        let raised = std::sync::atomic::AtomicBool::new(false);
        let raised = std::sync::Arc::new(raised);
        let seen = raised.clone();
        loom::model(move || {
            let mut team = Team::new(2).unwrap();
            let leader = thread::current().id();
            let panicked = std::sync::atomic::AtomicBool::new(false);
            let ran = catch_unwind(AssertUnwindSafe(|| {
                team.run(2, &|i| {
                    if thread::current().id() != leader {
                        panicked.store(true, std::sync::atomic::Ordering::Relaxed);
                        // Raised without the panic hook, which would print every time.
                        resume_unwind(Box::new(i));
                    }
                });
            }));
            let panicked = panicked.into_inner();
            assert_eq!(ran.is_err(), panicked);
            if panicked {
                seen.store(true, std::sync::atomic::Ordering::Relaxed);
            }
            each_once(&mut team, 2);
        });
        // If no run raised the panic, loom never gave the worker a task.
        assert!(raised.load(std::sync::atomic::Ordering::Relaxed));
    }

    #[test]
    fn a_panic_of_the_leader_waits_for_the_workers() {
        loom::model(|| {
            let mut team = Team::new(2).unwrap();
            let leader = thread::current().id();
            let (begun, ended) = (AtomicUsize::new(0), AtomicUsize::new(0));
            let ran = catch_unwind(AssertUnwindSafe(|| {
                team.run(2, &|i| {
                    if thread::current().id() == leader {
                        resume_unwind(Box::new(i));
                    }
                    begun.fetch_add(1, Ordering::Relaxed);
                    ended.fetch_add(1, Ordering::Relaxed);
                });
            }));
            let (begun, ended) = (begun.load(Ordering::Relaxed), ended.load(Ordering::Relaxed));
            assert_eq!(begun, ended);
            // Either the leader had a task, or the worker had both.
            assert!(ran.is_err() || ended == 2);
        });
    }

    #[test]
    fn drop_joins_workers_that_wait_or_sleep() {
        loom::model(|| {
            let team = Team::new(2).unwrap();
            let mut shared = Arc::clone(&team.shared);
            drop(team);
            // The worker thread has ended and dropped its reference to the shared state.
            assert!(Arc::get_mut(&mut shared).is_some());
        });
    }
}
