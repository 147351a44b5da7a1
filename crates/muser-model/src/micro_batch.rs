//! Describes the rows of a micro-batch (the tokens computed at once): whose they are,
//! which outputs are read and what becomes of them.

/// The rows that one sequence has in a micro-batch (the tokens computed at once).
#[derive(Clone, Copy)]
pub(crate) struct StepRows {
    /// The index of the step (one sequence's tokens in a forward pass) that the rows
    /// belong to.
    pub(crate) step: usize,
    /// Number of the sequence's tokens that earlier micro-batches of this forward pass
    /// computed.
    pub(crate) done: usize,
    /// The position in the sequence of the first of its rows in the micro-batch.
    pub(crate) first: usize,
    pub(crate) rows: usize,
    /// Number of kept rows: those, at the end of the rows, whose outputs are read.
    pub(crate) keep: usize,
    /// What becomes of the output of the sequence's last row in the micro-batch. Its
    /// other kept rows (rows whose outputs are read) give logits.
    pub(crate) last: Output,
}

/// What becomes of the output of a kept row (a row whose output is read).
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Output {
    /// The row's logits are given to the caller's sink (the function that gets
    /// outputs).
    Logits,
    /// The next token is chosen from the row's logits.
    Choice,
    /// The row's state, the input of the output projection, is given to the caller's
    /// sink (the function that gets outputs).
    State,
}

/// The rows of a micro-batch (the tokens computed at once), one sequence after the
/// other.
#[derive(Default)]
pub(crate) struct MicroBatch {
    pub(crate) steps: Vec<StepRows>,
    /// Number of rows of the micro-batch.
    pub(crate) rows: usize,
    /// Number of rows of the micro-batch whose outputs are read.
    pub(crate) keep: usize,
}

impl MicroBatch {
    pub(crate) fn push(&mut self, step: StepRows) {
        self.rows += step.rows;
        self.keep += step.keep;
        self.steps.push(step);
    }

    /// Returns the kept rows (rows whose outputs are read) of the micro-batch, in
    /// order.
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

/// A kept row: a token of a micro-batch whose output is read.
pub(crate) struct Kept {
    /// The index of the step (one sequence's tokens in a forward pass) that the row
    /// belongs to.
    pub(crate) step: usize,
    /// The row's index among the tokens of its step (one sequence's tokens in a forward
    /// pass).
    pub(crate) index: usize,
    pub(crate) position: usize,
    pub(crate) output: Output,
}

/// The pinned lane (llama.cpp's arithmetic) uses other kernels to multiply a matrix by
/// fewer rows than this.
const NARROW: usize = 8;

/// Cuts `keep` rows into head slices (rows whose logits are computed at once) of about
/// `head_rows` each, and returns each slice as (first row, number of rows).
///
/// A last slice of fewer than [`NARROW`] rows is joined to the slice before it, and the
/// other slices are multiples of four. So the pinned lane (llama.cpp's arithmetic)
/// computes a slice with the same kernels as all rows at once.
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

/// Returns the most rows of a head slice (rows whose logits are computed at once) that
/// [`head_slices`] gives.
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
                // Every slice but the last consists of whole groups of four rows.
                assert!(i + 1 == slices.len() || n % 4 == 0);
                at += n;
            }
            assert_eq!(at, keep);
        }
    }
}
