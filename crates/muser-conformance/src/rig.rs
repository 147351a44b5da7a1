//! Buffers with guard rows, and the loop that judges cases.

use super::compare::{self, Failure, Fault, GUARD, POISON, Seen};
use super::report::Report;
use super::rng::Rng;
use muser_ops::oracle::Oracle;
use muser_ops::{Backend, Lane, OpError, pinned};

/// A backend's buffer with what it was filled with.
pub(super) struct Guarded<B: Backend> {
    label: &'static str,
    pub(super) buffer: B::Buffer,
    before: Vec<f32>,
    written: usize,
}

impl<B: Backend> Guarded<B> {
    /// An operand that is only read.
    pub(super) fn input(
        b: &B,
        label: &'static str,
        width: usize,
        values: &[f32],
    ) -> Result<Self, OpError> {
        Self::new(b, label, width, values.to_vec(), 0)
    }

    /// An operand that is read and overwritten.
    pub(super) fn in_place(
        b: &B,
        label: &'static str,
        width: usize,
        values: &[f32],
    ) -> Result<Self, OpError> {
        Self::new(b, label, width, values.to_vec(), values.len())
    }

    /// An operand that is only written.
    pub(super) fn output(
        b: &B,
        label: &'static str,
        rows: usize,
        width: usize,
    ) -> Result<Self, OpError> {
        Self::new(b, label, width, vec![POISON; rows * width], rows * width)
    }

    /// At least two guard rows and 64 guard values: more than any one store
    /// of a kernel.
    fn new(
        b: &B,
        label: &'static str,
        width: usize,
        mut before: Vec<f32>,
        written: usize,
    ) -> Result<Self, OpError> {
        let rows = before.len() / width + 2 + 64 / width;
        before.resize(rows * width, GUARD);
        let mut buffer = b.buffer(rows, width)?;
        b.write(&mut buffer, &before)?;
        Ok(Self {
            label,
            buffer,
            before,
            written,
        })
    }

    /// What the buffer holds now.
    pub(super) fn see(self, b: &B) -> Result<Seen, OpError> {
        let rows = self.before.len() / b.width(&self.buffer).max(1);
        let after = b.read(&self.buffer, rows)?.into_owned();
        Ok(Seen {
            label: self.label,
            before: self.before,
            after,
            written: self.written,
        })
    }
}

/// A cache of no layers for each run: for operations that read a plan and no
/// cache.
pub(super) fn caches<B: Backend>(b: &B, runs: usize) -> Vec<B::Kv> {
    (0..runs).map(|_| b.kv(&[])).collect()
}

/// One case: inputs and the operation on them, for any backend.
pub(super) trait Case {
    /// What identifies the case in a report.
    fn name(&self) -> String;
    /// Runs it; every operand is seen.
    fn run<B: Backend>(&self, b: &B) -> Result<Vec<Seen>, OpError>;
}

/// Names the case on standard error when the subject panics.
struct Announce<'a, C: Case>(&'a C, u64);

impl<C: Case> Drop for Announce<'_, C> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("conformance: {}, seed {}", self.0.name(), self.1);
        }
    }
}

/// The cases of one group on one backend.
pub(super) struct Suite<'a, B: Backend> {
    pub(super) subject: &'a B,
    pub(super) rng: Rng,
    pub(super) report: Report,
}

impl<B: Backend> Suite<'_, B> {
    /// Whether there is nothing more to learn: loops end here.
    pub(super) fn full(&self) -> bool {
        self.report.failures.len() >= Report::LIMIT
    }

    /// The case on the oracle of the subject's lane.
    pub(super) fn oracle(&self, case: &impl Case) -> Result<Vec<Seen>, OpError> {
        let info = self.subject.info();
        match info.lane {
            Lane::Strict => case.run(&Oracle),
            Lane::Pinned(profile) => case.run(&pinned::Oracle {
                profile,
                threads: info.threads,
            }),
        }
    }

    /// Whether the subject's lane promises the same bits at every width.
    pub(super) fn width_matters(&self) -> bool {
        self.subject.info().lane.width_matters()
    }

    /// Runs the case on the oracle and on the subject and compares.
    pub(super) fn case(&mut self, case: &impl Case) {
        match self.oracle(case) {
            Ok(want) => {
                let expected: Vec<&[f32]> = want
                    .iter()
                    .filter(|s| s.written > 0)
                    .map(|s| &s.after[..s.written])
                    .collect();
                self.case_against(case, &expected);
            }
            // A case that the definition refuses is a fault of the suite.
            Err(e) => self.fail(case, "oracle", 0, Fault::Refused(e.to_string())),
        }
    }

    /// Runs the case on the subject; `expected` has one entry for each operand
    /// that is written, in order.
    pub(super) fn case_against(&mut self, case: &impl Case, expected: &[&[f32]]) {
        self.report.cases += 1;
        let announce = Announce(case, self.report.seed);
        let seen = case.run(self.subject);
        drop(announce);
        let seen = match seen {
            Ok(seen) => seen,
            Err(e) => return self.fail(case, "case", 0, Fault::Refused(e.to_string())),
        };
        let written = seen.iter().filter(|s| s.written > 0).count();
        if written != expected.len() {
            let fault = Fault::Length {
                expected: expected.len(),
                found: written,
            };
            return self.fail(case, "operands", 0, fault);
        }
        let mut expected = expected.iter();
        for s in &seen {
            let want: &[f32] = match s.written {
                0 => &[],
                _ => expected.next().copied().unwrap_or_default(),
            };
            self.report.values += s.after.len();
            for (index, fault) in compare::compare(s, want) {
                if self.full() {
                    return;
                }
                self.fail(case, s.label, index, fault);
            }
        }
    }

    fn fail(&mut self, case: &impl Case, operand: &'static str, index: usize, fault: Fault) {
        self.report.failures.push(Failure {
            case: case.name(),
            operand,
            index,
            fault,
        });
    }
}
