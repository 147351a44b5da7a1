//! RMS norm kernels: of a row of activations, of the heads of a row, and of a row that is
//! added to another.
//!
//! Contract (the scalar functions that define the bits): [`muser_ops::norm`], and
//! [`muser_ops::pinned::norm`] for the kernels named `…_pinned`, of the pinned lane
//! (llama.cpp's arithmetic). The two differ in the sum of squares alone. The strict
//! lane (muser's own arithmetic) has 256 partial sums, in 256 / `ELEMENTS`
//! accumulators, so that no level waits for the latency of an fma. The pinned lane has
//! a chain of f64 additions; the chains of four heads are computed side by side. The
//! row is read twice, the second time from L1.
//!
//! Traffic: for each value, 4 bytes read, 4 bytes written, and 4 bytes of weight. 6,656
//! values are 26 KB each, which stay in L1 and L2.

use muser_levels::levels;

/// The RMS norm kernels, compiled for each instruction-set level.
#[levels]
pub(crate) mod kernels {
    use crate::simd::level as v;
    use muser_ops::{norm, pinned, reduce};

    /// The number of vector registers that hold the 256 partial sums of squares.
    const VECTORS: usize = reduce::PARTIALS / v::ELEMENTS;

    /// Computes the factor of an RMS norm, 1 / sqrt(mean of squares + eps).
    #[inline]
    fn scale(x: &[f32], eps: f32) -> f32 {
        let mut acc = [v::splat(0.0); VECTORS];
        let (blocks, rest) = x.as_chunks::<{ reduce::PARTIALS }>();
        for block in blocks {
            for (i, a) in acc.iter_mut().enumerate() {
                let y = v::load(block, i * v::ELEMENTS);
                *a = v::fma(y, y, *a);
            }
        }
        let mut at = 0;
        for a in acc.iter_mut() {
            if at >= rest.len() {
                break;
            }
            // A square is never -0, so adding the square of a padding zero changes
            // nothing.
            let mut y = [0.0; v::ELEMENTS];
            let n = v::ELEMENTS.min(rest.len() - at);
            y[..n].copy_from_slice(&rest[at..at + n]);
            let y = v::load(&y, 0);
            *a = v::fma(y, y, *a);
            at += n;
        }
        let mut width = VECTORS / 2;
        while width > 0 {
            for i in 0..width {
                acc[i] = v::add(acc[i], acc[i + width]);
            }
            width /= 2;
        }
        norm::scale(v::halve(acc[0]), x.len(), eps)
    }

    /// Computes the RMS norm's factors of four rows in the pinned lane (llama.cpp's
    /// arithmetic).
    #[inline]
    fn scales_pinned(rows: [&[f32]; 4], eps: f32) -> [f32; 4] {
        let mut sums = [0.0f64; 4];
        let n = rows[0].len();
        for i in 0..n {
            for (sum, row) in sums.iter_mut().zip(rows) {
                *sum += f64::from(row[i] * row[i]);
            }
        }
        sums.map(|sum| pinned::norm::factor(sum, n, eps))
    }

    /// Computes the RMS norm of a row, `out = norm(x)`, with or without weights.
    pub(crate) fn rms_norm(x: &[f32], weight: Option<&[f32]>, eps: f32, out: &mut [f32]) {
        scaled(x, scale(x, eps), weight, out);
    }

    /// Computes the RMS norm of a row, `out = norm(x)`, in the pinned lane (llama.cpp's
    /// arithmetic).
    pub(crate) fn rms_norm_pinned(x: &[f32], weight: Option<&[f32]>, eps: f32, out: &mut [f32]) {
        scaled(x, pinned::norm::scale(x, eps), weight, out);
    }

    /// Multiplies a row by its RMS norm's factor r and by the weights w: `out = (x · r) ·
    /// w`.
    #[inline]
    fn scaled(x: &[f32], r: f32, weight: Option<&[f32]>, out: &mut [f32]) {
        let rv = v::splat(r);
        let whole = x.len() / v::ELEMENTS * v::ELEMENTS;
        match weight {
            Some(w) => {
                for at in (0..whole).step_by(v::ELEMENTS) {
                    let y = v::mul(v::mul(v::load(x, at), rv), v::load(w, at));
                    v::store(out, at, y);
                }
                for at in whole..x.len() {
                    out[at] = x[at] * r * w[at];
                }
            }
            None => {
                for at in (0..whole).step_by(v::ELEMENTS) {
                    v::store(out, at, v::mul(v::load(x, at), rv));
                }
                for at in whole..x.len() {
                    out[at] = x[at] * r;
                }
            }
        }
    }

    /// Computes the RMS norm of each head of a row, `x = norm(x)`.
    pub(crate) fn head_norm(x: &mut [f32], weight: &[f32], eps: f32) {
        for head in x.chunks_exact_mut(weight.len()) {
            scaled_head(head, scale(head, eps), weight);
        }
    }

    /// Computes the RMS norm of each head of a row, `x = norm(x)`, in the pinned lane
    /// (llama.cpp's arithmetic).
    pub(crate) fn head_norm_pinned(x: &mut [f32], weight: &[f32], eps: f32) {
        let d = weight.len();
        for heads in x.chunks_mut(4 * d) {
            let count = heads.len() / d;
            // Where fewer than four heads are left, the last one is repeated.
            let of = |h: usize| &heads[h.min(count - 1) * d..][..d];
            let scales = scales_pinned([of(0), of(1), of(2), of(3)], eps);
            for (head, r) in heads.chunks_exact_mut(d).zip(scales) {
                scaled_head(head, r, weight);
            }
        }
    }

    /// Multiplies one head of a row by the factor r of its RMS norm and by the weights
    /// w: `x = (x · r) · w`.
    #[inline]
    fn scaled_head(head: &mut [f32], r: f32, weight: &[f32]) {
        let rv = v::splat(r);
        let whole = head.len() / v::ELEMENTS * v::ELEMENTS;
        for at in (0..whole).step_by(v::ELEMENTS) {
            let y = v::mul(v::mul(v::load(head, at), rv), v::load(weight, at));
            v::store(head, at, y);
        }
        for at in whole..head.len() {
            head[at] = head[at] * r * weight[at];
        }
    }

    /// Adds the RMS norm of row `y` to row `x`: `x += norm(y)`.
    pub(crate) fn add_rms_norm(x: &mut [f32], y: &[f32], weight: &[f32], eps: f32) {
        add_scaled(x, y, scale(y, eps), weight);
    }

    /// Adds the RMS norm of row `y` to row `x`, `x += norm(y)`, in the pinned lane
    /// (llama.cpp's arithmetic).
    pub(crate) fn add_rms_norm_pinned(x: &mut [f32], y: &[f32], weight: &[f32], eps: f32) {
        add_scaled(x, y, pinned::norm::scale(y, eps), weight);
    }

    /// Adds row y, times its RMS norm's factor r and the weights w, to row x: `x += (y ·
    /// r) · w`.
    #[inline]
    fn add_scaled(x: &mut [f32], y: &[f32], r: f32, weight: &[f32]) {
        let rv = v::splat(r);
        let whole = y.len() / v::ELEMENTS * v::ELEMENTS;
        for at in (0..whole).step_by(v::ELEMENTS) {
            let n = v::mul(v::mul(v::load(y, at), rv), v::load(weight, at));
            v::store(x, at, v::add(v::load(x, at), n));
        }
        for at in whole..y.len() {
            x[at] += y[at] * r * weight[at];
        }
    }
}
