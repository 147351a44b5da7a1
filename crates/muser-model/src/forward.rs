//! The one forward pass, for any batch width.
//!
//! ```text
//! x = rms(embed(token))                              no weight on this norm
//! each layer:
//!     h = rms(x) · attn_norm
//!     q, k, v, g = Wq h, Wk h, Wv h, Wg h            one set, one shared input
//!     q, k = rms(q per head) · q_norm, rms(k per head) · k_norm
//!     sliding: q, k = rope(q), rope(k)
//!     store k, v;  a = attention(q) · sigmoid(g)
//!     x += rms'(Wo a) · post_attention_norm          rms': an epsilon of its own
//!     h = rms(x) · ffn_norm
//!     x += rms'(Wdown (silu(Wgate h) · (Wup h))) · post_ffw_norm
//! logits = soft_cap(Whead (rms(x) · output_norm))    scale first, then cap
//! ```
//!
//! Rows of a batch never meet but in attention, which reads what is stored. So
//! in the strict lane a row whose output nobody reads can be left out without
//! moving a bit of the others: the last layer computes K and V for every row and
//! the rest only for the rows whose logits are wanted. And rows of several
//! sequences go through one pass together ([`Transformer::forward_many`]): the
//! weights are read once for all of them, and only the operations on a cache
//! (store, attention) are done sequence by sequence, on a copy of its rows. That
//! copy is a few kilobytes a row and layer beside the layer's megabytes.
//!
//! In the pinned lane the width of a batch is part of its arithmetic: rows
//! are left out where llama.cpp leaves them out, before the last layer's FFN,
//! and sequences go one by one.

use crate::transformer::Layer;
use crate::{Cache, ModelError, Transformer, Workspace};
use muser_ops::{Backend, OpError, RopeTable, Stage};
use std::mem::swap;
use std::sync::Arc;

/// Rows of logits computed at once: 52 MB at a vocabulary of 202,048.
pub(crate) const HEAD_ROWS: usize = 64;

/// The slices of the head over `keep` rows: (first row, rows). A short end goes
/// with the slice before it, so that no slice is narrow where the whole is not;
/// with that, and slices that are multiples of four, a slice takes the routes
/// of the whole in the pinned lane.
pub(crate) fn head_slices(keep: usize) -> impl Iterator<Item = (usize, usize)> {
    let mut from = 0;
    std::iter::from_fn(move || {
        let left = keep - from;
        let n = if left < HEAD_ROWS + NARROW {
            left
        } else {
            HEAD_ROWS
        };
        let at = from;
        from += n;
        (n > 0).then_some((at, n))
    })
}

/// Rows of a batch below which the pinned lane's routes are others.
const NARROW: usize = 8;

/// The most rows that [`head_slices`] gives at once.
fn widest_slice(keep: usize) -> usize {
    keep.min(HEAD_ROWS + NARROW - 1)
}

/// Of which tokens a forward pass gives the logits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Want {
    /// Of none: the tokens are only stored.
    Nothing,
    /// Of the last one.
    Last,
    /// Of each.
    All,
    /// Not logits but what the head reads, after the last norm: one value a
    /// hidden dimension, of the last token.
    State,
}

/// What one sequence gets of a pass over several.
pub struct Step<'a, B: Backend> {
    /// The sequence.
    pub cache: &'a mut Cache<B>,
    /// What is appended to it.
    pub tokens: &'a [u32],
    /// Of which of them the logits are wanted.
    pub want: Want,
}

/// Why a pass over several sequences failed.
#[derive(Debug, thiserror::Error)]
#[error("{source}")]
pub struct BatchError {
    /// The step that is the reason; `None` if it is none in particular.
    pub step: Option<usize>,
    /// What is wrong.
    pub source: ModelError,
}

impl BatchError {
    fn of(step: usize) -> impl Fn(ModelError) -> Self {
        move |source| Self {
            step: Some(step),
            source,
        }
    }
}

impl<E: Into<ModelError>> From<E> for BatchError {
    fn from(source: E) -> Self {
        Self {
            step: None,
            source: source.into(),
        }
    }
}

/// One sequence's rows in a micro-batch.
#[derive(Clone, Copy)]
struct Part {
    /// Which step they are of.
    step: usize,
    /// How many of its tokens went before.
    done: usize,
    /// The position of the first row.
    first: usize,
    /// Whether the state is wanted and not the logits.
    state: bool,
    /// Where its rows are in the batch.
    at: usize,
    rows: usize,
    /// Where its kept rows are among all that are kept.
    kept_at: usize,
    /// Rows at the end whose output is read.
    keep: usize,
}

impl Part {
    /// Rows before those that are kept.
    fn skipped(self) -> usize {
        self.rows - self.keep
    }
}

/// The parts of a micro-batch, in the order of their rows.
#[derive(Default)]
struct Parts {
    parts: Vec<Part>,
    rows: usize,
    keep: usize,
}

impl Parts {
    fn push(&mut self, part: Part) {
        let (at, kept_at) = (self.rows, self.keep);
        self.rows += part.rows;
        self.keep += part.keep;
        self.parts.push(Part {
            at,
            kept_at,
            ..part
        });
    }

    /// The same with all rows kept.
    fn all_kept(&self) -> Self {
        let mut all = Self::default();
        for part in &self.parts {
            all.push(Part {
                keep: part.rows,
                ..*part
            });
        }
        all
    }

    /// Rows of the longest part that is not at row 0.
    fn widest_own(&self) -> usize {
        let after = self.parts.iter().filter(|p| p.at > 0);
        after.map(|p| p.rows).max().unwrap_or(0)
    }
}

impl<B: Backend> Transformer<B> {
    /// Appends `tokens` to the sequence and hands the logits wanted to `sink`,
    /// in order: the index in `tokens`, and one value a token of the
    /// vocabulary. No token is no work.
    ///
    /// # Errors
    /// Before any work: no room ([`ModelError::ContextFull`]), a token beyond
    /// the vocabulary, another model's cache, or a cache that an earlier
    /// failure left without its window ([`ModelError::CacheLost`]). During it:
    /// a logit that is not finite, or the backend's refusal; `sink` may have
    /// had the logits of earlier tokens by then.
    ///
    /// After an error the cache's length is what it was. If the failed call
    /// was so long that a ring overwrote the window before that length,
    /// `truncate(len())` says `false` and further calls are refused until the
    /// cache is cut back or cleared.
    pub fn forward(
        &self,
        cache: &mut Cache<B>,
        tokens: &[u32],
        want: Want,
        sink: &mut dyn FnMut(usize, &[f32]),
    ) -> Result<(), ModelError> {
        let work = cache.work.take();
        let mut work = work.unwrap_or_else(|| Box::new(self.workspace()));
        let mut alone = [Step {
            cache: &mut *cache,
            tokens,
            want,
        }];
        let done = self.forward_many(&mut work, &mut alone, &mut |_, i, row| sink(i, row));
        cache.work = Some(work);
        done.map_err(|e| e.source)
    }

    /// [`Transformer::forward`] of several sequences in one pass, which reads
    /// the weights once for all of them. `sink` is told the step, the index in
    /// its tokens and the logits; the tokens of a step come in order.
    ///
    /// Each sequence gets the bits that it would get alone. In the pinned lane,
    /// where the width of a batch moves bits, sequences go one by one.
    ///
    /// # Errors
    /// As [`Transformer::forward`], with the step that is the reason. No cache
    /// has grown then: the other steps may be tried again without that one.
    pub fn forward_many(
        &self,
        work: &mut Workspace<B>,
        steps: &mut [Step<'_, B>],
        sink: &mut dyn FnMut(usize, usize, &[f32]),
    ) -> Result<(), BatchError> {
        for (i, step) in steps.iter().enumerate() {
            self.admit(step.cache, step.tokens)
                .map_err(BatchError::of(i))?;
        }
        let mut done = vec![0; steps.len()];
        loop {
            let parts = self.next_batch(steps, &mut done);
            if parts.rows == 0 {
                break;
            }
            self.batch(work, steps, &parts, sink)?;
        }
        for step in steps {
            step.cache.len += step.tokens.len();
        }
        Ok(())
    }

    /// The rows of the next micro-batch: what is left of each step, as long as
    /// there is room.
    fn next_batch(&self, steps: &[Step<'_, B>], done: &mut [usize]) -> Parts {
        let most = self.lane.micro_batch();
        let mut parts = Parts::default();
        for (i, (step, done)) in steps.iter().zip(done).enumerate() {
            let left = step.tokens.len() - *done;
            let rows = left.min(most - parts.rows);
            if rows == 0 {
                continue;
            }
            if self.lane.width_matters() && parts.rows > 0 {
                break;
            }
            let keep = match step.want {
                Want::All => rows,
                Want::Last | Want::State if rows == left => 1,
                _ => 0,
            };
            parts.push(Part {
                step: i,
                done: *done,
                first: step.cache.len + *done,
                state: step.want == Want::State,
                at: 0,
                rows,
                kept_at: 0,
                keep,
            });
            *done += rows;
        }
        parts
    }

    /// Everything that can be refused before a position is stored.
    fn admit(&self, cache: &Cache<B>, tokens: &[u32]) -> Result<(), ModelError> {
        if tokens.is_empty() {
            return Ok(());
        }
        if !Arc::ptr_eq(&cache.config, &self.config) {
            return Err(ModelError::ForeignCache);
        }
        let (len, context) = (cache.len, cache.context);
        if tokens.len() > context - len {
            return Err(ModelError::ContextFull {
                len,
                adding: tokens.len(),
                context,
            });
        }
        let vocab = self.config.vocab;
        if let Some(index) = tokens.iter().position(|&t| t as usize >= vocab) {
            return Err(ModelError::Token {
                index,
                token: tokens[index],
                vocab,
            });
        }
        if !cache.holds(len) {
            return Err(ModelError::CacheLost { len });
        }
        Ok(())
    }

    fn batch(
        &self,
        s: &mut Workspace<B>,
        steps: &mut [Step<'_, B>],
        batch: &Parts,
        sink: &mut dyn FnMut(usize, usize, &[f32]),
    ) -> Result<(), BatchError> {
        let (b, config) = (&*self.backend, &*self.config);
        let (rows, keep) = (batch.rows, batch.keep);
        s.reserve(b, config, rows, widest_slice(keep));
        s.reserve_own(b, config, batch.widest_own());
        let mut tokens = Vec::with_capacity(rows);
        for p in &batch.parts {
            let step = &mut steps[p.step];
            tokens.extend_from_slice(&step.tokens[p.done..p.done + p.rows]);
            step.cache.high = step.cache.high.max(p.first + p.rows);
        }

        b.mark(Stage::Embed);
        b.embed(&self.embedding, &tokens, &mut s.h)?;
        b.rms_norm(rows, &s.h, None, config.embed.norm.unwrap_or(0.0), &mut s.x)?;
        let rope = self
            .rope
            .runs(batch.parts.iter().map(|p| (p.first, p.rows)));
        let all = batch.all_kept();
        let last = self.layers.len() - 1;
        for (i, layer) in self.layers.iter().enumerate() {
            let keep = if i == last { keep } else { rows };
            let whole = i < last || (self.lane.width_matters() && keep > 0);
            let attended = if whole { &all } else { batch };
            b.mark(Stage::Attention(i));
            self.attend(layer, i, s, steps, &rope, attended)?;
            if keep < attended.keep {
                gather(b, &mut s.x, &mut s.tail, batch)?;
            }
            if keep > 0 {
                b.mark(Stage::Ffn(i));
                self.feed(layer, s, keep)?;
            }
        }
        self.logits(s, batch, sink)
    }

    /// Attention's half of a layer. The rows kept are the first ones of `x`
    /// afterwards.
    fn attend(
        &self,
        layer: &Layer<B>,
        index: usize,
        s: &mut Workspace<B>,
        steps: &mut [Step<'_, B>],
        rope: &RopeTable,
        batch: &Parts,
    ) -> Result<(), OpError> {
        let b = &*self.backend;
        let sliding = self.config.layers[index].attn.rope.is_some();
        let (rows, keep) = (batch.rows, batch.keep);

        b.rms_norm(
            rows,
            &s.x,
            Some(&layer.attn_norm.weights),
            layer.attn_norm.eps,
            &mut s.h,
        )?;
        if keep == rows {
            let set = [&layer.q, &layer.k, &layer.v, &layer.gate];
            let out = &mut [&mut s.q, &mut s.k, &mut s.v, &mut s.gate];
            b.project(rows, &set, &s.h, out)?;
        } else {
            let out = &mut [&mut s.k, &mut s.v];
            b.project(rows, &[&layer.k, &layer.v], &s.h, out)?;
        }
        b.head_norm(rows, &mut s.k, &layer.k_norm.weights, layer.k_norm.eps)?;
        if sliding {
            b.rope(rows, &mut s.k, rope)?;
        }
        for p in &batch.parts {
            let kv = &mut steps[p.step].cache.kv[index];
            let (mut k, mut v) = (&s.k, &s.v);
            if p.at > 0 {
                b.copy_rows(p.rows, k, p.at, &mut s.own.k, 0)?;
                b.copy_rows(p.rows, v, p.at, &mut s.own.v, 0)?;
                (k, v) = (&s.own.k, &s.own.v);
            }
            b.kv_store(kv, p.first, p.rows, k, v)?;
        }
        if keep == 0 {
            return Ok(());
        }

        if keep < rows {
            gather(b, &mut s.h, &mut s.tail, batch)?;
            gather(b, &mut s.x, &mut s.tail, batch)?;
            let out = &mut [&mut s.q, &mut s.gate];
            b.project(keep, &[&layer.q, &layer.gate], &s.h, out)?;
        }
        b.head_norm(keep, &mut s.q, &layer.q_norm.weights, layer.q_norm.eps)?;
        if sliding {
            let kept = |p: &Part| (p.first + p.skipped(), p.keep);
            let tail = (keep < rows).then(|| self.rope.runs(batch.parts.iter().map(kept)));
            b.rope(keep, &mut s.q, tail.as_ref().unwrap_or(rope))?;
        }
        self.attention(layer, index, s, steps, batch)?;
        b.sigmoid_gate(keep, &mut s.attended, &s.gate)?;
        b.project(keep, &[&layer.output], &s.attended, &mut [&mut s.h])?;
        let post = &layer.post_attn_norm;
        b.add_rms_norm(keep, &mut s.x, &s.h, &post.weights, post.eps)
    }

    /// Attention itself, from `q` to `attended`, of the rows kept.
    fn attention(
        &self,
        layer: &Layer<B>,
        index: usize,
        s: &mut Workspace<B>,
        steps: &[Step<'_, B>],
        batch: &Parts,
    ) -> Result<(), OpError> {
        let (b, desc) = (&*self.backend, &layer.attention);
        for p in batch.parts.iter().filter(|p| p.keep > 0) {
            let kv = &steps[p.step].cache.kv[index];
            let from = p.first + p.skipped();
            if p.kept_at == 0 {
                b.attention(desc, from, p.keep, &s.q, kv, &mut s.attended)?;
                continue;
            }
            let own = &mut s.own;
            b.copy_rows(p.keep, &s.q, p.kept_at, &mut own.q, 0)?;
            b.attention(desc, from, p.keep, &own.q, kv, &mut own.attended)?;
            b.copy_rows(p.keep, &own.attended, 0, &mut s.attended, p.kept_at)?;
        }
        Ok(())
    }

    /// The FFN's half of a layer.
    fn feed(&self, layer: &Layer<B>, s: &mut Workspace<B>, rows: usize) -> Result<(), OpError> {
        let b = &*self.backend;
        let norm = &layer.ffn_norm;
        b.rms_norm(rows, &s.x, Some(&norm.weights), norm.eps, &mut s.h)?;
        let set = [&layer.ffn_gate, &layer.ffn_up];
        b.project(rows, &set, &s.h, &mut [&mut s.ffn_gate, &mut s.ffn_up])?;
        b.silu_product(rows, &mut s.ffn_gate, &s.ffn_up)?;
        b.project(rows, &[&layer.ffn_down], &s.ffn_gate, &mut [&mut s.h])?;
        let post = &layer.post_ffn_norm;
        b.add_rms_norm(rows, &mut s.x, &s.h, &post.weights, post.eps)
    }

    /// Norm and head over the rows kept, a slice at a time.
    fn logits(
        &self,
        s: &mut Workspace<B>,
        batch: &Parts,
        sink: &mut dyn FnMut(usize, usize, &[f32]),
    ) -> Result<(), BatchError> {
        let (b, config) = (&*self.backend, &*self.config);
        let norm = Some(&self.output_norm.weights);
        let eps = self.output_norm.eps;
        let kept: Vec<Kept> = batch.parts.iter().flat_map(Kept::of).collect();
        b.mark(Stage::Head);
        for (from, n) in head_slices(batch.keep) {
            if from == 0 {
                b.rms_norm(n, &s.x, norm, eps, &mut s.h)?;
            } else {
                b.copy_rows(n, &s.x, from, &mut s.tail, 0)?;
                b.rms_norm(n, &s.tail, norm, eps, &mut s.h)?;
            }
            let kept = &kept[from..from + n];
            if kept.iter().any(|k| k.state) {
                let mut states = vec![0.0; n * config.hidden];
                b.read(&s.h, &mut states)?;
                give(kept, &states, config.hidden, true, sink)?;
            }
            if kept.iter().any(|k| !k.state) {
                b.project(n, &[&self.head], &s.h, &mut [&mut s.logits])?;
                b.soft_cap(n, &mut s.logits, config.out.scale, config.out.cap)?;
                let len = n * config.vocab;
                let rows = match b.view(&s.logits).and_then(|rows| rows.get(..len)) {
                    Some(rows) => rows,
                    None => {
                        b.read(&s.logits, &mut s.host[..len])?;
                        &s.host[..len]
                    }
                };
                give(kept, rows, config.vocab, false, sink)?;
            }
        }
        Ok(())
    }
}

/// A row that is kept: whose it is.
struct Kept {
    step: usize,
    /// Its index among the step's tokens.
    index: usize,
    position: usize,
    state: bool,
}

impl Kept {
    fn of(p: &Part) -> impl Iterator<Item = Self> + use<> {
        let p = *p;
        (p.skipped()..p.rows).map(move |r| Self {
            step: p.step,
            index: p.done + r,
            position: p.first + r,
            state: p.state,
        })
    }
}

/// Hands the rows that are states, or those that are not, to the sink.
fn give(
    kept: &[Kept],
    rows: &[f32],
    width: usize,
    states: bool,
    sink: &mut dyn FnMut(usize, usize, &[f32]),
) -> Result<(), BatchError> {
    for (k, row) in kept.iter().zip(rows.chunks_exact(width)) {
        if k.state == states {
            check_finite(k.position, row).map_err(BatchError::of(k.step))?;
            sink(k.step, k.index, row);
        }
    }
    Ok(())
}

/// Moves the rows kept to the front of `x`, by way of `room`.
fn gather<B: Backend>(
    b: &B,
    x: &mut B::Buffer,
    room: &mut B::Buffer,
    batch: &Parts,
) -> Result<(), OpError> {
    for p in batch.parts.iter().filter(|p| p.keep > 0) {
        b.copy_rows(p.keep, x, p.at + p.skipped(), room, p.kept_at)?;
    }
    swap(x, room);
    Ok(())
}

/// The first logit that is not finite, as an error.
fn check_finite(position: usize, row: &[f32]) -> Result<(), ModelError> {
    // Without an early exit, and of operations that every x86-64 has in vectors.
    const EXPONENT: u32 = 0x7f80_0000;
    let any = |any: bool, v: &f32| any | (v.to_bits() & EXPONENT == EXPONENT);
    if !row.iter().fold(false, any) {
        return Ok(());
    }
    match row.iter().position(|v| !v.is_finite()) {
        None => Ok(()),
        Some(token) => Err(ModelError::NonFinite {
            position,
            token,
            found: row[token],
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_cover_the_rows_and_none_is_narrow_where_the_whole_is_not() {
        for keep in 0..600 {
            let slices: Vec<_> = head_slices(keep).collect();
            let mut at = 0;
            for (i, &(from, n)) in slices.iter().enumerate() {
                assert_eq!(from, at);
                assert!(
                    n <= widest_slice(keep) && n >= keep.min(NARROW),
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
