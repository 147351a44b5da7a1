//! Rotary position encoding of the heads of one row, in place.
//!
//! Contract: [`muser_ops::rope`](mod@muser_ops::rope). Pairs are neighbours, so
//! a vector holds whole pairs: angles are doubled by a permutation and the
//! neighbour comes by a shuffle.

#[cfg(target_arch = "x86_64")]
pub(crate) mod avx2;
#[cfg(target_arch = "x86_64")]
pub(crate) mod avx512;
pub(crate) mod scalar;

/// The kernel of one level.
macro_rules! kernels {
    ($level:ident $(, $features:literal)?) => {
        use crate::simd::$level as v;

        /// Turns every head of `x` by the angles of one position.
        $(#[target_feature(enable = $features)])?
        pub(crate) fn rope(x: &mut [f32], cos: &[f32], sin: &[f32]) {
            for head in x.chunks_exact_mut(2 * cos.len()) {
                for p in v::rotate_pairs(head, cos, sin)..cos.len() {
                    let (a, b) = (head[2 * p], head[2 * p + 1]);
                    head[2 * p] = a * cos[p] - b * sin[p];
                    head[2 * p + 1] = a * sin[p] + b * cos[p];
                }
            }
        }
    };
}

use kernels;
