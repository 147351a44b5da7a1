//! Logits against those of others, of the same tokens.
//!
//! `nano-24.f32` is llama.cpp's CPU backend on the tokens in `nano-24.ids`:
//! `[24, 4096]` little-endian f32, the first rows of one batch of 400. Its own routes (batch width,
//! flash attention, repacking) differ from each other by a mean KL of about
//! 0.003, so this shows that the pass is right, not which bits it has.

#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]

mod common;

use muser_gguf::Gguf;
use muser_model::{Transformer, Want};
use muser_ops::Backend;
use muser_ops::oracle::Oracle;
use std::sync::{Arc, LazyLock};

const IDS: &str = include_str!("fixtures/nano-24.ids");
const LOGITS: &[u8] = include_bytes!("fixtures/nano-24.f32");

static NANO: LazyLock<Transformer<Oracle>> = LazyLock::new(|| {
    let gguf = Gguf::open(common::NANO).unwrap();
    Transformer::load(&gguf, Arc::new(Oracle)).unwrap()
});

fn ids() -> Vec<u32> {
    IDS.trim().split(',').map(|t| t.parse().unwrap()).collect()
}

fn log_softmax(row: impl Iterator<Item = f32>) -> Vec<f64> {
    let row: Vec<f64> = row.map(f64::from).collect();
    let sum: f64 = row.iter().map(|v| v.exp()).sum();
    row.iter().map(|v| v - sum.ln()).collect()
}

fn top(row: &[f64]) -> usize {
    (0..row.len())
        .max_by(|&a, &b| row[a].total_cmp(&row[b]))
        .unwrap()
}

/// The mean KL of the model's logits from the golden ones, and how many rows
/// have the same top token.
fn compare<B: Backend>(model: &Transformer<B>, ids: &[u32], golden: &[u8]) -> (f64, usize) {
    let golden: Vec<Vec<f64>> = golden
        .as_chunks::<4>()
        .0
        .chunks(model.spec().vocab)
        .map(|row| log_softmax(row.iter().map(|&b| f32::from_le_bytes(b))))
        .collect();
    assert_eq!(golden.len(), ids.len());
    let mut cache = model.cache(64);
    let (mut kl, mut same, mut rows) = (0.0, 0, 0);
    let check = &mut |i: usize, row: &[f32]| {
        let (p, q) = (&golden[i], log_softmax(row.iter().copied()));
        kl += p
            .iter()
            .zip(&q)
            .map(|(p, q)| p.exp() * (p - q))
            .sum::<f64>();
        same += usize::from(top(p) == top(&q));
        rows += 1;
    };
    model.forward(&mut cache, ids, Want::All, check).unwrap();
    assert_eq!((rows, cache.len()), (ids.len(), ids.len()));
    (kl / rows as f64, same)
}

#[test]
fn the_trained_model_says_what_llama_cpp_says() {
    let (mean, same) = compare(&*NANO, &ids(), LOGITS);
    assert_eq!(same, 24, "same top token");
    assert!(mean <= 0.006, "mean KL {mean}");
}

/// Random weights, so that nothing forgives a wrong pair, head or order: the
/// file's logits by a pass in float64 that was written from the facts about
/// the architecture and that llama.cpp's own pass in F32 equals within 8e-5.
#[test]
fn a_random_llama_says_what_float64_says() {
    const IDS: [u32; 48] = [
        90, 60, 65, 86, 55, 74, 80, 21, 5, 28, 27, 83, 87, 0, 47, 78, 12, 76, 11, 44, 78, 29, 32,
        26, 69, 24, 95, 42, 45, 48, 55, 53, 48, 95, 77, 76, 67, 59, 32, 94, 44, 20, 81, 15, 82, 58,
        11, 4,
    ];
    let file = include_bytes!("fixtures/llama-random.gguf").to_vec();
    let model = common::oracle(file);
    let golden = include_bytes!("fixtures/llama-random.f32");
    let (mean, same) = compare(&model, &IDS, golden);
    assert_eq!(same, 48, "same top token");
    assert!(mean <= 1e-4, "mean KL {mean}");
}

#[test]
fn the_trained_model_does_not_depend_on_the_batch_width() {
    let ids = &ids()[..12];
    let whole = common::bits(&NANO, &mut NANO.cache(64), ids, &[]);
    let single = common::bits(&NANO, &mut NANO.cache(64), ids, &[1; 12]);
    assert!(whole == single);
}

#[test]
fn the_byte_budget_is_the_file() {
    assert_eq!(NANO.parameters(), 24_136_192);
    let gguf = Gguf::open(common::NANO).unwrap();
    let all: u64 = gguf.tensors().iter().map(|t| t.byte_len).sum();
    assert_eq!(NANO.weights_bytes(), all);
    // All but the embedding's other rows of 512 Q4_K values, 288 bytes each.
    assert_eq!(NANO.bytes_per_token(), all - 4095 * 288);
}
