//! [`Profiler`]: the hook that times each operation of a backend and counts its traffic.

use super::{Counts, Event, Op, Profiled};
use crate::hook::{Call, Hook, Hooked};
use crate::{Attention, Backend, Choice, OpError, Plan, Stage, Subset};
use std::borrow::Cow;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// The hook of a [`Profiled`] backend, which measures its operations, with the record of
/// those measured.
///
/// The record has one current stage (part of the forward pass) for all callers, so only
/// one forward pass at a time can be measured.
pub struct Profiler {
    origin: Instant,
    record: Mutex<Record>,
}

#[derive(Default)]
struct Record {
    stage: Option<Stage>,
    events: Vec<Event>,
}

impl<B: Backend> Profiled<B> {
    /// Wraps a backend so that its operations are measured. Others may go on using the
    /// backend itself; their operations are not measured.
    pub fn new(inner: Arc<B>) -> Self {
        let hook = Profiler {
            origin: Instant::now(),
            record: Mutex::default(),
        };
        Hooked::over(inner, hook)
    }

    /// Removes and returns the records of operations measured since the last call, in
    /// order.
    pub fn take(&self) -> Vec<Event> {
        // Draining keeps the vector's memory, so that measuring the next pass does not
        // include the page faults of new memory.
        self.hook().record().events.drain(..).collect()
    }
}

impl Profiler {
    fn record(&self) -> MutexGuard<'_, Record> {
        // The lock is held for assignments and pushes only: the record is whole even if
        // one of them panicked.
        self.record.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs an operation of the backend, measures its time and, if it succeeds, records
    /// it.
    fn timed<T>(
        &self,
        op: Op,
        counts: Counts,
        matrices: Vec<Arc<str>>,
        run: impl FnOnce() -> Result<T, OpError>,
    ) -> Result<T, OpError> {
        let start = Instant::now();
        let done = run()?;
        let time = start.elapsed();
        let mut record = self.record();
        let event = Event {
            stage: record.stage,
            op,
            matrices,
            start: start.duration_since(self.origin),
            time,
            counts,
        };
        record.events.push(event);
        Ok(done)
    }
}

impl<B: Backend> Hook<B> for Profiler {
    fn mark(&self, stage: Stage) {
        self.record().stage = Some(stage);
    }

    fn call(&self, backend: &B, mut call: Call<'_, '_, B>) -> Result<(), OpError> {
        let (op, counts) = (call.op(), counts(backend, &call));
        let matrices = match &call {
            Call::Project { set, which, .. } => {
                let all = backend.matrices(set);
                all.into_iter()
                    .skip(which.start)
                    .take(which.len())
                    .map(|m| m.name)
                    .collect()
            }
            Call::Embed { table, .. } => vec![backend.table(table).name],
            Call::Write { .. }
            | Call::CopyRows { .. }
            | Call::Gather { .. }
            | Call::RmsNorm { .. }
            | Call::HeadNorm { .. }
            | Call::AddRmsNorm { .. }
            | Call::Add { .. }
            | Call::Rope { .. }
            | Call::Attention { .. }
            | Call::SigmoidGate { .. }
            | Call::SiluProduct { .. }
            | Call::SoftCap { .. } => Vec::new(),
        };
        self.timed(op, counts, matrices, || call.run(backend))
    }

    fn read<'a>(
        &self,
        backend: &B,
        buffer: &'a B::Buffer,
        rows: usize,
    ) -> Result<Cow<'a, [f32]>, OpError> {
        let counts = Counts {
            dispatches: 0,
            ..Counts::values(2 * rows * backend.width(buffer))
        };
        let run = || backend.read(buffer, rows);
        self.timed(Op::Read, counts, Vec::new(), run)
    }

    fn choose(
        &self,
        backend: &B,
        logits: &B::Buffer,
        choices: &mut [(usize, &mut Choice<'_>)],
    ) -> Result<(), OpError> {
        let counts = Counts::values(choices.len() * backend.width(logits));
        let run = || backend.choose(logits, choices);
        self.timed(Op::Choose, counts, Vec::new(), run)
    }
}

/// Counts the bytes that an operation of the backend moves and the arithmetic operations
/// that it computes.
fn counts<B: Backend>(b: &B, call: &Call<'_, '_, B>) -> Counts {
    let plan = |batch| b.plan(batch);
    match *call {
        Call::Write { values, .. } => Counts {
            dispatches: 0,
            ..Counts::values(2 * values.len())
        },
        Call::CopyRows { rows, src, .. } => Counts::values(2 * rows * b.width(src)),
        Call::Gather { batch, src, .. } => {
            Counts::values(2 * plan(batch).count(Subset::Kept) * b.width(src))
        }
        Call::Embed { batch, table, .. } => {
            let (rows, table) = (plan(batch).tokens().len(), b.table(table));
            Counts {
                weight_bytes: rows as u64 * (table.bytes / table.rows as u64),
                ..Counts::values(rows * table.cols)
            }
        }
        Call::Project {
            rows,
            set,
            ref which,
            ..
        } => {
            let all = b.matrices(set);
            let set = all.get(which.clone()).unwrap_or_default();
            let outputs: usize = set.iter().map(|w| w.rows).sum();
            let inputs = set.first().map_or(0, |w| w.cols);
            let weights: u64 = set.iter().map(|w| w.rows as u64 * w.cols as u64).sum();
            Counts {
                sets: 1,
                dispatches: set.len() as u64,
                weight_bytes: set.iter().map(|w| w.bytes).sum(),
                flops: 2 * rows as u64 * weights,
                ..Counts::values(rows * (inputs + outputs))
            }
        }
        Call::RmsNorm {
            rows, x, weight, ..
        } => {
            let len = weight.map_or(0, |w| b.vector_len(w));
            Counts::values(2 * rows * b.width(x)).with_vector(len)
        }
        Call::HeadNorm {
            rows,
            ref x,
            weight,
            ..
        } => Counts::values(2 * rows * b.width(x)).with_vector(b.vector_len(weight)),
        Call::AddRmsNorm {
            rows, y, weight, ..
        } => Counts::values(3 * rows * b.width(y)).with_vector(b.vector_len(weight)),
        Call::Add { rows, y, .. } => Counts::values(3 * rows * b.width(y)),
        Call::Rope {
            batch,
            subset,
            ref x,
            ..
        } => Counts::values(2 * plan(batch).count(subset) * b.width(x)),
        Call::Attention {
            ref batch,
            desc,
            subset,
            ..
        } => attention(b.plan(batch), desc, subset),
        Call::SigmoidGate { rows, gate: y, .. } | Call::SiluProduct { rows, up: y, .. } => {
            Counts::values(3 * rows * b.width(y))
        }
        Call::SoftCap { rows, ref x, .. } => Counts::values(2 * rows * b.width(x)),
    }
}

/// Counts the bytes and arithmetic operations of attention: it stores K and V of all
/// rows, and reads the positions that are visible to the rows of the subset.
fn attention(plan: &Plan, desc: &Attention, subset: Subset) -> Counts {
    let (q, kv) = (desc.heads * desc.head_dim, desc.kv_heads * desc.head_dim);
    let position_bytes = (2 * kv * size_of::<u16>()) as u64;
    let (mut pairs, mut read) = (0u64, 0u64);
    for span in plan.spans(subset).filter(|span| span.rows > 0) {
        let end = span.first + span.rows;
        let seen = |p: usize| (p + 1 - desc.first_visible(p)) as u64;
        pairs += (span.first..end).map(seen).sum::<u64>();
        read += (end - desc.first_visible(span.first)) as u64;
    }
    let (stored, attended) = (plan.count(Subset::All), plan.count(subset));
    Counts {
        kv_written: stored as u64 * position_bytes,
        kv_read: read * position_bytes,
        flops: 4 * pairs * q as u64,
        ..Counts::values(2 * (stored * kv + attended * q))
    }
}
