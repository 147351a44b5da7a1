//! The sigmoid gate, SiLU product and soft cap of logits in the pinned lane (llama.cpp's
//! arithmetic).

use super::{glibc, math};
use crate::Profile;

/// Gates activations as llama.cpp does: computes `x_i = x_i · sigmoid(g_i)`, with g the
/// gate.
pub fn sigmoid_gate(x: &mut [f32], gate: &[f32]) {
    for (x, &g) in x.iter_mut().zip(gate) {
        *x *= math::sigmoid(g);
    }
}

/// Computes one row of the FFN's product `g_i = silu(g_i) · u_i` of gate g and up
/// projection u as llama.cpp does: whole vectors of the profile (the build) with ggml's
/// polynomial for exp, the remaining values with the math library's exp.
pub fn silu_product(profile: Profile, gate: &mut [f32], up: &[f32]) {
    let whole = gate.len() / profile.vector_width() * profile.vector_width();
    for (i, (g, &u)) in gate.iter_mut().zip(up).enumerate() {
        *g = u * match i < whole {
            true => math::silu(profile, *g),
            false => math::silu_rest(*g),
        };
    }
}

/// Turns the outputs of the head (the projection to the vocabulary) into logits as
/// llama.cpp does: scales them, then caps them, each step rounded.
pub fn soft_cap(x: &mut [f32], scale: f32, cap: Option<f32>) {
    for v in x.iter_mut() {
        let scaled = *v * scale;
        *v = match cap {
            Some(cap) => glibc::tanhf(scaled * (1.0 / cap)) * cap,
            None => scaled,
        };
    }
}
