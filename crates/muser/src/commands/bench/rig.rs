//! The rig of `muser bench`: a model with one sequence, on which forward calls of any width
//! are computed and timed at any depth.

use crate::measure::RowHash;
use muser_engine::Token;
use muser_model::{Cache, ModelError, Transformer, Want};
use muser_ops::Backend;
use std::time::{Duration, Instant};

/// The SHA-256 hashes of rows of logits, all together and each alone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RowHashes {
    /// The SHA-256 of the first rows of logits together, as many as the caller asked for,
    /// computed as by `muser logits --sha256`.
    pub(super) hash: String,
    /// The SHA-256 of each row of logits.
    pub(super) each: Vec<String>,
}

/// The benchmark's model and token sequence, of which the first `depth` tokens are in the
/// KV cache whenever no forward call is running.
pub(super) struct Rig<'a, B: Backend> {
    model: &'a Transformer<B>,
    cache: Cache<B>,
    ids: &'a [Token],
    depth: usize,
}

impl<'a, B: Backend> Rig<'a, B> {
    /// Makes a benchmark's rig (a model with one token sequence) with an empty KV cache:
    /// at depth 0.
    pub(super) fn new(model: &'a Transformer<B>, ids: &'a [Token]) -> Self {
        Self {
            model,
            cache: model.cache(ids.len()),
            ids,
            depth: 0,
        }
    }

    /// Moves the benchmark's sequence to a depth: computes tokens until the KV cache
    /// holds the first `depth`, or cuts the cache back to them.
    pub(super) fn go_to(&mut self, depth: usize) -> Result<(), ModelError> {
        self.depth = depth;
        // A ring (the cache of a layer with a window) may no longer hold what lies before the
        // cut: then all tokens are computed again.
        if self.cache.len() > depth && !self.cache.truncate(depth) {
            self.cache.clear();
        }
        let missing = &self.ids[self.cache.len()..depth];
        self.model
            .forward(&mut self.cache, missing, Want::Nothing, &mut |_, _| {})
    }

    /// Computes the rows of logits of the tokens after the stored ones, at least `rows`
    /// rows and one whole call, in forward calls of `width` tokens (the last can be
    /// shorter). With [`Want::Last`], makes one call and returns its last row.
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

    /// Times one forward call of `width` tokens; with `hash`, also returns the SHA-256 of
    /// its last row of logits.
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
