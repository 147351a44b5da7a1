//! RMS norms in the pinned lane (llama.cpp's arithmetic): squares are rounded to f32 and
//! summed in f64, ascending.
//!
//! ```text
//! mean = f32(Σ f64(x_i · x_i) / n);  r = 1 / sqrt(mean + eps)
//! y_i = (x_i · r) · w_i                        rounded after each
//! ```

/// Computes the factor of a row's RMS norm as llama.cpp does:
/// `1 / sqrt(mean of squares + eps)`.
pub fn scale(x: &[f32], eps: f32) -> f32 {
    let sum = x.iter().fold(0.0f64, |s, &v| s + f64::from(v * v));
    factor(sum, x.len(), eps)
}

/// Computes the factor of an RMS norm, as [`scale`] does, from the sum of squares of `n`
/// values.
pub fn factor(sum: f64, n: usize, eps: f32) -> f32 {
    1.0 / ((sum / n as f64) as f32 + eps).sqrt()
}

/// Computes the RMS norm of one row of activations into `out` as llama.cpp does,
/// multiplied by `weight` if there is one.
pub fn rms_norm(x: &[f32], weight: Option<&[f32]>, eps: f32, out: &mut [f32]) {
    let r = scale(x, eps);
    for (i, (o, &v)) in out.iter_mut().zip(x).enumerate() {
        *o = match weight {
            Some(w) => v * r * w[i],
            None => v * r,
        };
    }
}

/// Normalises each attention head of a row in place by its root mean square, as
/// llama.cpp does; a head is as long as `weight`.
pub fn head_norm(x: &mut [f32], weight: &[f32], eps: f32) {
    for head in x.chunks_exact_mut(weight.len()) {
        let r = scale(head, eps);
        for (v, &w) in head.iter_mut().zip(weight) {
            *v = *v * r * w;
        }
    }
}

/// Adds the RMS norm of the row `y`, multiplied by `weight`, to the row `x`, as
/// llama.cpp does.
pub fn add_rms_norm(x: &mut [f32], y: &[f32], weight: &[f32], eps: f32) {
    let r = scale(y, eps);
    for ((v, &y), &w) in x.iter_mut().zip(y).zip(weight) {
        *v += y * r * w;
    }
}
