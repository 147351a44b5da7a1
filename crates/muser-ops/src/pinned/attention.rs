//! Flash attention in the pinned lane (llama.cpp's arithmetic), in three forms that the
//! number of rows in the call chooses.
//!
//! Here `end` is one past the last row's position, and `n_kv` is `end` rounded up to a
//! multiple of 256, at least 256: the number of slots (places of positions in the K/V
//! cache) that llama.cpp visits, masked or not. vexp is [`super::math::exp`], exp is the
//! math library's.
//!
//! ```text
//! fewer than 64 rows: one query at a time over its visible t, ascending
//!     s = (k_t · f16(q), in vec_dot's order for F16) · scale
//!     s > M:  a = f16(a · exp(M - s)), S · exp(M - s), M = s, p = 1
//!     else    p = exp(s - M)
//!     a_d = f16(fma(v_td, p, a_d));   S = fma(S, factor, p)
//!     result a_d · (1 / S)
//! one row and n_kv >= 512: the same over `threads` parts of ceil(n_kv / threads)
//!     slots, joined ascending, skipping parts without a visible slot:
//!     M' = max(M, M_c);  α = exp(M - M'), β = exp(M_c - M')
//!     o = fma(o, α, a_c · β);  S = fma(S, α, S_c · β);    result o · (1 / S)
//! 64 rows and more: tiles of up to 64 queries of one head and 64 slots
//!     s_t = (fma chain of q_d · k_td from +0, q in f32) · scale; masked: -inf
//!     m = max s_t;  if m is more than M: factor exp(M - m), M = m
//!     p_t = vexp(s_t - M);  S = f32(S + Σ in f64 of the folds of L values of p)
//!     o_d = fma chain over all 64 slots of p_t · v_td, masked ones with p = +0
//!     result o_d · (1 / S)
//! ```
//!
//! A tile of slots of the KV cache that is masked for a whole tile of queries is
//! skipped. The number of threads decides which rows share a tile of queries, but this
//! can only change the sign of a zero. Slots past `end` hold zeros, as in a new cache.

use super::{dot, glibc, math};
use crate::{Attention, Profile};
use muser_quant::{DType, f16};
use std::ops::Range;

/// The number of slots (places of positions in the KV cache) in a tile of llama.cpp's
/// attention, and the largest number of queries in one.
pub const TILE: usize = 64;

/// The number of rows (queries) of a call from which on llama.cpp computes attention by
/// tiles.
pub const TILED_FROM: usize = 64;

/// Returns the number of slots (places of positions in the KV cache) that llama.cpp's
/// attention visits in a call ending at position `end`.
pub fn slots(end: usize) -> usize {
    end.next_multiple_of(256).max(256)
}

/// One of the three forms in which llama.cpp computes attention (query by query, split
/// among threads, or in tiles), which decides the bits of the result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Form {
    /// The form of attention that takes one query at a time.
    Single,
    /// The form of attention for one query whose slots (places of positions in the KV
    /// cache) are cut into a part for each thread.
    Split {
        /// The number of slots (places of positions in the KV cache) for which one thread
        /// computes attention.
        part: usize,
    },
    /// The form of attention that takes tiles of 64 queries and 64 slots (places of
    /// positions in the KV cache).
    Tiled,
}

/// Chooses the form of attention for a call of `rows` rows that ends at position `end`,
/// one past its last row, as llama.cpp does on this many threads.
pub fn form(rows: usize, end: usize, threads: usize) -> Form {
    let n_kv = slots(end);
    match rows {
        TILED_FROM.. => Form::Tiled,
        1 if n_kv >= 512 => Form::Split {
            part: n_kv.div_ceil(threads),
        },
        _ => Form::Single,
    }
}

/// Cuts a call of attention into tiles of queries as llama.cpp does on this many
/// threads. Each tile is a head and a range of rows.
pub fn tiles(heads: usize, rows: usize, threads: usize) -> Vec<(usize, Range<usize>)> {
    let all = heads * rows;
    let size = all.div_ceil(4 * threads);
    let mut chunks = all.div_ceil(size.max(1));
    if threads == 1 || chunks < threads {
        chunks = threads;
    }
    let size = all.div_ceil(chunks.max(1));
    let mut tiles = Vec::new();
    for chunk in 0..chunks {
        let (mut at, end) = ((chunk * size).min(all), ((chunk + 1) * size).min(all));
        while at < end {
            let (head, row) = (at / rows, at % rows);
            let n = TILE.min(end - at).min(rows - row);
            tiles.push((head, row..row + n));
            at += n;
        }
    }
    tiles
}

/// The running softmax of one query in llama.cpp's attention: maximum M of the scores,
/// sum S of the weights, and the weighted sum of values, rounded to f16 at each step.
struct Running {
    m: f32,
    s: f32,
    a: Vec<f32>,
}

/// Computes llama.cpp's running softmax of one query over the slots `range` (places of
/// positions in the KV cache), all of them visible.
fn run<'a>(
    (profile, scale): (Profile, f32),
    range: Range<usize>,
    q: &[f32],
    k: &impl Fn(usize) -> &'a [u16],
    v: &impl Fn(usize) -> &'a [u16],
) -> Running {
    let half = |x: f32| f16::to_f32(f16::from_f32(x));
    let q: Vec<f32> = q.iter().map(|&x| half(x)).collect();
    let (mut m, mut sum, mut a) = (f32::NEG_INFINITY, 0.0f32, vec![0.0f32; q.len()]);
    for t in range {
        let k = k(t);
        let at = |i: usize| f16::to_f32(k[i]);
        let score = dot::vectors(profile, DType::F16, q.len(), at, |i| q[i]) * scale;
        let (mut factor, mut p) = (1.0, 1.0);
        if score > m {
            factor = glibc::expf(m - score);
            m = score;
            a.iter_mut().for_each(|a| *a = half(*a * factor));
        } else {
            p = glibc::expf(score - m);
        }
        for (a, &v) in a.iter_mut().zip(v(t)) {
            *a = half(f16::to_f32(v).mul_add(p, *a));
        }
        sum = sum.mul_add(factor, p);
    }
    Running { m, s: sum, a }
}

/// Computes the factor 1 / S that ends a softmax, with S the sum of its weights; 0 if S
/// is 0 because nothing was visible.
pub fn inverse(s: f32) -> f32 {
    if s == 0.0 { 0.0 } else { 1.0 / s }
}

/// Computes attention for one query of one head as llama.cpp does, in the form
/// [`Form::Single`] or [`Form::Split`].
///
/// The functions `k(t)` and `v(t)` return the f16 bits of K and V at position t; `p` is
/// the query's own position.
#[expect(clippy::too_many_arguments, reason = "the operands of attention")]
pub fn attend<'a>(
    profile: Profile,
    desc: &Attention,
    form: Form,
    p: usize,
    q: &[f32],
    k: impl Fn(usize) -> &'a [u16],
    v: impl Fn(usize) -> &'a [u16],
    out: &mut [f32],
) {
    let visible = desc.first_visible(p)..p + 1;
    let with = (profile, desc.scale);
    let Form::Split { part } = form else {
        let r = run(with, visible, q, &k, &v);
        let inverse = inverse(r.s);
        for (out, a) in out.iter_mut().zip(r.a) {
            *out = a * inverse;
        }
        return;
    };
    let (mut m, mut s) = (f32::NEG_INFINITY, 0.0f32);
    out.fill(0.0);
    for c in 0..slots(p + 1).div_ceil(part) {
        let range = visible.start.max(c * part)..visible.end.min((c + 1) * part);
        if range.is_empty() {
            continue;
        }
        let r = run(with, range, q, &k, &v);
        if r.s == 0.0 {
            continue;
        }
        let top = m.max(r.m);
        let (old, new) = (glibc::expf(m - top), glibc::expf(r.m - top));
        for (o, a) in out.iter_mut().zip(r.a) {
            *o = o.mul_add(old, a * new);
        }
        s = s.mul_add(old, r.s * new);
        m = top;
    }
    if s != 0.0 {
        let inverse = 1.0 / s;
        out.iter_mut().for_each(|o| *o *= inverse);
    }
}

/// Computes attention for a tile of queries of one head as llama.cpp does, in the form
/// [`Form::Tiled`].
///
/// The vector `q[i]` is the query at position `positions.start + i`, whose result is
/// `out[i]`. `end` is one past the last position of the call.
#[expect(clippy::too_many_arguments, reason = "the operands of attention")]
pub fn attend_tile<'a>(
    profile: Profile,
    desc: &Attention,
    positions: Range<usize>,
    end: usize,
    q: &[&[f32]],
    k: impl Fn(usize) -> &'a [u16],
    v: impl Fn(usize) -> &'a [u16],
    out: &mut [&mut [f32]],
) {
    let width = profile.vector_width();
    let rows = positions.len();
    let (mut m, mut s) = (vec![f32::NEG_INFINITY; rows], vec![0.0f32; rows]);
    out.iter_mut().for_each(|o| o.fill(0.0));
    let first = desc.first_visible(positions.start) / TILE * TILE;
    for tile in (first..positions.end).step_by(TILE) {
        for (i, p) in positions.clone().enumerate() {
            let visible = |t: usize| t <= p && t >= desc.first_visible(p);
            let scores: [f32; TILE] = std::array::from_fn(|j| {
                let t = tile + j;
                if !visible(t) {
                    return f32::NEG_INFINITY;
                }
                let chain = q[i].iter().zip(k(t));
                chain.fold(0.0f32, |s, (&q, &k)| q.mul_add(f16::to_f32(k), s)) * desc.scale
            });
            let top = scores
                .iter()
                .fold(f32::NEG_INFINITY, |a, &b| if b > a { b } else { a });
            let mut p = [0.0f32; TILE];
            if top != f32::NEG_INFINITY {
                if top > m[i] {
                    let factor = glibc::expf(m[i] - top);
                    out[i].iter_mut().for_each(|o| *o *= factor);
                    s[i] *= factor;
                    m[i] = top;
                }
                p = scores.map(|s| math::exp(profile, s - m[i]));
                let folds = p.chunks_exact(width).map(|c| dot::fold(c, width));
                let sum = folds.fold(0.0f64, |s, f| s + f64::from(f));
                s[i] = (f64::from(s[i]) + sum) as f32;
            }
            for (d, out) in out[i].iter_mut().enumerate() {
                let value = |t: usize| if t < end { f16::to_f32(v(t)[d]) } else { 0.0 };
                *out = (0..TILE).fold(*out, |o, j| p[j].mul_add(value(tile + j), o));
            }
        }
    }
    for (out, s) in out.iter_mut().zip(s) {
        let inverse = inverse(s);
        out.iter_mut().for_each(|o| *o *= inverse);
    }
}
