//! Attention over an f16 KV cache, in the strict lane (muser's own arithmetic), by
//! chunks of 64 positions.
//!
//! K and V are rounded to f16 when they are stored, and converted back exactly.
//! Positions are cut into chunks of 64, aligned at absolute position 0. Position t is
//! visible to position p if and only if `t <= p` and, on a layer with a sliding window,
//! `p - t < window`. For one query q and head, with the keys k_t and values v_t of
//! position t:
//!
//! ```text
//! s_t = (Σ_d q_d · k_td) · scale        fma chain, d ascending, from +0
//! each chunk c with a visible position, over its visible t ascending:
//!     m_c = max s_t
//!     p_t = exp(s_t - m_c)
//!     l_c = Σ p_t                       ascending, from +0
//!     o_c = Σ p_t · v_t                 fma chain, ascending, from +0
//! merge, chunks ascending, from the first:
//!     m' = max(m, m_c);  α = exp(m - m');  β = exp(m_c - m')
//!     l  = fma(l_c, β, l · α);  o = fma(o_c, β, o · α);  m = m'
//! result o / l
//! ```
//!
//! The cut into chunks depends on absolute positions alone, so the result depends
//! neither on the batch nor on the number of threads. A NaN among the scores makes the
//! result NaN: `max` may skip it, but the sum of exponentials does not.

use crate::math;
use muser_quant::f16;

/// The number of positions of the KV cache in one chunk, 64: attention takes a softmax
/// over each chunk, then merges the results.
pub const CHUNK: usize = 64;

/// The shape of an attention operation: its heads, their size, window and scale.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Attention {
    /// The number of query heads of attention, a multiple of `kv_heads`. Head h reads KV
    /// head `h / (heads / kv_heads)`.
    pub heads: usize,
    /// The number of KV heads of attention: the heads of K and V that query heads share.
    pub kv_heads: usize,
    /// The number of values in one attention head.
    pub head_dim: usize,
    /// The number of positions that a query of a layer with a sliding window sees, its
    /// own included; `None` if it sees all.
    pub window: Option<usize>,
    /// The factor that attention scores (products of query and key) are multiplied by.
    pub scale: f32,
}

impl Attention {
    /// Returns the first position of the sequence that is visible to a query at position
    /// `p`.
    pub fn first_visible(&self, p: usize) -> usize {
        self.window.map_or(0, |w| (p + 1).saturating_sub(w))
    }
}

/// The shape of one layer's KV cache, and the positions that it must hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvLayout {
    /// The number of KV heads in this layer of the cache.
    pub kv_heads: usize,
    /// The number of values in one head of the KV cache.
    pub head_dim: usize,
    /// The window of a layer with a sliding window, in positions; its KV cache is a ring.
    /// `None` for a layer whose cache keeps every position.
    pub window: Option<usize>,
    /// The number of positions in the whole context, the most that a sequence can have.
    pub context: usize,
    /// The largest number of positions that are stored in the KV cache before attention
    /// reads any of them.
    pub max_batch: usize,
}

impl KvLayout {
    /// Returns the number of chunks (of 64 positions) that the KV cache of a layer holds
    /// at once. The ring of a layer with a sliding window has room for the window of a
    /// batch's first row, for the batch, and for a partial chunk at either end, but for
    /// no more than the whole context.
    pub fn chunks(&self) -> usize {
        let whole = self.context.div_ceil(CHUNK);
        match self.window {
            Some(w) => whole.min((w + self.max_batch).div_ceil(CHUNK) + 1),
            None => whole,
        }
    }

    /// Returns the number of bytes in one chunk (64 positions) of the KV cache: K and V
    /// in f16.
    pub fn chunk_bytes(&self) -> usize {
        2 * CHUNK * self.kv_heads * self.head_dim * size_of::<u16>()
    }

    /// Returns whether a KV cache into which the positions below `stored_end` have been
    /// written still holds every earlier position that is visible to `position`. The ring
    /// of a layer with a sliding window may have overwritten some.
    pub fn holds(&self, position: usize, stored_end: usize) -> bool {
        let Some(w) = self.window else { return true };
        let first = (position + 1).saturating_sub(w) / CHUNK;
        let newest = stored_end.max(1).div_ceil(CHUNK) - 1;
        newest < first + self.chunks()
    }
}

/// Computes attention of one query head into `out`, in the strict lane (muser's own
/// arithmetic).
///
/// The functions `k(t)` and `v(t)` return the f16 bits of K and V at position t in this
/// head's KV head; `p` is the query's own position.
pub fn attend<'a>(
    desc: &Attention,
    p: usize,
    q: &[f32],
    k: impl Fn(usize) -> &'a [u16],
    v: impl Fn(usize) -> &'a [u16],
    out: &mut [f32],
) {
    let first = desc.first_visible(p);
    let (mut m, mut l) = (f32::NEG_INFINITY, 0.0f32);
    let mut o = vec![0.0f32; q.len()];
    for chunk in first / CHUNK..=p / CHUNK {
        let visible = first.max(chunk * CHUNK)..(p + 1).min((chunk + 1) * CHUNK);
        let (m_c, l_c, o_c) = attend_chunk(desc, visible, q, &k, &v);
        if chunk == first / CHUNK {
            (m, l, o) = (m_c, l_c, o_c);
            continue;
        }
        let top = max(m, m_c);
        let (alpha, beta) = (math::exp(m - top), math::exp(m_c - top));
        l = l_c.mul_add(beta, l * alpha);
        for (o, oc) in o.iter_mut().zip(o_c) {
            *o = oc.mul_add(beta, *o * alpha);
        }
        m = top;
    }
    for (out, o) in out.iter_mut().zip(o) {
        *out = o / l;
    }
}

/// Computes attention over the visible positions of one chunk (64 positions): the
/// maximum score, the sum of exponentials, and the weighted sum of V.
fn attend_chunk<'a>(
    desc: &Attention,
    visible: std::ops::Range<usize>,
    q: &[f32],
    k: &impl Fn(usize) -> &'a [u16],
    v: &impl Fn(usize) -> &'a [u16],
) -> (f32, f32, Vec<f32>) {
    let scores: Vec<f32> = visible
        .clone()
        .map(|t| {
            let dot = q
                .iter()
                .zip(k(t))
                .fold(0.0f32, |s, (&q, &k)| q.mul_add(f16::to_f32(k), s));
            dot * desc.scale
        })
        .collect();
    let m = scores.iter().copied().fold(f32::NEG_INFINITY, max);
    let mut l = 0.0f32;
    let mut o = vec![0.0f32; q.len()];
    for (t, s) in visible.zip(scores) {
        let p = math::exp(s - m);
        l += p;
        for (o, &v) in o.iter_mut().zip(v(t)) {
            *o = p.mul_add(f16::to_f32(v), *o);
        }
    }
    (m, l, o)
}

/// Returns the larger of two values; `b` if either is NaN.
fn max(a: f32, b: f32) -> f32 {
    if a > b { a } else { b }
}
