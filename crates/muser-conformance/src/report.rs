//! Reports the result of one group of conformance cases (one family of a backend's
//! operations).

use super::compare::Failure;

/// The result of one group of conformance cases on one backend.
#[derive(Clone, Debug)]
pub struct Report {
    /// The name of the conformance group.
    pub group: &'static str,
    /// The backend's name, instruction-set level and thread count.
    pub backend: String,
    /// The seed of all inputs; a run with this value in `MUSER_SEED` repeats them.
    pub seed: u64,
    /// How many cases of the conformance group ran.
    pub cases: usize,
    /// How many values were compared, guard rows and read-only operands included.
    pub values: usize,
    /// Every failure found; a conformance group stops at [`Report::LIMIT`] failures.
    pub failures: Vec<Failure>,
}

impl Report {
    /// The number of failures at which a group of conformance cases stops.
    pub const LIMIT: usize = 32;

    /// Returns whether the conformance group passed: at least one value was compared
    /// and none was wrong.
    pub fn is_ok(&self) -> bool {
        self.cases > 0 && self.values > 0 && self.failures.is_empty()
    }

    /// Panics unless the conformance group passed, as [`Report::is_ok`] tells.
    ///
    /// # Panics
    /// If the group failed, with the seed and the first three failures.
    pub fn assert_ok(&self) {
        assert!(self.is_ok(), "{self}");
    }
}

impl std::fmt::Display for Report {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self {
            group,
            backend,
            seed,
            cases,
            values,
            failures,
        } = self;
        write!(f, "{group} on {backend}: {cases} cases, {values} values, ")?;
        if *cases == 0 || *values == 0 {
            return write!(f, "nothing was compared: a failure");
        }
        if failures.is_empty() {
            return write!(f, "all equal");
        }
        let more = if failures.len() >= Self::LIMIT {
            " or more"
        } else {
            ""
        };
        write!(f, "{}{more} failures, MUSER_SEED={seed}", failures.len())?;
        for failure in failures.iter().take(3) {
            write!(f, "\n  {failure}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_that_ran_nothing_is_a_failure() {
        let mut r = Report {
            group: "rope",
            backend: "oracle".to_owned(),
            seed: 1,
            cases: 0,
            values: 0,
            failures: Vec::new(),
        };
        assert!(!r.is_ok());
        assert!(r.to_string().contains("nothing was compared"));
        r.cases = 1;
        assert!(!r.is_ok(), "cases without values");
        r.values = 1;
        r.assert_ok();
    }
}
