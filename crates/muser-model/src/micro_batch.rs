//! The rows of a micro-batch: whose they are, which are kept, and what becomes of
//! their outputs.

/// The rows of one sequence in a micro-batch.
#[derive(Clone, Copy)]
pub(crate) struct StepRows {
    /// The index of the step that they belong to.
    pub(crate) step: usize,
    /// How many tokens of the step came before, in earlier micro-batches.
    pub(crate) done: usize,
    /// The position of the first row.
    pub(crate) first: usize,
    pub(crate) rows: usize,
    /// Number of rows at the end whose outputs are read.
    pub(crate) keep: usize,
    /// What becomes of the last row's output. The other kept rows give logits.
    pub(crate) last: Output,
}

/// What becomes of the output of a kept row.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Output {
    /// The sink gets its logits.
    Logits,
    /// A token is chosen from its logits.
    Choice,
    /// The sink gets its state.
    State,
}

/// The rows of a micro-batch, step after step.
#[derive(Default)]
pub(crate) struct MicroBatch {
    pub(crate) steps: Vec<StepRows>,
    /// Number of rows.
    pub(crate) rows: usize,
    /// Number of rows whose outputs are read.
    pub(crate) keep: usize,
}

impl MicroBatch {
    pub(crate) fn push(&mut self, step: StepRows) {
        self.rows += step.rows;
        self.keep += step.keep;
        self.steps.push(step);
    }

    /// Returns the kept rows in order.
    pub(crate) fn kept(&self) -> Vec<Kept> {
        let of = |s: &StepRows| {
            let s = *s;
            (s.rows - s.keep..s.rows).map(move |r| Kept {
                step: s.step,
                index: s.done + r,
                position: s.first + r,
                output: match r + 1 == s.rows {
                    true => s.last,
                    false => Output::Logits,
                },
            })
        };
        self.steps.iter().flat_map(of).collect()
    }
}

/// A kept row.
pub(crate) struct Kept {
    /// The index of the step that it belongs to.
    pub(crate) step: usize,
    /// Its index among the tokens of the step.
    pub(crate) index: usize,
    pub(crate) position: usize,
    pub(crate) output: Output,
}

/// Number of rows below which a product takes other kernels in the pinned lane.
const NARROW: usize = 8;

/// Cuts `keep` rows into head slices of about `head_rows` each: (first row, number
/// of rows).
///
/// A last slice of fewer than [`NARROW`] rows is joined to the slice before it. As
/// the other slices are multiples of four, a slice takes the same kernels in the
/// pinned lane as all rows at once would.
pub(crate) fn head_slices(keep: usize, head_rows: usize) -> impl Iterator<Item = (usize, usize)> {
    let mut from = 0;
    std::iter::from_fn(move || {
        let left = keep - from;
        let n = if left < head_rows + NARROW {
            left
        } else {
            head_rows
        };
        let at = from;
        from += n;
        (n > 0).then_some((at, n))
    })
}

/// Returns the most rows of a slice that [`head_slices`] gives.
pub(crate) fn widest_slice(keep: usize, head_rows: usize) -> usize {
    keep.min(head_rows + NARROW - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_cover_the_rows_and_none_is_narrow_where_the_whole_is_not() {
        for keep in 0..600 {
            let slices: Vec<_> = head_slices(keep, 64).collect();
            let mut at = 0;
            for (i, &(from, n)) in slices.iter().enumerate() {
                assert_eq!(from, at);
                assert!(
                    n <= widest_slice(keep, 64) && n >= keep.min(NARROW),
                    "{keep}: {n}"
                );
                // Whole groups of four columns but in the last slice.
                assert!(i + 1 == slices.len() || n % 4 == 0);
                at += n;
            }
            assert_eq!(at, keep);
        }
    }
}
