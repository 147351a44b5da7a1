//! Runs a conformance case on the oracle (the scalar functions that define an
//! operation's bits) and on the subject (the backend under test), over buffers with
//! guard rows, and compares the two.

use super::compare::{self, Failure, GUARD, Mismatch, POISON, Seen};
use super::report::Report;
use super::rng::Rng;
use muser_ops::oracle::Oracle;
use muser_ops::{Backend, Lane, OpError, pinned};

/// An operand's buffer on a backend, with guard rows behind its values, and what it was
/// filled with.
pub(super) struct Guarded<B: Backend> {
    label: &'static str,
    pub(super) buffer: B::Buffer,
    before: Vec<f32>,
    written: usize,
}

impl<B: Backend> Guarded<B> {
    /// Creates a buffer with guard rows for an operand that the operation only reads.
    pub(super) fn input(
        b: &B,
        label: &'static str,
        width: usize,
        values: &[f32],
    ) -> Result<Self, OpError> {
        Self::new(b, label, width, values.to_vec(), 0)
    }

    /// Creates a buffer with guard rows for an operand that the operation reads and
    /// overwrites.
    pub(super) fn in_place(
        b: &B,
        label: &'static str,
        width: usize,
        values: &[f32],
    ) -> Result<Self, OpError> {
        Self::new(b, label, width, values.to_vec(), values.len())
    }

    /// Creates a buffer with guard rows for an operand that the operation only writes.
    pub(super) fn output(
        b: &B,
        label: &'static str,
        rows: usize,
        width: usize,
    ) -> Result<Self, OpError> {
        Self::new(b, label, width, vec![POISON; rows * width], rows * width)
    }

    /// Creates an operand's buffer with at least two guard rows and 64 guard values
    /// behind its values, more than one store instruction of a kernel writes.
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

    /// Reads an operand's buffer back after the operation, guard rows included.
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

/// Creates a KV cache without layers for each of a batch's `runs` sequences, for
/// operations that use the batch's plan and no cache.
pub(super) fn caches<B: Backend>(b: &B, runs: usize) -> Vec<B::Kv> {
    (0..runs).map(|_| b.kv(&[])).collect()
}

/// A case of the conformance suite: inputs, and an operation on them that runs on any
/// backend.
pub(super) trait Case {
    /// Returns the description of the conformance case (shapes and inputs) for a
    /// report.
    fn name(&self) -> String;
    /// Runs the conformance case on a backend and returns every operand as it was
    /// before and after.
    fn run<B: Backend>(&self, b: &B) -> Result<Vec<Seen>, OpError>;
}

/// Prints the running conformance case and its seed to standard error if the subject
/// (the backend under test) panics.
struct Announce<'a, C: Case>(&'a C, u64);

impl<C: Case> Drop for Announce<'_, C> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("conformance: {}, seed {}", self.0.name(), self.1);
        }
    }
}

/// Runs the cases of one conformance group on one backend and collects the report.
pub(super) struct Suite<'a, B: Backend> {
    pub(super) subject: &'a B,
    pub(super) rng: Rng,
    pub(super) report: Report,
}

impl<B: Backend> Suite<'_, B> {
    /// Returns whether the conformance group has reached its limit of reported
    /// failures, so that the loops over its cases end.
    pub(super) fn full(&self) -> bool {
        self.report.failures.len() >= Report::LIMIT
    }

    /// Runs a conformance case on the oracle (the scalar functions that define an
    /// operation's bits), in the lane (the arithmetic) of the backend under test.
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

    /// Returns whether the width of a batch affects the bits in the lane (the
    /// arithmetic) of the backend under test.
    pub(super) fn width_matters(&self) -> bool {
        self.subject.info().lane.width_matters()
    }

    /// Runs a conformance case on the oracle (which defines the right bits) and on the
    /// subject (the backend under test), and compares the two.
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
            // If the oracle refuses a case, the suite itself is wrong: reported as a
            // failure.
            Err(e) => self.fail(case, "oracle", 0, Mismatch::Refused(e.to_string())),
        }
    }

    /// Runs a conformance case on the subject (the backend under test) and compares it
    /// with `expected`: the values of each written operand, in order.
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
