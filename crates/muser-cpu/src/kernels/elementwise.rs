//! Kernels of the sigmoid gate, the SiLU product and the soft cap of logits.
//!
//! Contract (the scalar functions that define the bits): [`muser_ops::elementwise`].
//! The time is that of exp and a division, about 25 instructions for a vector. Values
//! after the last whole vector are computed by the same instructions in a padded
//! vector.
//!
//! The kernels named `…_pinned` are the pinned lane's (llama.cpp's arithmetic) and
//! compute [`muser_ops::pinned::elementwise`]: glibc's exp in f64, 30 instructions for a
//! vector, and its tanh, 70.

use muser_levels::levels;

/// Computes `x_i = f(x_i, y_i)` over two slices of f32, in the vectors of the
/// instruction-set level `$v`.
macro_rules! map {
    ($v:ident, $x:expr, $y:expr, $f:expr) => {{
        let (x, y) = ($x, $y);
        let whole = x.len() / $v::ELEMENTS * $v::ELEMENTS;
        for at in (0..whole).step_by($v::ELEMENTS) {
            let value = $f($v::load(x, at), $v::load(y, at));
            $v::store(x, at, value);
        }
        let n = x.len() - whole;
        if n > 0 {
            let (mut a, mut b) = ([0.0; $v::ELEMENTS], [0.0; $v::ELEMENTS]);
            a[..n].copy_from_slice(&x[whole..]);
            b[..n].copy_from_slice(&y[whole..whole + n]);
            let value = $f($v::load(&a, 0), $v::load(&b, 0));
            $v::store(&mut a, 0, value);
            x[whole..].copy_from_slice(&a[..n]);
        }
    }};
}

/// The elementwise kernels, compiled for each instruction-set level.
#[levels]
pub(crate) mod kernels {
    use crate::simd::level as v;
    use muser_ops::{Profile, pinned};

    /// Computes the sigmoid gate x · sigmoid(g) in each element of a vector.
    #[inline]
    fn gated(x: v::V, g: v::V) -> v::V {
        v::mul(x, v::sigmoid(g))
    }

    /// Computes the SiLU product silu(g) · u in each element of a vector.
    #[inline]
    fn product(g: v::V, u: v::V) -> v::V {
        v::mul(v::silu(g), u)
    }

    /// Computes the sigmoid gate `x *= sigmoid(gate)` for each activation, in the strict
    /// lane (muser's own arithmetic).
    pub(crate) fn sigmoid_gate(x: &mut [f32], gate: &[f32]) {
        map!(v, x, gate, gated);
    }

    /// Computes the SiLU product `gate = silu(gate) * up` for each activation, in the
    /// strict lane (muser's own arithmetic).
    pub(crate) fn silu_product(gate: &mut [f32], up: &[f32]) {
        map!(v, gate, up, product);
    }

    /// Scales logits and, with a cap, soft-caps each logit x to cap · tanh(x / cap).
    pub(crate) fn soft_cap(x: &mut [f32], scale: f32, cap: Option<f32>) {
        soft_cap_by::<false>(x, scale, cap);
    }

    /// Scales logits and, with a cap, soft-caps each logit x to cap · tanh(x / cap), in
    /// the pinned lane (llama.cpp's arithmetic).
    pub(crate) fn soft_cap_pinned(x: &mut [f32], scale: f32, cap: Option<f32>) {
        soft_cap_by::<true>(x, scale, cap);
    }

    #[inline]
    fn soft_cap_by<const PINNED: bool>(x: &mut [f32], scale: f32, cap: Option<f32>) {
        let Some(cap) = cap else {
            x.iter_mut().for_each(|x| *x *= scale);
            return;
        };
        let inverse = 1.0 / cap;
        let whole = x.len() / v::ELEMENTS * v::ELEMENTS;
        let mut tail = [0.0; v::ELEMENTS];
        let n = x.len() - whole;
        tail[..n].copy_from_slice(&x[whole..]);
        for at in (0..whole).step_by(v::ELEMENTS) {
            let y = capped::<PINNED>(v::load(x, at), scale, inverse, cap);
            v::store(x, at, y);
        }
        let y = capped::<PINNED>(v::load(&tail, 0), scale, inverse, cap);
        v::store(&mut tail, 0, y);
        x[whole..].copy_from_slice(&tail[..n]);
    }

    #[inline]
    fn capped<const PINNED: bool>(x: v::V, scale: f32, inverse: f32, cap: f32) -> v::V {
        let scaled = v::mul(v::mul(x, v::splat(scale)), v::splat(inverse));
        let tanh = if PINNED {
            v::tanh_glibc(scaled)
        } else {
            v::tanh(scaled)
        };
        v::mul(tanh, v::splat(cap))
    }

    /// Computes the sigmoid gate `x *= sigmoid(gate)` for each activation, in the pinned
    /// lane (llama.cpp's arithmetic).
    pub(crate) fn sigmoid_gate_pinned(x: &mut [f32], gate: &[f32]) {
        map!(v, x, gate, gated_pinned);
    }

    #[inline]
    fn gated_pinned(x: v::V, g: v::V) -> v::V {
        let one = v::splat(1.0);
        let e = v::exp_glibc(v::sub(v::splat(-0.0), g));
        v::mul(x, v::div(one, v::add(one, e)))
    }

    /// Computes the SiLU product `gate = silu(gate) * up` for each activation, in the
    /// pinned lane (llama.cpp's arithmetic). `whole` is the number of values in whole
    /// vectors of llama.cpp's build; the others follow them.
    pub(crate) fn silu_product_pinned(
        profile: Profile,
        whole: usize,
        gate: &mut [f32],
        up: &[f32],
    ) {
        let (g, rest) = gate.split_at_mut(whole);
        match profile {
            Profile::LlamaCppAvx512 => map!(v, g, up, product_pinned::<true>),
            Profile::LlamaCppAvx2 => map!(v, g, up, product_pinned::<false>),
        }
        for (g, &u) in rest.iter_mut().zip(&up[whole..]) {
            *g = u * pinned::math::silu_rest(*g);
        }
    }

    #[inline]
    fn product_pinned<const WIDE: bool>(g: v::V, u: v::V) -> v::V {
        let e = v::exp_pinned::<WIDE>(v::sub(v::splat(0.0), g));
        v::mul(v::div(g, v::add(v::splat(1.0), e)), u)
    }
}
