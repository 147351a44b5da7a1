//! Attention over an f16 cache, by chunks of 64 positions.
//!
//! K and V are rounded to f16 when stored and read back exactly. Positions
//! are cut into chunks of 64, aligned at absolute position 0. Position t is
//! visible to position p iff `t <= p` and, on a sliding layer,
//! `p - t < window`. For one query and head:
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
//! The cut depends on absolute positions alone, so neither the batch nor the
//! number of threads can move it. A NaN among the scores makes the result
//! NaN: `max` may pass over it, the sum of exponentials does not.

use crate::math;
use muser_quant::f16;

/// Positions in one chunk.
pub const CHUNK: usize = 64;

/// The shape of an attention operation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Attention {
    /// Query heads; a multiple of the KV heads. Head h reads KV head
    /// `h / (heads / kv_heads)`.
    pub heads: usize,
    /// KV heads.
    pub kv_heads: usize,
    /// Values in a head.
    pub head_dim: usize,
    /// Positions that a sliding layer sees, itself included; `None` sees all.
    pub window: Option<usize>,
    /// Factor of the scores.
    pub scale: f32,
}

impl Attention {
    /// The first position visible to `p`.
    pub fn first_visible(&self, p: usize) -> usize {
        self.window.map_or(0, |w| (p + 1).saturating_sub(w))
    }
}

/// What one layer's cache must hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvLayout {
    /// KV heads.
    pub kv_heads: usize,
    /// Values in a head.
    pub head_dim: usize,
    /// The window of a sliding layer, whose cache is a ring; `None` grows.
    pub window: Option<usize>,
    /// Positions of the whole context.
    pub context: usize,
    /// The most positions stored before attention reads any of them.
    pub max_batch: usize,
}

impl KvLayout {
    /// Chunks that the cache holds at once. A ring keeps the window of the
    /// first row of a batch, the batch, and the two partial chunks at its
    /// ends; never more than the context needs.
    pub fn chunks(&self) -> usize {
        let whole = self.context.div_ceil(CHUNK);
        match self.window {
            Some(w) => whole.min((w + self.max_batch).div_ceil(CHUNK) + 1),
            None => whole,
        }
    }

    /// Bytes of one chunk: K and V in f16.
    pub fn chunk_bytes(&self) -> usize {
        2 * CHUNK * self.kv_heads * self.head_dim * size_of::<u16>()
    }

    /// Whether a cache in which positions below `stored_end` have been
    /// written still holds what a row at `position` needs from before it.
    pub fn holds(&self, position: usize, stored_end: usize) -> bool {
        let Some(w) = self.window else { return true };
        let first = (position + 1).saturating_sub(w) / CHUNK;
        let newest = stored_end.max(1).div_ceil(CHUNK) - 1;
        newest < first + self.chunks()
    }
}

/// Attention of one query head.
///
/// `k(t)` and `v(t)` give the f16 bits of position t for this head's KV head;
/// `p` is the query's own position.
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

/// The larger; the second if they do not compare (a NaN in either).
fn max(a: f32, b: f32) -> f32 {
    if a > b { a } else { b }
}
