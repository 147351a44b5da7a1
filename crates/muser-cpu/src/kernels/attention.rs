//! The strict lane's attention (muser's own arithmetic) of all query heads that share one
//! KV head, for one position.
//!
//! Contract (the scalar functions that define the bits): [`muser_ops::attention`]. The
//! KV cache is read by chunks of 64 positions. Each value of K or V is converted from
//! f16 once for all heads of a block (in the 30B model, 16 query heads share a KV
//! head).
//!
//! ```text
//! chunk c, ascending:
//!   for a block of heads H:
//!     scores   elements are positions: for d: acc[h][t] = fma(q[h][d], k[d][t])
//!     m, p     per head: max over the visible positions, exp of the difference
//!     o_c      elements are dimensions: for t: acc[h][d] = fma(p[h][t], v[t][d])
//!     merge into the running m, l, o
//! ```
//!
//! No vector element is added to another: each element computes one of the contract's
//! ascending chains, of a position or of a dimension. Positions that are not visible get
//! the score -inf before the maximum, and are skipped in the sums.
//!
//! A long context can be cut by chunks ([`ChunkSpan`]). The partial result of a chunk
//! (m, l, o) does not depend on the other chunks, so several threads compute the chunks of
//! one head, and a second dispatch, with a task for each head, merges them in order.
//!
//! Traffic: 2 · 64 · d f16 values for each chunk, KV head and query position; with 2 KV
//! heads of 128, 64 KB of cache for a chunk. A cut by chunks also writes and reads (d + 2)
//! f32 values for each chunk and query head: a quarter more each way where 16 query heads
//! share a KV head.

use muser_levels::levels;
use std::ops::Range;

/// A span of chunks (64 positions of the KV cache each) in the context of one query.
#[derive(Clone, Debug)]
pub(crate) struct ChunkSpan {
    /// The position of the query in its sequence.
    pub(crate) p: usize,
    /// The chunks (64 cached positions each) to attend to; each has a position visible to
    /// the query.
    pub(crate) chunks: Range<usize>,
}

/// Returns the number of f32 values in the partial attention result of a chunk (64
/// cached positions) for `heads` query heads: for each, the weighted sum of values o,
/// the largest score m and the sum of exponentials l.
pub(crate) const fn part_len(heads: usize, padded: usize) -> usize {
    heads * (padded + 2)
}

/// The attention kernels of the strict lane (muser's own arithmetic), compiled for each
/// instruction-set level.
#[levels]
pub(crate) mod kernels {
    use super::{ChunkSpan, part_len};
    use crate::kv::{HeadView, PAD};
    use crate::simd::level as v;
    use muser_ops::Attention;
    use muser_ops::attention::CHUNK;
    use std::ops::Range;

    /// The number of vectors of cached positions, or of head dimensions, that attention
    /// computes at once.
    const VECTORS: usize = 4;
    /// The number of cached positions, or of head dimensions, that attention computes at
    /// once.
    const BLOCK: usize = VECTORS * v::ELEMENTS;
    const _: () = assert!(CHUNK.is_multiple_of(BLOCK) && PAD.is_multiple_of(BLOCK));

    /// The running softmax of one query head: the largest score so far (m), and the sum
    /// of exponentials relative to it (l).
    #[derive(Clone, Copy)]
    struct Running {
        m: f32,
        l: f32,
    }

    /// Computes attention of the query heads in `q` at position `p` over one KV head of
    /// the cache.
    pub(crate) fn attention(
        desc: &Attention,
        p: usize,
        q: &[f32],
        kv: &HeadView<'_>,
        out: &mut [f32],
    ) {
        let d = desc.head_dim;
        let heads = q.len() / d;
        let padded = kv.padded_dim();
        let mut running = vec![
            Running {
                m: f32::NEG_INFINITY,
                l: 0.0
            };
            heads
        ];
        let mut o = vec![0.0f32; heads * padded];
        let mut scratch = vec![0.0f32; v::HEAD_BLOCK * padded];
        let first = desc.first_visible(p) / CHUNK;
        for chunk in first..=p / CHUNK {
            let place = Place { desc, p, chunk, kv };
            place.heads(q, chunk == first, &mut running, &mut o, &mut scratch);
        }
        for (h, out) in out.chunks_exact_mut(d).enumerate() {
            let o = &o[h * padded..][..d];
            for (out, o) in out.iter_mut().zip(o) {
                *out = o / running[h].l;
            }
        }
    }

    /// Computes the partial attention result of each chunk (64 cached positions) of a
    /// span, for the query heads in `q`. `out` has a part for each chunk: the weighted
    /// sums of values of all heads, then the largest score and the sum of exponentials
    /// of each head.
    pub(crate) fn attention_span(
        desc: &Attention,
        span: &ChunkSpan,
        q: &[f32],
        kv: &HeadView<'_>,
        out: &mut [f32],
    ) {
        let (heads, padded) = (q.len() / desc.head_dim, kv.padded_dim());
        let mut running = vec![
            Running {
                m: f32::NEG_INFINITY,
                l: 0.0
            };
            heads
        ];
        let parts = out.chunks_exact_mut(part_len(heads, padded));
        for (chunk, part) in span.chunks.clone().zip(parts) {
            let (o, rest) = part.split_at_mut(heads * padded);
            let place = Place {
                desc,
                p: span.p,
                chunk,
                kv,
            };
            place.heads(q, true, &mut running, o, &mut []);
            for (to, of) in rest.chunks_exact_mut(2).zip(&running) {
                to.copy_from_slice(&[of.m, of.l]);
            }
        }
    }

    /// Merges the partial attention results of all chunks (64 cached positions each) of
    /// one query head and divides by the sum of weights. `head` is its index among the
    /// `heads` heads of each part.
    pub(crate) fn attention_merge(
        parts: &[f32],
        heads: usize,
        padded: usize,
        head: usize,
        out: &mut [f32],
    ) {
        let mut o = vec![0.0f32; padded];
        let mut running = Running {
            m: f32::NEG_INFINITY,
            l: 0.0,
        };
        for (i, part) in parts.chunks_exact(part_len(heads, padded)).enumerate() {
            let at = heads * padded + 2 * head;
            let (part_o, of) = (&part[head * padded..][..padded], &part[at..]);
            let of = Running { m: of[0], l: of[1] };
            if i == 0 {
                o.copy_from_slice(part_o);
                running = of;
            } else {
                merge(&mut running, of, &mut o, part_o);
            }
        }
        for (out, o) in out.iter_mut().zip(&o) {
            *out = o / running.l;
        }
    }

    /// One chunk (64 cached positions), with the position `p` of the query that attends
    /// to it.
    struct Place<'a> {
        desc: &'a Attention,
        p: usize,
        chunk: usize,
        kv: &'a HeadView<'a>,
    }

    impl Place<'_> {
        /// Merges the chunk (64 cached positions) into the running softmax of the query
        /// heads in `q`. If `begin`, the softmax begins with this chunk.
        #[inline]
        fn heads(
            &self,
            q: &[f32],
            begin: bool,
            running: &mut [Running],
            o: &mut [f32],
            scratch: &mut [f32],
        ) {
            let (d, padded) = (self.desc.head_dim, self.kv.padded_dim());
            let (heads, start) = (q.len() / d, self.chunk * CHUNK);
            let first = self.desc.first_visible(self.p).max(start);
            let visible = first - start..(self.p + 1).min(start + CHUNK) - start;
            let (k, value) = self.kv.chunk(self.chunk);
            let mut h = 0;
            while h < heads {
                let n = if heads - h >= v::HEAD_BLOCK {
                    v::HEAD_BLOCK
                } else {
                    1
                };
                let block = Block {
                    q: &q[h * d..(h + n) * d],
                    k,
                    value,
                    padded,
                    scale: self.desc.scale,
                    visible: visible.clone(),
                };
                let running = &mut running[h..h + n];
                let o = &mut o[h * padded..(h + n) * padded];
                if n == 1 {
                    block.step::<1>(begin, running, o, scratch);
                } else {
                    block.step::<{ v::HEAD_BLOCK }>(begin, running, o, scratch);
                }
                h += n;
            }
        }
    }

    /// One chunk (64 cached positions) with a block of query heads that attend to it.
    struct Block<'a> {
        q: &'a [f32],
        k: &'a [u16],
        value: &'a [u16],
        padded: usize,
        scale: f32,
        visible: Range<usize>,
    }

    impl Block<'_> {
        /// Merges the chunk (64 cached positions) into the running softmax of `H` query
        /// heads. If `begin`, the softmax begins with this chunk.
        #[inline]
        fn step<const H: usize>(
            &self,
            begin: bool,
            running: &mut [Running],
            o: &mut [f32],
            scratch: &mut [f32],
        ) {
            let mut s = [[f32::NEG_INFINITY; CHUNK]; H];
            self.scores(&mut s);
            let mut part = [Running {
                m: f32::NEG_INFINITY,
                l: 0.0,
            }; H];
            for (s, part) in s.iter_mut().zip(&mut part) {
                part.m = self.exponentials(s);
            }
            for t in self.visible.clone() {
                for (s, part) in s.iter().zip(&mut part) {
                    part.l += s[t];
                }
            }
            if begin {
                self.values(&s, o);
                running.copy_from_slice(&part);
                return;
            }
            self.values(&s, scratch);
            for h in 0..H {
                let at = h * self.padded..(h + 1) * self.padded;
                merge(&mut running[h], part[h], &mut o[at.clone()], &scratch[at]);
            }
        }

        /// Computes the attention scores of the visible positions in a chunk (64 cached
        /// positions). Those of the others are -inf.
        #[inline]
        fn scores<const H: usize>(&self, s: &mut [[f32; CHUNK]; H]) {
            let d = self.q.len() / H;
            let (k, _) = self.k.as_chunks::<CHUNK>();
            let q: [&[f32]; H] = std::array::from_fn(|h| &self.q[h * d..][..d]);
            let scale = v::splat(self.scale);
            for base in (0..CHUNK).step_by(BLOCK) {
                if base >= self.visible.end || base + BLOCK <= self.visible.start {
                    continue;
                }
                let mut acc = [[v::splat(0.0); VECTORS]; H];
                for (i, k) in k.iter().enumerate().take(d) {
                    let mut kd = [v::splat(0.0); VECTORS];
                    for (j, kd) in kd.iter_mut().enumerate() {
                        *kd = v::load_f16(k, base + j * v::ELEMENTS);
                    }
                    for h in 0..H {
                        let q = v::splat(q[h][i]);
                        for j in 0..VECTORS {
                            acc[h][j] = v::fma(q, kd[j], acc[h][j]);
                        }
                    }
                }
                for h in 0..H {
                    for j in 0..VECTORS {
                        v::store(&mut s[h], base + j * v::ELEMENTS, v::mul(acc[h][j], scale));
                    }
                }
            }
            for s in s.iter_mut() {
                s[..self.visible.start].fill(f32::NEG_INFINITY);
                s[self.visible.end..].fill(f32::NEG_INFINITY);
            }
        }

        /// Replaces the attention scores s of a chunk (64 cached positions) by `exp(s -
        /// max s)` and returns the maximum.
        #[inline]
        fn exponentials(&self, s: &mut [f32; CHUNK]) -> f32 {
            let mut top = v::load(s, 0);
            for at in (v::ELEMENTS..CHUNK).step_by(v::ELEMENTS) {
                top = v::max(top, v::load(s, at));
            }
            let mut values = [0.0; v::ELEMENTS];
            v::store(&mut values, 0, top);
            let m = values
                .iter()
                .fold(f32::NEG_INFINITY, |a, &b| if a > b { a } else { b });
            let mv = v::splat(m);
            for at in (0..CHUNK).step_by(v::ELEMENTS) {
                let e = v::exp(v::sub(v::load(s, at), mv));
                v::store(s, at, e);
            }
            m
        }

        /// Computes each head's weighted sum of values in one chunk (64 cached
        /// positions): Σ p_t · v_t over the visible positions t. p_t: the softmax weight;
        /// v_t: the row of V.
        #[inline]
        fn values<const H: usize>(&self, p: &[[f32; CHUNK]; H], o: &mut [f32]) {
            for base in (0..self.padded).step_by(BLOCK) {
                let mut acc = [[v::splat(0.0); VECTORS]; H];
                for t in self.visible.clone() {
                    let row = &self.value[t * self.padded + base..][..BLOCK];
                    let mut value = [v::splat(0.0); VECTORS];
                    for (j, value) in value.iter_mut().enumerate() {
                        *value = v::load_f16(row, j * v::ELEMENTS);
                    }
                    for h in 0..H {
                        let p = v::splat(p[h][t]);
                        for j in 0..VECTORS {
                            acc[h][j] = v::fma(p, value[j], acc[h][j]);
                        }
                    }
                }
                for h in 0..H {
                    for j in 0..VECTORS {
                        v::store(o, h * self.padded + base + j * v::ELEMENTS, acc[h][j]);
                    }
                }
            }
        }
    }

    /// Merges the partial attention result of a chunk (64 cached positions) into the
    /// running softmax of one head.
    #[inline]
    fn merge(running: &mut Running, part: Running, o: &mut [f32], part_o: &[f32]) {
        let top = if running.m > part.m {
            running.m
        } else {
            part.m
        };
        let alpha = v::exp(v::splat(running.m - top));
        let beta = v::exp(v::splat(part.m - top));
        let scaled = v::mul(v::splat(running.l), alpha);
        let mut l = [0.0; v::ELEMENTS];
        v::store(&mut l, 0, v::fma(v::splat(part.l), beta, scaled));
        *running = Running { m: top, l: l[0] };
        for at in (0..o.len()).step_by(v::ELEMENTS) {
            let scaled = v::mul(v::load(o, at), alpha);
            let merged = v::fma(v::load(part_o, at), beta, scaled);
            v::store(o, at, merged);
        }
    }
}
