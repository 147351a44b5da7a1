//! Compares the answers of muser's backends with llama.cpp's bit for bit, counts the
//! values that differ for each kernel, and decides whether the comparison passed.

use super::question::{Case, KernelSpan, Side};
use std::collections::BTreeMap;
use std::fmt::Write;

/// Number of failing test cases that are printed for each kernel and instruction-set
/// level.
const TOLD: usize = 3;

/// A subject: a backend of muser that is compared with llama.cpp.
pub(super) struct Subject {
    /// Instruction-set level of the backend under test (scalar, avx2 or avx512), or
    /// `oracle` for the scalar functions that define the bits.
    pub(super) level: String,
    pub(super) side: Box<dyn Side>,
    /// Largest cost of a test case that this backend under test runs, in multiply-adds;
    /// costlier ones are left out.
    pub(super) limit: u64,
}

/// Numbers of test cases run, values compared and values that differ, of one kernel at
/// one instruction-set level.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counts {
    pub(super) cases: usize,
    pub(super) values: usize,
    pub(super) different: usize,
    /// Number of test cases that were not run: too costly for the backend, or not in
    /// the selection of test cases.
    pub(super) left_out: usize,
    failing: usize,
}

/// Runs each test case on the reference (llama.cpp) and on every subject (a backend
/// under test), and compares their answers bit for bit.
pub(super) struct Judge<'a> {
    reference: &'a mut dyn Side,
    subjects: Vec<Subject>,
    /// Numbers of compared and differing values, by kernel and index of the backend
    /// under test.
    counts: BTreeMap<(String, usize), Counts>,
    /// Lines printed for test cases whose values differ from llama.cpp's.
    told: Vec<String>,
}

impl<'a> Judge<'a> {
    pub(super) fn new(reference: &'a mut dyn Side, subjects: Vec<Subject>) -> Self {
        Self {
            reference,
            subjects,
            counts: BTreeMap::new(),
            told: Vec::new(),
        }
    }

    /// Returns whether any subject (a backend under test) runs test cases of this cost,
    /// in multiply-adds.
    pub(super) fn wants(&self, cost: u64) -> bool {
        self.subjects.iter().any(|s| cost <= s.limit)
    }

    /// Counts a test case that is not run: as left out, for each of its kernels and
    /// each subject (a backend under test).
    pub(super) fn leave_out(&mut self, spans: &[KernelSpan]) {
        for subject in 0..self.subjects.len() {
            self.skip(spans, subject);
        }
    }

    fn skip(&mut self, spans: &[KernelSpan], subject: usize) {
        for kernel in kernels(spans) {
            let key = (kernel.to_owned(), subject);
            self.counts.entry(key).or_default().left_out += 1;
        }
    }

    /// Registers a kernel that must be compared: if no test case runs it, the
    /// comparison fails.
    pub(super) fn expect(&mut self, kernel: &str) {
        for subject in 0..self.subjects.len() {
            self.counts.entry((kernel.to_owned(), subject)).or_default();
        }
    }

    /// Runs one test case on the reference (llama.cpp) and on every subject (a backend
    /// under test) whose cost limit allows it, and compares the answers bit for bit.
    ///
    /// # Errors
    /// The reference refuses the case or answers with another number of values.
    /// What a subject does wrong is counted, not an error.
    pub(super) fn run(&mut self, case: &Case<'_>) -> Result<(), String> {
        if !self.wants(case.cost) {
            self.leave_out(&case.spans);
            return Ok(());
        }
        let about = |e: String| format!("{}: {e}", case.name);
        let want = self
            .reference
            .answer(&case.question, case.threads)
            .map_err(about)?;
        let size: usize = case.spans.iter().map(|p| p.values.len()).sum();
        if want.len() != size {
            let what = format!("the reference gave {} values, not {size}", want.len());
            return Err(about(what));
        }
        for subject in 0..self.subjects.len() {
            if case.cost > self.subjects[subject].limit {
                self.skip(&case.spans, subject);
                continue;
            }
            let side = &mut self.subjects[subject].side;
            let got = side.answer(&case.question, case.threads);
            self.compare(case, subject, &want, got);
        }
        Ok(())
    }

    fn compare(
        &mut self,
        case: &Case<'_>,
        subject: usize,
        want: &[f32],
        got: Result<Vec<f32>, String>,
    ) {
        for kernel in kernels(&case.spans) {
            let key = (kernel.to_owned(), subject);
            self.counts.entry(key).or_default().cases += 1;
        }
        let (got, refusal) = match got {
            Ok(got) => (got, None),
            Err(e) => (Vec::new(), Some(e)),
        };
        let surplus = got.len().saturating_sub(want.len());
        for (i, part) in case.spans.iter().enumerate() {
            let last = i + 1 == case.spans.len();
            let surplus = if last { surplus } else { 0 };
            let (first, different) = differences(want, &got, part.values.clone(), surplus);
            let key = (part.kernel.clone(), subject);
            let counts = self.counts.entry(key).or_default();
            counts.values += part.values.len();
            counts.different += different;
            let Some(first) = first else { continue };
            counts.failing += 1;
            if counts.failing > TOLD {
                continue;
            }
            let level = &self.subjects[subject].level;
            let what = match &refusal {
                Some(e) => format!("refused: {e}"),
                None => tell(part, want, &got, first, different),
            };
            let KernelSpan { kernel, .. } = part;
            let (name, threads) = (&case.name, case.threads);
            let line = format!("{kernel} at {level}: {name}, {threads} threads: {what}");
            println!("  DIFFERS {line}");
            self.told.push(line);
        }
    }

    /// Formats the numbers of compared and differing values as a table, a line for each
    /// kernel and instruction-set level.
    pub(super) fn table(&self) -> String {
        let width = self.counts.keys().map(|(k, _)| k.len()).max().unwrap_or(0);
        let mut out = String::new();
        let mut line = |kernel: &str, level: &str, columns: [&str; 4]| {
            let [cases, values, different, left_out] = columns;
            // Writing to a string never fails.
            let _ = writeln!(
                out,
                "  {kernel:width$}  {level:7} {cases:>7} {values:>14} {different:>10} {left_out:>9}"
            );
        };
        line(
            "kernel",
            "level",
            ["cases", "values", "different", "left out"],
        );
        for ((kernel, subject), c) in &self.counts {
            let columns = [c.cases, c.values, c.different, c.left_out].map(|n| n.to_string());
            let columns = columns.each_ref().map(String::as_str);
            line(kernel, &self.subjects[*subject].level, columns);
        }
        out
    }

    /// Returns the failures of the comparison with llama.cpp: a line for each kernel
    /// and instruction-set level of which a value differs or nothing was compared. An
    /// empty list is a pass.
    pub(super) fn verdict(&self) -> Vec<String> {
        let mut faults = Vec::new();
        for ((kernel, subject), c) in &self.counts {
            let level = &self.subjects[*subject].level;
            if c.values == 0 {
                faults.push(format!("{kernel} at {level}: nothing was compared"));
            } else if c.failing > 0 {
                let (failing, cases, n, of) = (c.failing, c.cases, c.different, c.values);
                faults.push(format!(
                    "{kernel} at {level}: {n} of {of} values differ, in {failing} of {cases} cases"
                ));
            }
        }
        if self.counts.is_empty() {
            faults.push("nothing was compared".to_owned());
        }
        faults
    }

    /// Returns the numbers of compared and differing values, summed over all kernels
    /// and instruction-set levels.
    pub(super) fn total(&self) -> Counts {
        let mut total = Counts::default();
        for c in self.counts.values() {
            total.cases += c.cases;
            total.values += c.values;
            total.different += c.different;
            total.left_out += c.left_out;
        }
        total
    }

    #[cfg(test)]
    pub(super) fn told(&self) -> &[String] {
        &self.told
    }
}

/// Returns the names of the kernels that compute a test case's answer, each once.
fn kernels(spans: &[KernelSpan]) -> impl Iterator<Item = &str> {
    spans.iter().enumerate().filter_map(|(i, p)| {
        let before = spans[..i].iter().any(|q| q.kernel == p.kernel);
        (!before).then_some(p.kernel.as_str())
    })
}

/// Returns the index of the first value that differs from the expected one, and the
/// number of values that differ. Missing values differ, and so do the `surplus` values
/// beyond the expected ones; a NaN equals any NaN.
fn differences(
    want: &[f32],
    got: &[f32],
    values: std::ops::Range<usize>,
    surplus: usize,
) -> (Option<usize>, usize) {
    let same = |a: f32, b: f32| a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan());
    let differs =
        |&i: &usize| !matches!((want.get(i), got.get(i)), (Some(&a), Some(&b)) if same(a, b));
    let end = values.end;
    let mut at = values.filter(differs);
    let first = at.next();
    let count = usize::from(first.is_some()) + at.count() + surplus;
    (first.or((surplus > 0).then_some(end)), count)
}

/// Describes the first value that differs between llama.cpp and a backend: its row, its
/// index in the row, and both bit patterns.
fn tell(part: &KernelSpan, want: &[f32], got: &[f32], first: usize, different: usize) -> String {
    let at = first - part.values.start;
    let width = part.width.max(1);
    let (row, value) = (part.first_row + at / width, at % width);
    let bits = |x: &[f32]| match x.get(first) {
        Some(v) => format!("{:08x} ({v:e})", v.to_bits()),
        None => "nothing".to_owned(),
    };
    format!(
        "{different} of {} values differ, first row {row} value {value}: \
         expected {}, found {}",
        part.values.len(),
        bits(want),
        bits(got)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bit_a_gap_and_a_surplus_are_differences() {
        let want = [1.0f32, -0.0, f32::NAN, 3.0];
        assert_eq!(differences(&want, &want, 0..4, 0), (None, 0));
        let zero = [1.0, 0.0, f32::NAN, 3.0];
        assert_eq!(differences(&want, &zero, 0..4, 0), (Some(1), 1));
        assert_eq!(differences(&want, &zero, 2..4, 0), (None, 0));
        let next = f32::from_bits(3.0f32.to_bits() + 1);
        let two = [1.0, -0.0, 2.0, next];
        assert_eq!(differences(&want, &two, 0..4, 0), (Some(2), 2));
        assert_eq!(differences(&want, &want[..3], 0..4, 0), (Some(3), 1));
        assert_eq!(differences(&want, &want, 0..4, 2), (Some(4), 2));
    }
}
