//! What several test files share.
#![allow(dead_code, reason = "each test file uses its part")]

pub(crate) mod parts;

use muser_gguf::Gguf;
use muser_model::synth::{self, Geometry, Mix};
use muser_model::{Cache, ModelError, Transformer, Want};
use muser_ops::Backend;
use muser_ops::oracle::Oracle;
use muser_quant::DType;
use std::sync::Arc;

/// The trained model that the binary embeds.
pub(crate) const NANO: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../../models/glimmer-nano-2-q4_k_m.gguf"
);

/// A synthetic file in memory.
pub(crate) fn synthetic(geometry: &Geometry, mix: Mix) -> Vec<u8> {
    let mut bytes = Vec::new();
    synth::write(geometry, mix, 7, &mut bytes, &mut |_, _| {}).unwrap();
    bytes
}

/// Its model on the oracle.
pub(crate) fn oracle(bytes: Vec<u8>) -> Transformer<Oracle> {
    load(&Gguf::from_vec(bytes).unwrap()).unwrap()
}

pub(crate) fn load(gguf: &Gguf) -> Result<Transformer<Oracle>, ModelError> {
    Transformer::load(gguf, Arc::new(Oracle))
}

/// Logits of all tokens, as bits, with the tokens given in calls of the sizes
/// `chunks`, the rest in one.
pub(crate) fn bits<B: Backend>(
    model: &Transformer<B>,
    cache: &mut Cache<B>,
    tokens: &[u32],
    chunks: &[usize],
) -> Vec<Vec<u32>> {
    let mut rows = Vec::new();
    let mut rest = tokens;
    for &n in chunks.iter().chain([&usize::MAX]) {
        let (now, later) = rest.split_at(n.min(rest.len()));
        let before = rows.len();
        let keep = &mut |i: usize, row: &[f32]| {
            assert_eq!(before + i, rows.len());
            rows.push(row.iter().map(|v| v.to_bits()).collect());
        };
        model.forward(cache, now, Want::All, keep).unwrap();
        rest = later;
    }
    rows
}

/// Token ids without a pattern.
pub(crate) fn tokens(n: usize, vocab: u32) -> Vec<u32> {
    let mut state = 1u32;
    let next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 16) % vocab
    };
    std::iter::repeat_with(next).take(n).collect()
}

/// A small geometry of each architecture, in a float format and in K-quants:
/// what the tests of bits go through.
pub(crate) fn architectures() -> Vec<(&'static str, Geometry, Mix)> {
    let named = |name: &str| Geometry::named(name).unwrap();
    let llama = named("llama-tiny");
    // Widths that are no multiple of a vector's elements.
    let odd = Geometry {
        layers: 3,
        hidden: 120,
        heads: 6,
        kv_heads: 3,
        head_dim: 20,
        ffn: 200,
        vocab: 77,
        ..llama.clone()
    };
    let tied = Geometry {
        tied: true,
        ..llama.clone()
    };
    let (f16, q4_k) = (Mix::Uniform(DType::F16), Mix::Uniform(DType::Q4K));
    vec![
        ("muse-glimmer/f16", named("glimmer-tiny"), f16),
        ("muse-glimmer/q4_k_m", named("glimmer-tiny"), Mix::Q4KM),
        ("llama/f16", llama.clone(), f16),
        ("llama/q4_k", llama, q4_k),
        ("llama/tied/q4_k_m", tied, Mix::Q4KM),
        ("llama/odd/f16", odd, f16),
    ]
}
