//! Buffers with guard rows, and the comparison of a case on both backends.

use super::compare::{self, Failure, GUARD, Mismatch, POISON, Seen};
use super::report::Report;
use super::rng::Rng;
use muser_ops::oracle::Oracle;
use muser_ops::{Backend, Lane, OpError, pinned};

/// A buffer of a backend, with the values that it was filled with.
pub(super) struct Guarded<B: Backend> {
    label: &'static str,
    pub(super) buffer: B::Buffer,
    before: Vec<f32>,
    written: usize,
}

impl<B: Backend> Guarded<B> {
    /// Creates an operand that the operation only reads.
    pub(super) fn input(
        b: &B,
        label: &'static str,
        width: usize,
        values: &[f32],
    ) -> Result<Self, OpError> {
        Self::new(b, label, width, values.to_vec(), 0)
    }

    /// Creates an operand that the operation reads and overwrites.
    pub(super) fn in_place(
        b: &B,
        label: &'static str,
        width: usize,
        values: &[f32],
    ) -> Result<Self, OpError> {
        Self::new(b, label, width, values.to_vec(), values.len())
    }

    /// Creates an operand that the operation only writes.
    pub(super) fn output(
        b: &B,
        label: &'static str,
        rows: usize,
        width: usize,
    ) -> Result<Self, OpError> {
        Self::new(b, label, width, vec![POISON; rows * width], rows * width)
    }

    /// Adds at least two guard rows and 64 guard values: more than one store of
    /// a kernel writes.
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

    /// Reads the buffer back.
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

/// Creates a cache without layers for each run, for operations that read the
/// plan of a batch and no cache.
pub(super) fn caches<B: Backend>(b: &B, runs: usize) -> Vec<B::Kv> {
    (0..runs).map(|_| b.kv(&[])).collect()
}

/// A case: inputs, and an operation on them that runs on any backend.
pub(super) trait Case {
    /// Returns the description of the case for a report.
    fn name(&self) -> String;
    /// Runs the case and returns every operand as it was before and after.
    fn run<B: Backend>(&self, b: &B) -> Result<Vec<Seen>, OpError>;
}

/// Prints the case to standard error if the subject panics.
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
    /// Returns whether the report is full, so that the loops over cases can
    /// end.
    pub(super) fn full(&self) -> bool {
        self.report.failures.len() >= Report::LIMIT
    }

    /// Runs a case on the oracle of the subject's lane.
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

    /// Returns whether the bits of the subject's lane depend on the width of a
    /// batch.
    pub(super) fn width_matters(&self) -> bool {
        self.subject.info().lane.width_matters()
    }

    /// Runs a case on the oracle and on the subject, and compares.
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
            // A case that the oracle refuses is a fault of the suite.
            Err(e) => self.fail(case, "oracle", 0, Mismatch::Refused(e.to_string())),
        }
    }

    /// Runs a case on the subject and compares. `expected` has the values of
    /// each operand that is written, in order.
    pub(super) fn case_against(&mut self, case: &impl Case, expected: &[&[f32]]) {
        self.report.cases += 1;
        let announce = Announce(case, self.report.seed);
        let seen = case.run(self.subject);
        drop(announce);
        let seen = match seen {
            Ok(seen) => seen,
            Err(e) => return self.fail(case, "case", 0, Mismatch::Refused(e.to_string())),
        };
        let written = seen.iter().filter(|s| s.written > 0).count();
        if written != expected.len() {
            let mismatch = Mismatch::Length {
                expected: expected.len(),
                found: written,
            };
            return self.fail(case, "operands", 0, mismatch);
        }
        let mut expected = expected.iter();
        for s in &seen {
            let want: &[f32] = match s.written {
                0 => &[],
                _ => expected.next().copied().unwrap_or_default(),
            };
            self.report.values += s.after.len();
            for (index, mismatch) in compare::compare(s, want) {
                if self.full() {
                    return;
                }
                self.fail(case, s.label, index, mismatch);
            }
        }
    }

    fn fail(&mut self, case: &impl Case, operand: &'static str, index: usize, mismatch: Mismatch) {
        self.report.failures.push(Failure {
            case: case.name(),
            operand,
            index,
            mismatch,
        });
    }
}
