//! RMS norm of a row of activations, or of each head of a row, in the strict lane
//! (muser's own arithmetic).
//!
//! ```text
//! ss  = Σ x_i²                       in the order of `reduce`
//! r   = 1 / sqrt(ss / n + eps)       four operations, each rounded
//! y_i = (x_i · r) · w_i              rounded after each; without w: x_i · r
//! ```

use crate::reduce;

/// Computes the factor of an RMS norm from the sum of squares `ss` of `n` values:
/// `1 / sqrt(ss / n + eps)`.
pub fn scale(ss: f32, n: usize, eps: f32) -> f32 {
    1.0 / (ss / n as f32 + eps).sqrt()
}

/// Computes the RMS norm of one row of activations into `out`, multiplied by `weight` if
/// there is one.
pub fn rms_norm(x: &[f32], weight: Option<&[f32]>, eps: f32, out: &mut [f32]) {
    let r = scale(reduce::sum_of_squares(x), x.len(), eps);
    for (i, (o, &v)) in out.iter_mut().zip(x).enumerate() {
        *o = match weight {
            Some(w) => v * r * w[i],
            None => v * r,
        };
    }
}

/// Normalises each attention head of a row in place by its root mean square; a head is
/// as long as `weight`.
pub fn head_norm(x: &mut [f32], weight: &[f32], eps: f32) {
    for head in x.chunks_exact_mut(weight.len()) {
        let r = scale(reduce::sum_of_squares(head), head.len(), eps);
        for (v, &w) in head.iter_mut().zip(weight) {
            *v = *v * r * w;
        }
    }
}

/// Adds the RMS norm of the row `y`, multiplied by `weight`, to the row `x`.
pub fn add_rms_norm(x: &mut [f32], y: &[f32], weight: &[f32], eps: f32) {
    let r = scale(reduce::sum_of_squares(y), y.len(), eps);
    for ((v, &y), &w) in x.iter_mut().zip(y).zip(weight) {
        *v += y * r * w;
    }
}
