//! Compares the operands of an operation, as they are after it, with what they should
//! be, bit for bit: results, guard rows behind them, and operands that are only read.
//!
//! In results a NaN equals any NaN, as the contract of the operations says, and a NaN
//! in place of a number is a failure. So is the special NaN that an output was filled
//! with before the operation: nothing was written there.

/// The value that fills every output before an operation: a quiet NaN with a payload
/// that arithmetic does not produce.
pub const POISON: f32 = f32::from_bits(0x7fc0_dead);

/// The value that fills the guard rows, which follow the rows of an operation and must
/// not change.
pub const GUARD: f32 = f32::from_bits(0x4b1d_c0de);

/// Returns whether an operation's result has the expected bits; a NaN equals any NaN.
pub fn same(expected: f32, found: f32) -> bool {
    expected.to_bits() == found.to_bits() || (expected.is_nan() && found.is_nan())
}

/// A backend's buffer as it was before and after an operation.
#[derive(Clone, Debug)]
pub struct Seen {
    /// The name of the operand that the buffer holds (`x`, `out`, …).
    pub label: &'static str,
    /// All values of the operand's buffer before the operation, guard rows included.
    pub before: Vec<f32>,
    /// All values of the operand's buffer after the operation, guard rows included.
    pub after: Vec<f32>,
    /// How many values at the start of the operand's buffer the operation writes; 0 if
    /// it only reads the operand.
    pub written: usize,
}

/// What is wrong with one value, or one operand, after an operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Mismatch {
    /// A result of the operation with other bits than expected.
    Value {
        /// The bits of the expected f32 result, as computed by the oracle (the scalar
        /// functions that define them).
        expected: u32,
        /// The bits of the f32 result that the backend under test computed.
        found: u32,
    },
    /// An output value that the operation never wrote.
    Unwritten,
    /// A changed value that the operation must not write: in a guard row or a read-only
    /// operand.
    Overwritten {
        /// The bits of the f32 value before the operation.
        expected: u32,
        /// The bits of the f32 value after the operation.
        found: u32,
    },
    /// An operand's buffer, or its expected result, of the wrong length.
    Length {
        /// How many values the operand's buffer, or the result, should have.
        expected: usize,
        /// How many values the operand's buffer, or the result, has.
        found: usize,
    },
    /// An error with which the backend refused the operation.
    Refused(String),
}

/// One failure of the conformance suite: the case, the operand, the index of the wrong
/// value and what is wrong with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The description of the failed conformance case: the shapes of its operands and
    /// how they were filled.
    pub case: String,
    /// The name of the operand (`x`, `out`, …) that has a wrong value.
    pub operand: &'static str,
    /// The index of the wrong value in the operand's buffer, guard rows included.
    pub index: usize,
    /// What is wrong: the value's expected and found bits, or the operand's length, or
    /// a refusal.
    pub mismatch: Mismatch,
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}[{}]: ", self.case, self.operand, self.index)?;
        let shown = |bits: u32| format!("{bits:#010x} ({:e})", f32::from_bits(bits));
        match &self.mismatch {
            Mismatch::Value { expected, found } => {
                write!(f, "expected {}, found {}", shown(*expected), shown(*found))
            }
            Mismatch::Unwritten => write!(f, "not written"),
            Mismatch::Overwritten { expected, found } => write!(
                f,
                "not the operation's to write: was {}, is {}",
                shown(*expected),
                shown(*found)
            ),
            Mismatch::Length { expected, found } => {
                write!(f, "expected {expected} values, found {found}")
            }
            Mismatch::Refused(why) => write!(f, "refused: {why}"),
        }
    }
}

/// Finds every mismatch in a buffer after an operation: compares the values that were
/// to be written with `expected`, and the rest with what they were before. Yields each
/// mismatch with its index.
pub fn compare<'a>(
    seen: &'a Seen,
    expected: &'a [f32],
) -> Box<dyn Iterator<Item = (usize, Mismatch)> + 'a> {
    let lengths = [
        (expected.len(), seen.written),
        (seen.before.len(), seen.after.len()),
    ];
    for (expected, found) in lengths {
        if expected != found {
            return Box::new(std::iter::once((0, Mismatch::Length { expected, found })));
        }
    }
    Box::new(
        seen.after
            .iter()
            .enumerate()
            .filter_map(move |(i, &found)| {
                let mismatch = match expected.get(i) {
                    Some(&e) => result(e, found),
                    None => untouched(seen.before[i], found),
                };
                mismatch.map(|mismatch| (i, mismatch))
            }),
    )
}

fn result(expected: f32, found: f32) -> Option<Mismatch> {
    if found.to_bits() == POISON.to_bits() {
        return Some(Mismatch::Unwritten);
    }
    (!same(expected, found)).then(|| Mismatch::Value {
        expected: expected.to_bits(),
        found: found.to_bits(),
    })
}

/// Compares a value that an operation must not write with what it was before: even a
/// NaN must keep its bits.
fn untouched(before: f32, after: f32) -> Option<Mismatch> {
    (before.to_bits() != after.to_bits()).then(|| Mismatch::Overwritten {
        expected: before.to_bits(),
        found: after.to_bits(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Compares a test's output, the results `[1, found]` and a guard value, with the
    /// expected `[1, expected]`; returns each mismatch with its index.
    fn judge(expected: f32, found: f32) -> Vec<(usize, Mismatch)> {
        let seen = Seen {
            label: "out",
            before: vec![POISON, POISON, GUARD],
            after: vec![1.0, found, GUARD],
            written: 2,
        };
        compare(&seen, &[1.0, expected]).collect()
    }

    fn wrong(expected: f32, found: f32) -> Vec<(usize, Mismatch)> {
        let (expected, found) = (expected.to_bits(), found.to_bits());
        vec![(1, Mismatch::Value { expected, found })]
    }

    #[test]
    fn equal_bits_pass_and_so_does_any_nan_for_a_nan() {
        assert_eq!(judge(2.0, 2.0), []);
        assert_eq!(judge(f32::NAN, f32::from_bits(0xffc0_1234)), []);
        assert_eq!(judge(f32::INFINITY, f32::INFINITY), []);
    }

    #[test]
    fn a_nan_is_no_number() {
        assert_eq!(judge(2.0, f32::NAN), wrong(2.0, f32::NAN));
        assert_eq!(judge(f32::NAN, 2.0), wrong(f32::NAN, 2.0));
        let inf = f32::INFINITY;
        assert_eq!(judge(f32::NAN, inf), wrong(f32::NAN, inf));
    }

    #[test]
    fn zeros_have_signs() {
        assert_eq!(judge(0.0, -0.0), wrong(0.0, -0.0));
        assert_eq!(judge(-0.0, 0.0), wrong(-0.0, 0.0));
    }

    #[test]
    fn one_ulp_is_wrong() {
        for x in [1.0f32, -3.5e-40, 3e38] {
            let next = f32::from_bits(x.to_bits() + 1);
            assert_eq!(judge(x, next), wrong(x, next));
        }
    }

    #[test]
    fn poison_is_never_a_result_even_of_a_nan() {
        assert_eq!(judge(f32::NAN, POISON), [(1, Mismatch::Unwritten)]);
        assert_eq!(judge(1.0, POISON), [(1, Mismatch::Unwritten)]);
    }

    #[test]
    fn guards_and_inputs_keep_their_bits() {
        let mut seen = Seen {
            label: "x",
            before: vec![1.0, f32::NAN, GUARD],
            after: vec![1.0, f32::NAN, GUARD],
            written: 0,
        };
        assert_eq!(compare(&seen, &[]).count(), 0);
        seen.after[2] = f32::from_bits(GUARD.to_bits() ^ 1);
        let found: Vec<_> = compare(&seen, &[]).collect();
        assert!(matches!(found[..], [(2, Mismatch::Overwritten { .. })]));
        // A NaN that becomes another NaN counts as changed too.
        seen.after[1] = f32::from_bits(0x7fc0_0001);
        assert_eq!(compare(&seen, &[]).count(), 2);
    }

    #[test]
    fn a_shorter_result_is_a_failure() {
        let seen = Seen {
            label: "out",
            before: vec![POISON; 3],
            after: vec![1.0; 2],
            written: 2,
        };
        let length = |expected, found| vec![(0, Mismatch::Length { expected, found })];
        assert_eq!(
            compare(&seen, &[1.0; 2]).collect::<Vec<_>>(),
            length(3, 2),
            "the buffer"
        );
        assert_eq!(
            compare(&seen, &[1.0; 3]).collect::<Vec<_>>(),
            length(3, 2),
            "what it is compared with"
        );
    }

    #[test]
    fn the_message_says_where_and_what() {
        let f = Failure {
            case: "rms_norm 3 x 7".to_owned(),
            operand: "out",
            index: 9,
            mismatch: Mismatch::Value {
                expected: 0x3f80_0000,
                found: 0x3f80_0001,
            },
        };
        assert_eq!(
            f.to_string(),
            "rms_norm 3 x 7: out[9]: expected 0x3f800000 (1e0), found 0x3f800001 (1.0000001e0)"
        );
    }
}
