//! [`Plan`]: what varies from forward pass to forward pass. The tokens of a batch, their
//! positions and sequences, and the rows whose outputs are read.

use crate::OpError;

/// A run: the rows (tokens) of one sequence in a batch, whose positions are consecutive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// The position, in its sequence, of the first of the sequence's rows (tokens) in the
    /// batch.
    pub first: usize,
    /// The number of rows (tokens) of one sequence in the batch.
    pub rows: usize,
    /// The number of kept rows: those at the end of a sequence's rows whose outputs are
    /// read.
    pub keep: usize,
}

/// Which rows of a batch a buffer holds: all, or only the kept rows (rows whose outputs
/// are read).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Subset {
    /// All rows of the batch, sequence after sequence.
    All,
    /// The batch's kept rows (rows whose outputs are read): the last `keep` of each
    /// sequence, sequence after sequence.
    Kept,
}

/// A plan: the tokens of a batch, their positions and sequences, and which rows' outputs
/// are read.
///
/// In a plan, the rows of a sequence follow each other. Run `i` describes the sequence
/// of the i-th KV cache that [`Backend::batch`](crate::Backend::batch) is given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    tokens: Vec<u32>,
    runs: Vec<Run>,
    /// The position, in its sequence, of each row (token) of the batch.
    positions: Vec<usize>,
    /// The indices of the batch's kept rows (rows whose outputs are read), ascending.
    kept: Vec<usize>,
}

/// A span: the rows of one sequence within a buffer that holds a [`Subset`] of a batch's
/// rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// The index of the rows' sequence in the batch.
    pub sequence: usize,
    /// The index of the buffer's row at which this sequence's rows begin.
    pub at: usize,
    /// The position, in its sequence, of the sequence's first row in the buffer.
    pub first: usize,
    /// The number of rows of this sequence in the buffer; may be 0.
    pub rows: usize,
}

impl Plan {
    /// Makes the plan of a batch of these tokens, with a run (a first position and a
    /// number of rows) for each sequence.
    ///
    /// # Errors
    /// The rows of all runs are not as many as the tokens; a run keeps more rows
    /// than it has; its positions overflow.
    pub fn new(tokens: Vec<u32>, runs: Vec<Run>) -> Result<Self, OpError> {
        let mut positions = Vec::with_capacity(tokens.len());
        let mut kept = Vec::new();
        for run in &runs {
            OpError::check_room("batch", "rows of a sequence", run.keep, run.rows)?;
            let end = run.first.checked_add(run.rows);
            let Some(end) = end.filter(|_| run.rows <= tokens.len() - positions.len()) else {
                let found = positions.len().saturating_add(run.rows);
                OpError::check("batch", "rows of all sequences", tokens.len(), found)?;
                return Err(OpError::Position {
                    position: run.first,
                    context: usize::MAX,
                });
            };
            let at = positions.len();
            positions.extend(run.first..end);
            kept.extend(at + run.rows - run.keep..at + run.rows);
        }
        let (rows, found) = (tokens.len(), positions.len());
        OpError::check("batch", "rows of all sequences", rows, found)?;
        Ok(Self {
            tokens,
            runs,
            positions,
            kept,
        })
    }

    /// Returns the token of each row of the batch.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// Returns each sequence's run in the batch: its first position, its rows, and how
    /// many outputs are read.
    pub fn runs(&self) -> &[Run] {
        &self.runs
    }

    /// Returns the position, in its sequence, of each row (token) of the batch.
    pub fn positions(&self) -> &[usize] {
        &self.positions
    }

    /// Returns the indices of the batch's kept rows (rows whose outputs are read),
    /// ascending.
    pub fn kept(&self) -> &[usize] {
        &self.kept
    }

    /// Returns the number of rows of a buffer that holds this subset of the batch's
    /// rows.
    pub fn count(&self, subset: Subset) -> usize {
        match subset {
            Subset::All => self.positions.len(),
            Subset::Kept => self.kept.len(),
        }
    }

    /// Returns the position, in its sequence, of row `row` of a buffer that holds this
    /// subset of the batch's rows.
    ///
    /// # Panics
    /// If the subset has no such row.
    pub fn position(&self, subset: Subset, row: usize) -> usize {
        match subset {
            Subset::All => self.positions[row],
            Subset::Kept => self.positions[self.kept[row]],
        }
    }

    /// Returns, for each sequence, the rows that it has in a buffer that holds this
    /// subset of the batch's rows.
    pub fn spans(&self, subset: Subset) -> impl Iterator<Item = Span> {
        let mut at = 0;
        self.runs.iter().enumerate().map(move |(sequence, run)| {
            let rows = match subset {
                Subset::All => run.rows,
                Subset::Kept => run.keep,
            };
            let span = Span {
                sequence,
                at,
                first: run.first + run.rows - rows,
                rows,
            };
            at += rows;
            span
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn run(first: usize, rows: usize, keep: usize) -> Run {
        Run { first, rows, keep }
    }

    #[test]
    fn rows_have_positions_and_the_last_of_a_run_are_kept() {
        let plan = Plan::new(vec![7; 6], vec![run(10, 3, 1), run(0, 2, 0), run(4, 1, 1)]).unwrap();
        assert_eq!(plan.positions(), [10, 11, 12, 0, 1, 4]);
        assert_eq!(plan.kept(), [2, 5]);
        assert_eq!(plan.position(Subset::Kept, 1), 4);
        let spans = |subset| -> Vec<_> {
            let of = plan.spans(subset);
            of.map(|s| (s.sequence, s.at, s.first, s.rows)).collect()
        };
        assert_eq!(
            spans(Subset::All),
            [(0, 0, 10, 3), (1, 3, 0, 2), (2, 5, 4, 1)]
        );
        assert_eq!(
            spans(Subset::Kept),
            [(0, 0, 12, 1), (1, 1, 2, 0), (2, 1, 4, 1)]
        );
    }

    #[test]
    fn plans_that_do_not_add_up_are_refused() {
        let refused = |tokens: usize, runs: &[Run]| {
            Plan::new(vec![0; tokens], runs.to_vec())
                .unwrap_err()
                .to_string()
        };
        assert_eq!(
            refused(2, &[run(0, 3, 0)]),
            "batch: rows of all sequences: expected 2, found 3"
        );
        assert_eq!(
            refused(3, &[run(0, 2, 0)]),
            "batch: rows of all sequences: expected 3, found 2"
        );
        assert_eq!(
            refused(2, &[run(0, 2, 3)]),
            "batch: rows of a sequence: expected 3, found 2"
        );
        assert!(refused(2, &[run(usize::MAX, 2, 0)]).contains("outside"));
    }
}
