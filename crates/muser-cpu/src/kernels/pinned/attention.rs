//! Attention kernels of the pinned lane (llama.cpp's arithmetic).
//!
//! Contract (the scalar functions that define the bits):
//! [`muser_ops::pinned::attention`]. The cache is that of the strict lane: K is
//! transposed within a chunk of 64 positions, V is stored by position. So a vector
//! element is a position in the scores and a dimension in the sums of values, and no
//! element is added to another.
//!
//! ```text
//! single   query heads of one KV head, one position; a part of the slots, or all:
//!   chunk by chunk:
//!     scores   elements are positions; the contract's 4 L partial sums of a dot
//!              product are computed one after the other and folded on the way
//!     walk     the visible positions ascending, f16 sums, elements are dimensions
//! tile     up to 64 queries of one head:
//!   chunk by chunk:
//!     scores   elements are positions: for d: s[row][t] = fma(q[row][d], k[d][t])
//!     weights  per row: maximum, exponentials, their sum by folds
//!     values   elements are dimensions: for t: o[row][d] = fma(p[row][t], v[t][d])
//! ```
//!
//! Traffic: as in the strict lane, 2 · 64 · d f16 values for each chunk; a tile reads them
//! once for all its queries.

use muser_levels::levels;
use muser_ops::Profile;

/// How the pinned lane (llama.cpp's arithmetic) computes attention of one query position:
/// the build that it follows, and whether the cache is cut into parts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Single {
    pub(crate) profile: Profile,
    /// The number of cached positions in a part, if the context is cut into parts whose
    /// results are merged.
    pub(crate) part: Option<usize>,
}

/// A tile of queries: up to 64 consecutive rows of one query head, whose attention is
/// computed together.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Queries<'a> {
    /// The f32 values of the tile's queries, from the first query's head on.
    pub(crate) q: &'a [f32],
    /// The number of f32 values from one query of the head to the next.
    pub(crate) stride: usize,
    /// The number of queries (rows of one head) in the tile whose attention is computed
    /// together.
    pub(crate) rows: usize,
    /// The position, in its sequence, of the first query in a tile of attention
    /// queries.
    pub(crate) first: usize,
    /// One past the last position of the whole forward pass, of which the tile of
    /// queries is a part.
    pub(crate) end: usize,
}

/// The attention kernels of the pinned lane (llama.cpp's arithmetic), compiled for each
/// instruction-set level.
#[levels]
pub(crate) mod kernels {
    use super::{Queries, Single};
    use crate::kv::{HeadView, PAD};
    use crate::simd::level as v;
    use muser_ops::attention::CHUNK;
    use muser_ops::pinned::attention::inverse;
    use muser_ops::pinned::{dot, glibc};
    use muser_ops::{Attention, Profile};
    use muser_quant::{DType, f16};
    use std::ops::Range;

    /// The number of vectors of cached positions, or of head dimensions, that attention
    /// computes at once.
    const VECTORS: usize = 4;
    /// The number of cached positions, or of head dimensions, that attention computes at
    /// once.
    const BLOCK: usize = VECTORS * v::ELEMENTS;
    const _: () = assert!(CHUNK.is_multiple_of(BLOCK) && PAD.is_multiple_of(BLOCK));

    /// The running softmax of one query head: the largest score so far (m), and the sum
    /// of exponentials relative to it (s).
    #[derive(Clone, Copy)]
    struct Running {
        m: f32,
        s: f32,
    }

    /// The running softmax of an attention head before any position is added: a maximum
    /// of -inf and a sum of 0.
    const BEGIN: Running = Running {
        m: f32::NEG_INFINITY,
        s: 0.0,
    };

    /// Computes attention of the query heads in `q` at position `p` over one KV head of
    /// the cache, as llama.cpp does for single rows.
    pub(crate) fn flash_single(
        how: Single,
        desc: &Attention,
        p: usize,
        q: &[f32],
        kv: &HeadView<'_>,
        out: &mut [f32],
    ) {
        match how.profile {
            Profile::LlamaCppAvx512 => single::<16>(how, desc, p, q, kv, out),
            Profile::LlamaCppAvx2 => single::<8>(how, desc, p, q, kv, out),
        }
    }

    /// Computes attention of one query position for a profile (build of llama.cpp) of
    /// vector width `L`.
    fn single<const L: usize>(
        Single { profile, part }: Single,
        desc: &Attention,
        p: usize,
        q: &[f32],
        kv: &HeadView<'_>,
        out: &mut [f32],
    ) {
        let d = desc.head_dim;
        let heads = q.len() / d;
        let padded = kv.padded_dim();
        let q: Vec<f32> = q.iter().map(|&x| f16::to_f32(f16::from_f32(x))).collect();
        let mut running = vec![BEGIN; heads];
        let mut joined = vec![BEGIN; heads];
        let mut a = vec![0.0f32; heads * padded];
        out.fill(0.0);
        let first = desc.first_visible(p);
        let size = part.unwrap_or(p + 1);
        for c in first / size..=p / size {
            let range = first.max(c * size)..(p + 1).min((c + 1) * size);
            running.fill(BEGIN);
            a.fill(0.0);
            for chunk in range.start / CHUNK..=(range.end - 1) / CHUNK {
                let start = chunk * CHUNK;
                let visible = range.start.max(start) - start..range.end.min(start + CHUNK) - start;
                let (k, value) = kv.chunk(chunk);
                let mut h = 0;
                while h < heads {
                    let n = if heads - h >= v::HEAD_BLOCK {
                        v::HEAD_BLOCK
                    } else {
                        1
                    };
                    let block = Block {
                        profile,
                        q: &q[h * d..(h + n) * d],
                        k,
                        value,
                        padded,
                        scale: desc.scale,
                        visible: visible.clone(),
                    };
                    let running = &mut running[h..h + n];
                    let a = &mut a[h * padded..(h + n) * padded];
                    if n == 1 {
                        block.step::<1, L>(running, a);
                    } else {
                        block.step::<{ v::HEAD_BLOCK }, L>(running, a);
                    }
                    h += n;
                }
            }
            for (h, out) in out.chunks_exact_mut(d).enumerate() {
                let a = &a[h * padded..][..d];
                match part {
                    None => {
                        let inverse = inverse(running[h].s);
                        out.iter_mut().zip(a).for_each(|(o, a)| *o = a * inverse);
                    }
                    Some(_) => join(&mut joined[h], running[h], out, a),
                }
            }
        }
        if part.is_some() {
            for (h, out) in out.chunks_exact_mut(d).enumerate() {
                if joined[h].s != 0.0 {
                    let inverse = 1.0 / joined[h].s;
                    out.iter_mut().for_each(|o| *o *= inverse);
                }
            }
        }
    }

    /// Merges the attention result of one part of the context into the merged result of
    /// the parts before it.
    #[inline]
    fn join(joined: &mut Running, part: Running, out: &mut [f32], a: &[f32]) {
        if part.s == 0.0 {
            return;
        }
        let top = joined.m.max(part.m);
        let (old, new) = (glibc::expf(joined.m - top), glibc::expf(part.m - top));
        for (o, a) in out.iter_mut().zip(a) {
            *o = o.mul_add(old, a * new);
        }
        *joined = Running {
            m: top,
            s: joined.s.mul_add(old, part.s * new),
        };
    }

    /// One chunk (64 cached positions) with a block of query heads that attend to it.
    struct Block<'a> {
        profile: Profile,
        q: &'a [f32],
        k: &'a [u16],
        value: &'a [u16],
        padded: usize,
        scale: f32,
        visible: Range<usize>,
    }

    impl Block<'_> {
        /// Adds the visible positions of a chunk (64 cached positions) to the running
        /// softmax of `H` query heads.
        #[inline]
        fn step<const H: usize, const L: usize>(&self, running: &mut [Running], a: &mut [f32]) {
            let d = self.q.len() / H;
            let mut s = [[0.0f32; CHUNK]; H];
            if d.is_multiple_of(4 * L) {
                self.scores::<H, L>(&mut s);
            } else {
                self.scores_rest(d, &mut s);
            }
            for h in 0..H {
                let a = &mut a[h * self.padded..][..self.padded];
                self.walk(&s[h], &mut running[h], a);
            }
        }

        /// Computes the attention scores of a chunk (64 cached positions) where the head
        /// size is a multiple of four vectors of llama.cpp's build.
        #[inline]
        fn scores<const H: usize, const L: usize>(&self, s: &mut [[f32; CHUNK]; H]) {
            let d = self.q.len() / H;
            let k = self.k.as_chunks::<CHUNK>().0;
            let q: [&[f32]; H] = std::array::from_fn(|h| &self.q[h * d..][..d]);
            let scale = v::splat(self.scale);
            for base in (0..CHUNK).step_by(v::ELEMENTS) {
                if base >= self.visible.end || base + v::ELEMENTS <= self.visible.start {
                    continue;
                }
                // The first fold, from L to L / 2 sums, is done on the way.
                let mut t = [[v::splat(0.0); 8]; H];
                for l in 0..L / 2 {
                    let low = partial_sum::<H, L>(&k[..d], q, l, base);
                    let high = partial_sum::<H, L>(&k[..d], q, l + L / 2, base);
                    for h in 0..H {
                        t[h][l] = v::add(low[h], high[h]);
                    }
                }
                for h in 0..H {
                    let t = t[h];
                    let sum = if L == 16 {
                        let even = v::add(v::add(t[0], t[4]), v::add(t[2], t[6]));
                        v::add(even, v::add(v::add(t[1], t[5]), v::add(t[3], t[7])))
                    } else {
                        v::add(v::add(t[0], t[1]), v::add(t[2], t[3]))
                    };
                    v::store(&mut s[h], base, v::mul(sum, scale));
                }
            }
        }

        /// Computes the attention scores of a chunk (64 cached positions) for any head
        /// size that is not whole groups of four vectors, one score at a time.
        fn scores_rest<const H: usize>(&self, d: usize, s: &mut [[f32; CHUNK]; H]) {
            for (h, s) in s.iter_mut().enumerate() {
                let q = &self.q[h * d..][..d];
                for t in self.visible.clone() {
                    let k = |i: usize| f16::to_f32(self.k[i * CHUNK + t]);
                    let sum = dot::vectors(self.profile, DType::F16, d, k, |i| q[i]);
                    s[t] = sum * self.scale;
                }
            }
        }

        /// Adds the visible positions of a chunk (64 cached positions), ascending, to the
        /// running softmax of one head, in f16 sums as llama.cpp has them.
        #[inline]
        fn walk(&self, s: &[f32; CHUNK], running: &mut Running, a: &mut [f32]) {
            // The arguments of the exponentials depend on the scores alone, so all are
            // computed before the walk: the difference between the maximum so far and
            // the score.
            let (mut rises, mut args) = ([false; CHUNK], [0.0f32; CHUNK]);
            let mut m = running.m;
            for t in self.visible.clone() {
                rises[t] = s[t] > m;
                (args[t], m) = match rises[t] {
                    true => (m - s[t], s[t]),
                    false => (s[t] - m, m),
                };
            }
            running.m = m;
            for at in (0..CHUNK).step_by(v::ELEMENTS) {
                let e = v::exp_glibc(v::load(&args, at));
                v::store(&mut args, at, e);
            }
            for t in self.visible.clone() {
                let (mut factor, mut p) = (1.0f32, args[t]);
                if rises[t] {
                    (factor, p) = (args[t], 1.0);
                    let factor = v::splat(factor);
                    for at in (0..a.len()).step_by(v::ELEMENTS) {
                        let scaled = v::half(v::mul(v::load(a, at), factor));
                        v::store(a, at, scaled);
                    }
                }
                let row = &self.value[t * self.padded..][..self.padded];
                let weight = v::splat(p);
                for at in (0..a.len()).step_by(v::ELEMENTS) {
                    let sum = v::fma(v::load_f16(row, at), weight, v::load(a, at));
                    v::store(a, at, v::half(sum));
                }
                running.s = running.s.mul_add(factor, p);
            }
        }
    }

    /// Computes partial sum `l` of the dot products (attention scores) of `H` query heads
    /// with K of the positions from `base` on: element l of llama.cpp's four vectors,
    /// added to each other.
    #[inline]
    fn partial_sum<const H: usize, const L: usize>(
        k: &[[u16; CHUNK]],
        q: [&[f32]; H],
        l: usize,
        base: usize,
    ) -> [v::V; H] {
        let mut acc = [[v::splat(0.0); 4]; H];
        for group in (0..k.len()).step_by(4 * L) {
            for j in 0..4 {
                let i = group + j * L + l;
                let kd = v::load_f16(&k[i], base);
                for h in 0..H {
                    acc[h][j] = v::fma(kd, v::splat(q[h][i]), acc[h][j]);
                }
            }
        }
        let mut sums = [v::splat(0.0); H];
        for (sum, [a, b, c, d]) in sums.iter_mut().zip(acc) {
            *sum = v::add(v::add(a, c), v::add(b, d));
        }
        sums
    }

    /// Computes attention of a tile of queries of one head over one KV head of the cache;
    /// `out` is `[rows, head size]`.
    pub(crate) fn flash_tile(
        profile: Profile,
        desc: &Attention,
        queries: &Queries<'_>,
        kv: &HeadView<'_>,
        out: &mut [f32],
    ) {
        match profile {
            Profile::LlamaCppAvx512 => tile::<16, true>(desc, queries, kv, out),
            Profile::LlamaCppAvx2 => tile::<8, false>(desc, queries, kv, out),
        }
    }

    /// Computes attention of a tile of queries for a profile (build of llama.cpp) of
    /// vector width `L`. `WIDE` says that the width is 16.
    fn tile<const L: usize, const WIDE: bool>(
        desc: &Attention,
        queries: &Queries<'_>,
        kv: &HeadView<'_>,
        out: &mut [f32],
    ) {
        let (d, padded, rows) = (desc.head_dim, kv.padded_dim(), queries.rows);
        let mut running = vec![BEGIN; rows];
        let mut o = vec![0.0f32; rows * padded];
        let last = queries.first + rows - 1;
        for chunk in desc.first_visible(queries.first) / CHUNK..=last / CHUNK {
            let (k, value) = kv.chunk(chunk);
            let slots = Slots {
                k,
                value,
                padded,
                start: chunk * CHUNK,
                filled: (queries.end - chunk * CHUNK).min(CHUNK),
            };
            let mut i = 0;
            while i < rows {
                let n = if rows - i >= v::HEAD_BLOCK {
                    v::HEAD_BLOCK
                } else {
                    1
                };
                let running = &mut running[i..i + n];
                let o = &mut o[i * padded..(i + n) * padded];
                if n == 1 {
                    slots.step::<1, L, WIDE>(desc, queries, i, running, o);
                } else {
                    slots.step::<{ v::HEAD_BLOCK }, L, WIDE>(desc, queries, i, running, o);
                }
                i += n;
            }
        }
        for (i, out) in out.chunks_exact_mut(d).enumerate().take(rows) {
            let inverse = inverse(running[i].s);
            let o = &o[i * padded..][..d];
            out.iter_mut()
                .zip(o)
                .for_each(|(out, o)| *out = o * inverse);
        }
    }

    /// One chunk (64 places of the KV cache), of which the first `filled` hold positions
    /// up to the end of the forward pass. The others count as zeros.
    struct Slots<'a> {
        k: &'a [u16],
        value: &'a [u16],
        padded: usize,
        start: usize,
        filled: usize,
    }

    impl Slots<'_> {
        /// Adds the chunk (64 cached positions) to the running softmax of `H` queries,
        /// from query `i` of the tile on.
        #[inline]
        fn step<const H: usize, const L: usize, const WIDE: bool>(
            &self,
            desc: &Attention,
            queries: &Queries<'_>,
            i: usize,
            running: &mut [Running],
            o: &mut [f32],
        ) {
            let mut p = [[0.0f32; CHUNK]; H];
            self.scores(desc, queries, i, &mut p);
            for (h, p) in p.iter_mut().enumerate() {
                let position = queries.first + i + h;
                let from = desc
                    .first_visible(position)
                    .clamp(self.start, self.start + CHUNK);
                let to = (position + 1).clamp(from, self.start + CHUNK);
                p[..from - self.start].fill(f32::NEG_INFINITY);
                p[to - self.start..].fill(f32::NEG_INFINITY);
                let o = &mut o[h * self.padded..][..self.padded];
                weights::<L, WIDE>(p, &mut running[h], o);
            }
            self.values(&p, o);
        }

        /// Computes the attention scores of the filled positions of a chunk (64 cached
        /// positions), for `H` queries from query `i` on.
        #[inline]
        fn scores<const H: usize>(
            &self,
            desc: &Attention,
            queries: &Queries<'_>,
            i: usize,
            s: &mut [[f32; CHUNK]; H],
        ) {
            let d = desc.head_dim;
            let k = &self.k.as_chunks::<CHUNK>().0[..d];
            let q: [&[f32]; H] =
                std::array::from_fn(|h| &queries.q[(i + h) * queries.stride..][..d]);
            let scale = v::splat(desc.scale);
            for base in (0..self.filled).step_by(BLOCK) {
                let mut acc = [[v::splat(0.0); VECTORS]; H];
                for (i, k) in k.iter().enumerate() {
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
        }

        /// Adds the weighted values Σ p_t · v_t over all positions t of a chunk (64
        /// cached positions) to the running sum `o`. p_t: the softmax weight; v_t: the
        /// row of V.
        #[inline]
        fn values<const H: usize>(&self, p: &[[f32; CHUNK]; H], o: &mut [f32]) {
            for base in (0..self.padded).step_by(BLOCK) {
                let mut acc = [[v::splat(0.0); VECTORS]; H];
                for h in 0..H {
                    for j in 0..VECTORS {
                        acc[h][j] = v::load(o, h * self.padded + base + j * v::ELEMENTS);
                    }
                }
                for t in 0..self.filled {
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
                        let mut sum = acc[h][j];
                        if self.filled < CHUNK {
                            // fma(0, 0, sum) for the slots that count as zeros.
                            sum = v::add(sum, v::splat(0.0));
                        }
                        v::store(o, h * self.padded + base + j * v::ELEMENTS, sum);
                    }
                }
            }
        }
    }

    /// Replaces the attention scores of one query by exponentials (softmax weights before
    /// the division), and rescales `o` if the maximum rises.
    #[inline]
    fn weights<const L: usize, const WIDE: bool>(
        p: &mut [f32; CHUNK],
        running: &mut Running,
        o: &mut [f32],
    ) {
        let mut top = v::splat(f32::NEG_INFINITY);
        for at in (0..CHUNK).step_by(v::ELEMENTS) {
            // Skips a NaN: `max` returns its second argument if either is NaN.
            top = v::max(v::load(p, at), top);
        }
        let mut values = [0.0; v::ELEMENTS];
        v::store(&mut values, 0, top);
        let top = values
            .iter()
            .fold(f32::NEG_INFINITY, |a, &b| if b > a { b } else { a });
        if top == f32::NEG_INFINITY {
            p.fill(0.0);
            return;
        }
        if top > running.m {
            let factor = glibc::expf(running.m - top);
            let by = v::splat(factor);
            for at in (0..o.len()).step_by(v::ELEMENTS) {
                let scaled = v::mul(v::load(o, at), by);
                v::store(o, at, scaled);
            }
            running.s *= factor;
            running.m = top;
        }
        let m = v::splat(running.m);
        for at in (0..CHUNK).step_by(v::ELEMENTS) {
            let e = v::exp_pinned::<WIDE>(v::sub(v::load(p, at), m));
            v::store(p, at, e);
        }
        let mut sum = 0.0f64;
        for at in (0..CHUNK).step_by(L) {
            sum += f64::from(v::fold_group::<L>(p, at));
        }
        running.s = (f64::from(running.s) + sum) as f32;
    }
}
