//! Operations on each value by itself: the residual sum, the sigmoid gate, the SiLU
//! product and the soft cap of logits.

use crate::math;

/// Computes `x_i = x_i + y_i`, rounded.
pub fn add(x: &mut [f32], y: &[f32]) {
    for (x, &y) in x.iter_mut().zip(y) {
        *x += y;
    }
}

/// Computes `x_i = x_i · sigmoid(g_i)`.
pub fn sigmoid_gate(x: &mut [f32], gate: &[f32]) {
    for (x, &g) in x.iter_mut().zip(gate) {
        *x *= math::sigmoid(g);
    }
}

/// Computes `g_i = silu(g_i) · u_i`.
pub fn silu_product(gate: &mut [f32], up: &[f32]) {
    for (g, &u) in gate.iter_mut().zip(up) {
        *g = math::silu(*g) * u;
    }
}

/// Turns the outputs of the head into logits: scales them, then caps them.
///
/// With a cap: `tanh((x_i · scale) · (1 / cap)) · cap`, the inverse rounded once.
/// Without: `x_i · scale`.
pub fn soft_cap(x: &mut [f32], scale: f32, cap: Option<f32>) {
    for v in x.iter_mut() {
        let scaled = *v * scale;
        *v = match cap {
            Some(cap) => math::tanh(scaled * (1.0 / cap)) * cap,
            None => scaled,
        };
    }
}
