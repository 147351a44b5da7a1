//! Statistics of measured times: medians, spreads, rates and ratios.

use serde_json::{Value, json};

/// Median, minimum and maximum of a list of measurements.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Spread {
    pub(super) median: f64,
    pub(super) min: f64,
    pub(super) max: f64,
}

impl Spread {
    /// Computes the median, minimum and maximum of `values`; zeros for an empty list.
    pub(super) fn of(values: &[f64]) -> Self {
        let mut sorted = values.to_vec();
        sorted.sort_unstable_by(f64::total_cmp);
        let n = sorted.len();
        match (sorted.first(), sorted.last()) {
            (Some(&min), Some(&max)) => Self {
                median: f64::midpoint(sorted[(n - 1) / 2], sorted[n / 2]),
                min,
                max,
            },
            _ => Self::default(),
        }
    }

    /// Computes the median, minimum and maximum of `of / x` over all times `x`: rates,
    /// such as tokens a second.
    pub(super) fn rates(of: f64, x: &[f64]) -> Self {
        Self::of(&x.iter().map(|x| of / x).collect::<Vec<_>>())
    }

    /// Computes the median, minimum and maximum of the speedups `base / x`, one per
    /// benchmark round. A slow phase of the machine then affects both times of a ratio.
    pub(super) fn speedups(base: &[f64], x: &[f64]) -> Self {
        Self::of(&base.iter().zip(x).map(|(b, x)| b / x).collect::<Vec<_>>())
    }

    pub(super) fn json(self) -> Value {
        json!({ "median": self.median, "min": self.min, "max": self.max })
    }
}

/// Formats measurements as `1.23 (1.20-1.27)`: median, minimum, maximum.
impl std::fmt::Display for Spread {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { median, min, max } = self;
        f.pad(&format!("{median:.2} ({min:.2}-{max:.2})"))
    }
}

/// Formats a number with three significant digits, or with all digits of its integer
/// part if those are more.
pub(super) fn digits(x: f64) -> String {
    match x.abs() {
        0.0..10.0 => format!("{x:.2}"),
        10.0..100.0 => format!("{x:.1}"),
        _ => format!("{x:.0}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_of_odd_even_and_none() {
        let odd = Spread::of(&[3.0, 1.0, 2.5]);
        assert_eq!((odd.median, odd.min, odd.max), (2.5, 1.0, 3.0));
        assert_eq!(Spread::of(&[4.0, 1.0, 2.0, 3.0]).median, 2.5);
        assert_eq!(Spread::of(&[]), Spread::default());
    }

    #[test]
    fn rates_turn_the_ends_around() {
        let rate = Spread::rates(6.0, &[3.0, 1.0, 2.0]);
        assert_eq!((rate.median, rate.min, rate.max), (3.0, 2.0, 6.0));
    }

    #[test]
    fn speedups_are_of_pairs_not_of_medians() {
        // The machine slows down for both sides: the ratio of each round is 2.
        let ours = [1.0, 5.0, 2.0];
        let theirs = ours.map(|s| 2.0 * s);
        let same = Spread::speedups(&theirs, &ours);
        assert_eq!((same.median, same.min, same.max), (2.0, 2.0, 2.0));
        // A slower side has a speedup below 1.
        assert_eq!(Spread::speedups(&[1.0], &[4.0]).median, 0.25);
        assert_eq!(same.to_string(), "2.00 (2.00-2.00)");
    }

    #[test]
    fn figures_have_three_digits() {
        let texts = [0.5, 9.994, 42.34, 1234.5].map(digits);
        assert_eq!(texts, ["0.50", "9.99", "42.3", "1234"]);
    }
}
