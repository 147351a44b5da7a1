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
//!     x += rms'(Wo a) · post_attention_norm          rms': POST_NORM_EPS
//!     h = rms(x) · ffn_norm
//!     x += rms'(Wdown (silu(Wgate h) · (Wup h))) · post_ffw_norm
//! logits = soft_cap(Whead (rms(x) · output_norm))    scale first, then cap
//! ```
//!
//! Rows of a batch never meet but in attention, which reads what is stored. So
//! in the strict lane a row whose output nobody reads can be left out without
//! moving a bit of the others: the last layer computes K and V for every row and
//! the rest only for the rows whose logits are wanted.
//!
//! In the pinned lane the width of a batch is part of its arithmetic, and rows
//! are left out where llama.cpp leaves them out: before the last layer's FFN.

use crate::cache::Scratch;
use crate::transformer::Layer;
use crate::{Cache, ModelError, Transformer};
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
}

/// Where a micro-batch stands.
#[derive(Clone, Copy)]
struct Rows {
    /// The position of its first row.
    first: usize,
    rows: usize,
    /// Rows at the end whose output is read.
    keep: usize,
}

impl Rows {
    /// Rows before those that are kept.
    fn skipped(self) -> usize {
        self.rows - self.keep
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
        if tokens.is_empty() {
            return Ok(());
        }
        self.admit(cache, tokens)?;
        let most = self.lane.micro_batch();
        let batches = tokens.len().div_ceil(most);
        for (n, batch) in tokens.chunks(most).enumerate() {
            let keep = match want {
                Want::All => batch.len(),
                Want::Last if n + 1 == batches => 1,
                _ => 0,
            };
            let at = n * most;
            let place = Rows {
                first: cache.len + at,
                rows: batch.len(),
                keep,
            };
            let skipped = at + place.skipped();
            self.batch(cache, batch, place, &mut |i, row| sink(skipped + i, row))?;
        }
        cache.len += tokens.len();
        Ok(())
    }

    /// Everything that can be refused before a position is stored.
    fn admit(&self, cache: &Cache<B>, tokens: &[u32]) -> Result<(), ModelError> {
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
        cache: &mut Cache<B>,
        tokens: &[u32],
        place: Rows,
        sink: &mut dyn FnMut(usize, &[f32]),
    ) -> Result<(), ModelError> {
        let (b, config) = (&*self.backend, &*self.config);
        let Rows { first, rows, keep } = place;
        let Cache { kv, scratch: s, .. } = cache;
        s.reserve(b, config, rows, widest_slice(keep));
        cache.high = cache.high.max(first + rows);

        b.mark(Stage::Embed);
        b.embed(&self.embedding, tokens, &mut s.h)?;
        b.rms_norm(rows, &s.h, None, config.rms_eps, &mut s.x)?;
        let rope = self.rope.table(first, rows);
        let last = self.layers.len() - 1;
        for (i, (layer, kv)) in self.layers.iter().zip(kv).enumerate() {
            let keep = if i == last { keep } else { rows };
            let whole = self.lane.width_matters() && keep > 0;
            let attended = if whole { rows } else { keep };
            let place = Rows {
                keep: attended,
                ..place
            };
            b.mark(Stage::Attention(i));
            self.attend(layer, kv, s, &rope, place)?;
            if keep < attended {
                b.copy_rows(keep, &s.x, rows - keep, &mut s.tail)?;
                swap(&mut s.x, &mut s.tail);
            }
            if keep > 0 {
                b.mark(Stage::Ffn(i));
                self.feed(layer, s, keep)?;
            }
        }
        self.logits(s, place, sink)
    }

    /// Attention's half of a layer. The rows kept are the first ones of `x`
    /// afterwards.
    fn attend(
        &self,
        layer: &Layer<B>,
        kv: &mut B::Kv,
        s: &mut Scratch<B>,
        rope: &RopeTable,
        place: Rows,
    ) -> Result<(), OpError> {
        let (b, config) = (&*self.backend, &*self.config);
        let (eps, sliding) = (config.rms_eps, layer.attention.window.is_some());
        let Rows { first, rows, keep } = place;

        b.rms_norm(rows, &s.x, Some(&layer.attn_norm), eps, &mut s.h)?;
        if keep == rows {
            let set = [&layer.q, &layer.k, &layer.v, &layer.gate];
            let out = &mut [&mut s.q, &mut s.k, &mut s.v, &mut s.gate];
            b.project(rows, &set, &s.h, out)?;
        } else {
            let out = &mut [&mut s.k, &mut s.v];
            b.project(rows, &[&layer.k, &layer.v], &s.h, out)?;
        }
        b.head_norm(rows, &mut s.k, &layer.k_norm, eps)?;
        if sliding {
            b.rope(rows, &mut s.k, rope)?;
        }
        b.kv_store(kv, first, rows, &s.k, &s.v)?;
        if keep == 0 {
            return Ok(());
        }

        let from = first + place.skipped();
        let tail_rope = (keep < rows).then(|| self.rope.table(from, keep));
        if keep < rows {
            for moved in [&mut s.h, &mut s.x] {
                b.copy_rows(keep, moved, place.skipped(), &mut s.tail)?;
                swap(moved, &mut s.tail);
            }
            let out = &mut [&mut s.q, &mut s.gate];
            b.project(keep, &[&layer.q, &layer.gate], &s.h, out)?;
        }
        b.head_norm(keep, &mut s.q, &layer.q_norm, eps)?;
        if sliding {
            b.rope(keep, &mut s.q, tail_rope.as_ref().unwrap_or(rope))?;
        }
        b.attention(&layer.attention, from, keep, &s.q, kv, &mut s.attended)?;
        b.sigmoid_gate(keep, &mut s.attended, &s.gate)?;
        b.project(keep, &[&layer.output], &s.attended, &mut [&mut s.h])?;
        let post = &layer.post_attn_norm;
        b.add_rms_norm(keep, &mut s.x, &s.h, post, config.post_norm_eps)
    }

    /// The FFN's half of a layer.
    fn feed(&self, layer: &Layer<B>, s: &mut Scratch<B>, rows: usize) -> Result<(), OpError> {
        let (b, config) = (&*self.backend, &*self.config);
        b.rms_norm(rows, &s.x, Some(&layer.ffn_norm), config.rms_eps, &mut s.h)?;
        let set = [&layer.ffn_gate, &layer.ffn_up];
        b.project(rows, &set, &s.h, &mut [&mut s.ffn_gate, &mut s.ffn_up])?;
        b.silu_product(rows, &mut s.ffn_gate, &s.ffn_up)?;
        b.project(rows, &[&layer.ffn_down], &s.ffn_gate, &mut [&mut s.h])?;
        let post = &layer.post_ffn_norm;
        b.add_rms_norm(rows, &mut s.x, &s.h, post, config.post_norm_eps)
    }

    /// Norm and head over the rows kept, a slice at a time.
    fn logits(
        &self,
        s: &mut Scratch<B>,
        place: Rows,
        sink: &mut dyn FnMut(usize, &[f32]),
    ) -> Result<(), ModelError> {
        let (b, config) = (&*self.backend, &*self.config);
        let norm = Some(&self.output_norm);
        b.mark(Stage::Head);
        for (from, n) in head_slices(place.keep) {
            if from == 0 {
                b.rms_norm(n, &s.x, norm, config.rms_eps, &mut s.h)?;
            } else {
                b.copy_rows(n, &s.x, from, &mut s.tail)?;
                b.rms_norm(n, &s.tail, norm, config.rms_eps, &mut s.h)?;
            }
            b.project(n, &[&self.head], &s.h, &mut [&mut s.logits])?;
            b.soft_cap(n, &mut s.logits, config.logit_scale, config.softcap)?;
            let host = &mut s.host[..n * config.vocab];
            b.read(&s.logits, host)?;
            for (r, row) in host.chunks_exact(config.vocab).enumerate() {
                check_finite(place.first + place.skipped() + from + r, row)?;
                sink(from + r, row);
            }
        }
        Ok(())
    }
}

/// The first logit that is not finite, as an error.
fn check_finite(position: usize, row: &[f32]) -> Result<(), ModelError> {
    // A maximum over exponents has no early exit, so it is vectorised.
    let exponent = |m: u32, v: &f32| m.max(v.to_bits() & 0x7f80_0000);
    if row.iter().fold(0, exponent) < 0x7f80_0000 {
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
