//! RMS norms: a row, the heads of a row, and the residual tail.
//!
//! Contract: [`muser_ops::norm`]. The sum of squares runs in 256 lanes, 256 /
//! LANES accumulators, so no level waits for the latency of its fma; the row is
//! read twice, the second time from L1.
//!
//! Traffic: 4 bytes a value in, 4 out, and 4 of weight; 6,656 values are 26 KB
//! each, L1 and L2 at work, not memory.

#[cfg(target_arch = "x86_64")]
pub(crate) mod avx2;
#[cfg(target_arch = "x86_64")]
pub(crate) mod avx512;
pub(crate) mod scalar;

/// The kernels of one level.
macro_rules! kernels {
    ($level:ident $(, $features:literal)?) => {
        use crate::simd::$level as v;
        use muser_ops::{norm, reduce};

        const VECTORS: usize = reduce::LANES / v::LANES;

        /// 1 / sqrt(mean of squares + eps).
        #[inline]
        $(#[target_feature(enable = $features)])?
        fn scale(x: &[f32], eps: f32) -> f32 {
            let mut acc = [v::splat(0.0); VECTORS];
            let (blocks, rest) = x.as_chunks::<{ reduce::LANES }>();
            for block in blocks {
                for (i, a) in acc.iter_mut().enumerate() {
                    let y = v::load(block, i * v::LANES);
                    *a = v::fma(y, y, *a);
                }
            }
            let mut at = 0;
            for a in acc.iter_mut() {
                if at >= rest.len() {
                    break;
                }
                // A square is never -0, so adding the square of a missing
                // value changes nothing.
                let mut y = [0.0; v::LANES];
                let n = v::LANES.min(rest.len() - at);
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
            norm::scale(v::halve_lanes(acc[0]), x.len(), eps)
        }

        /// `out = norm(x)`, with or without weights.
        $(#[target_feature(enable = $features)])?
        pub(crate) fn rms_norm(x: &[f32], weight: Option<&[f32]>, eps: f32, out: &mut [f32]) {
            let r = scale(x, eps);
            let rv = v::splat(r);
            let whole = x.len() / v::LANES * v::LANES;
            match weight {
                Some(w) => {
                    for at in (0..whole).step_by(v::LANES) {
                        let y = v::mul(v::mul(v::load(x, at), rv), v::load(w, at));
                        v::store(out, at, y);
                    }
                    for at in whole..x.len() {
                        out[at] = x[at] * r * w[at];
                    }
                }
                None => {
                    for at in (0..whole).step_by(v::LANES) {
                        v::store(out, at, v::mul(v::load(x, at), rv));
                    }
                    for at in whole..x.len() {
                        out[at] = x[at] * r;
                    }
                }
            }
        }

        /// `x = norm(x)` of each head.
        $(#[target_feature(enable = $features)])?
        pub(crate) fn head_norm(x: &mut [f32], weight: &[f32], eps: f32) {
            for head in x.chunks_exact_mut(weight.len()) {
                let r = scale(head, eps);
                let rv = v::splat(r);
                let whole = head.len() / v::LANES * v::LANES;
                for at in (0..whole).step_by(v::LANES) {
                    let y = v::mul(v::mul(v::load(head, at), rv), v::load(weight, at));
                    v::store(head, at, y);
                }
                for at in whole..head.len() {
                    head[at] = head[at] * r * weight[at];
                }
            }
        }

        /// `x += norm(y)`.
        $(#[target_feature(enable = $features)])?
        pub(crate) fn add_rms_norm(x: &mut [f32], y: &[f32], weight: &[f32], eps: f32) {
            let r = scale(y, eps);
            let rv = v::splat(r);
            let whole = y.len() / v::LANES * v::LANES;
            for at in (0..whole).step_by(v::LANES) {
                let n = v::mul(v::mul(v::load(y, at), rv), v::load(weight, at));
                v::store(x, at, v::add(v::load(x, at), n));
            }
            for at in whole..y.len() {
                x[at] += y[at] * r * weight[at];
            }
        }
    };
}

use kernels;
