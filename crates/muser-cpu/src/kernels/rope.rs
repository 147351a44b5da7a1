//! Rotary position encoding (RoPE) of the heads of one row of activations, in place.
//!
//! Contract (the scalar functions that define the bits):
//! [`muser_ops::rope`](mod@muser_ops::rope), and
//! [`muser_ops::pinned::rope`](mod@muser_ops::pinned::rope) for the kernel named
//! `rope_pinned`. The two values of a pair are neighbours, so a vector holds whole
//! pairs: a permutation doubles each angle, and a shuffle swaps the values of a pair.

use muser_levels::levels;

/// The rotary-encoding kernels, compiled for each instruction-set level.
#[levels]
pub(crate) mod kernels {
    use crate::simd::level as v;

    /// Applies rotary position encoding: rotates the pairs of every head of `x` by the
    /// angles of one position.
    pub(crate) fn rope(x: &mut [f32], cos: &[f32], sin: &[f32]) {
        for head in x.chunks_exact_mut(2 * cos.len()) {
            for p in v::rotate_pairs(head, cos, sin)..cos.len() {
                let (a, b) = (head[2 * p], head[2 * p + 1]);
                head[2 * p] = a * cos[p] - b * sin[p];
                head[2 * p + 1] = a * sin[p] + b * cos[p];
            }
        }
    }

    /// Applies rotary position encoding to every head of `x` in the pinned lane
    /// (llama.cpp's arithmetic). It computes one pair at a time: a few hundred fused
    /// operations for each token and layer.
    pub(crate) fn rope_pinned(x: &mut [f32], cos: &[f32], sin: &[f32]) {
        for head in x.chunks_exact_mut(2 * cos.len()) {
            for ((pair, &c), &s) in head.as_chunks_mut::<2>().0.iter_mut().zip(cos).zip(sin) {
                let [a, b] = *pair;
                *pair = [a.mul_add(c, -(b * s)), a.mul_add(s, b * c)];
            }
        }
    }
}
