//! A model, a sequence, and calls of any width at any depth of it.

use crate::measure::RowHash;
use muser_engine::Token;
use muser_model::{Cache, ModelError, Transformer, Want};
use muser_ops::Backend;
use std::time::{Duration, Instant};

/// Rows of logits by their SHA-256.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RowHashes {
    /// Of the first so many together, as `muser logits --sha256` has it.
    pub(super) hash: String,
    /// Of each.
    pub(super) each: Vec<String>,
}

/// The sequence stands at `depth` between calls.
pub(super) struct Rig<'a, B: Backend> {
    model: &'a Transformer<B>,
    cache: Cache<B>,
    ids: &'a [Token],
    depth: usize,
}

impl<'a, B: Backend> Rig<'a, B> {
    /// At depth 0 of this sequence.
    pub(super) fn new(model: &'a Transformer<B>, ids: &'a [Token]) -> Self {
        Self {
            model,
            cache: model.cache(ids.len()),
            ids,
            depth: 0,
        }
    }

    /// Stores the first `depth` tokens, or cuts back to them.
    pub(super) fn go_to(&mut self, depth: usize) -> Result<(), ModelError> {
        self.depth = depth;
        // A ring may no longer hold what lies before the cut: all over again.
        if self.cache.len() > depth && !self.cache.truncate(depth) {
            self.cache.clear();
        }
        let missing = &self.ids[self.cache.len()..depth];
        self.model
            .forward(&mut self.cache, missing, Want::Nothing, &mut |_, _| {})
    }

    /// The rows after the depth in calls of `width`, the last one shorter if
    /// need be: `rows` of them, or one call if that is more. With
    /// [`Want::Last`] one call, and its last row.
    pub(super) fn rows(
        &mut self,
        width: usize,
        rows: usize,
        want: Want,
    ) -> Result<RowHashes, ModelError> {
        let count = match want {
            Want::All => width.max(rows),
            Want::Last | Want::Nothing | Want::State => width,
        };
        let (mut all, mut each) = (RowHash::default(), Vec::new());
        for call in self.ids[self.depth..][..count].chunks(width) {
            self.model
                .forward(&mut self.cache, call, want, &mut |_, row| {
                    if each.len() < rows {
                        all.add(row);
                    }
                    let mut one = RowHash::default();
                    one.add(row);
                    each.push(one.hex());
                })?;
        }
        self.go_to(self.depth)?;
        let hash = all.hex();
        Ok(RowHashes { hash, each })
    }

    /// One call, its time, and the SHA-256 of its last row if asked for.
    pub(super) fn time(
        &mut self,
        width: usize,
        want: Want,
        hash: bool,
    ) -> Result<(Duration, Option<String>), ModelError> {
        let call = &self.ids[self.depth..][..width];
        let mut last = Vec::new();
        let start = Instant::now();
        let keep = &mut |i: usize, row: &[f32]| {
            if hash && i + 1 == width {
                last.extend_from_slice(row);
            }
        };
        self.model.forward(&mut self.cache, call, want, keep)?;
        let time = start.elapsed();
        self.go_to(self.depth)?;
        let hex = hash.then(|| {
            let mut hash = RowHash::default();
            hash.add(&last);
            hash.hex()
        });
        Ok((time, hex))
    }
}
