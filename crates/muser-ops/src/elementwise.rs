//! Operations on each activation by itself, in the strict lane (muser's own arithmetic):
//! the residual sum, the sigmoid gate, the SiLU product and the soft cap of logits.

use crate::math;

/// Computes the residual sum `x_i = x_i + y_i` of activations, each sum rounded.
pub fn add(x: &mut [f32], y: &[f32]) {
    for (x, &y) in x.iter_mut().zip(y) {
        *x += y;
    }
}

/// Gates activations: computes `x_i = x_i · sigmoid(g_i)`, with g the gate.
pub fn sigmoid_gate(x: &mut [f32], gate: &[f32]) {
    for (x, &g) in x.iter_mut().zip(gate) {
        *x *= math::sigmoid(g);
    }
}

/// Computes the FFN's product `g_i = silu(g_i) · u_i` of its gate projection g and its
/// up projection u.
pub fn silu_product(gate: &mut [f32], up: &[f32]) {
    for (g, &u) in gate.iter_mut().zip(up) {
        *g = math::silu(*g) * u;
    }
}

/// Turns the outputs of the head (the projection to the vocabulary) into logits: scales
/// them, then caps them.
///
/// The logit x_i becomes `tanh((x_i · scale) · (1 / cap)) · cap` with a cap, the inverse
/// rounded once, and `x_i · scale` without.
pub fn soft_cap(x: &mut [f32], scale: f32, cap: Option<f32>) {
    for v in x.iter_mut() {
        let scaled = *v * scale;
        *v = match cap {
            Some(cap) => math::tanh(scaled * (1.0 / cap)) * cap,
            None => scaled,
        };
    }
}
