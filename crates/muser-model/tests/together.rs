//! Several sequences in one pass: each gets the bits that it gets alone.

#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]

mod common;

use common::{NANO, bits, oracle, synthetic, tokens};
use muser_cpu::{Cpu, CpuOptions};
use muser_gguf::Gguf;
use muser_model::synth::{Geometry, Mix};
use muser_model::{Cache, ModelError, Step, Transformer, Want};
use muser_ops::pinned;
use muser_ops::{Backend, Profile};
use muser_quant::DType;
use std::sync::Arc;

const VOCAB: u32 = 32;

fn small() -> Geometry {
    Geometry {
        layers: 3,
        hidden: 64,
        heads: 4,
        kv_heads: 2,
        head_dim: 16,
        ffn: 64,
        vocab: VOCAB as usize,
        window: 5,
        period: 3,
        ..Geometry::named("glimmer-tiny").unwrap()
    }
}

fn file() -> Vec<u8> {
    synthetic(&small(), Mix::Uniform(DType::F32))
}

/// What a pass gave: (step, index, bits).
type Seen = Vec<(usize, usize, Vec<u32>)>;

fn pass<B: Backend>(
    model: &Transformer<B>,
    caches: &mut [Cache<B>],
    calls: &[(&[u32], Want)],
) -> Seen {
    let mut work = model.workspace();
    let mut seen = Vec::new();
    let mut steps: Vec<Step<'_, B>> = caches
        .iter_mut()
        .zip(calls)
        .map(|(cache, &(tokens, want))| Step {
            cache,
            tokens,
            want,
            choice: None,
        })
        .collect();
    let sink = &mut |step: usize, i: usize, row: &[f32]| {
        seen.push((step, i, row.iter().map(|v| v.to_bits()).collect()));
    };
    model.forward_many(&mut work, &mut steps, sink).unwrap();
    seen
}

/// Sequences of different lengths, prefills and single tokens mixed, with all,
/// one or none of the logits wanted; then each goes on. Against each alone.
fn together_is_alone<B: Backend>(model: &Transformer<B>, vocab: u32, lengths: &[usize]) {
    let wants = [Want::All, Want::Last, Want::Nothing];
    let sequences: Vec<Vec<u32>> = lengths
        .iter()
        .enumerate()
        .map(|(i, n)| tokens(n + 40 + i, vocab)[i..].to_vec())
        .collect();
    let alone: Vec<Vec<Vec<u32>>> = sequences
        .iter()
        .map(|t| bits(model, &mut model.cache(1024), t, &[]))
        .collect();
    let mut caches: Vec<Cache<B>> = lengths.iter().map(|_| model.cache(1024)).collect();
    let mut at = vec![0; lengths.len()];
    for round in 0..4 {
        let sizes: Vec<usize> = lengths
            .iter()
            .enumerate()
            .map(|(i, &n)| match (round + i) % 4 {
                0 => n,
                1 => 1,
                2 => 0,
                _ => 7,
            })
            .collect();
        let calls: Vec<(&[u32], Want)> = (0..lengths.len())
            .map(|i| {
                (
                    &sequences[i][at[i]..at[i] + sizes[i]],
                    wants[(round + i) % 3],
                )
            })
            .collect();
        let seen = pass(model, &mut caches, &calls);
        let mut expected = Vec::new();
        for (i, &(tokens, want)) in calls.iter().enumerate() {
            let from = match want {
                Want::All => 0,
                Want::Last | Want::State => tokens.len().saturating_sub(1),
                Want::Nothing => tokens.len(),
            };
            let rows = (from..tokens.len()).map(|t| (i, t, alone[i][at[i] + t].clone()));
            expected.extend(rows);
            at[i] += sizes[i];
            assert_eq!(caches[i].len(), at[i]);
        }
        // A pass of several micro-batches gives the logits batch by batch.
        let mut seen = seen;
        seen.sort_by_key(|s| (s.0, s.1));
        assert!(seen == expected, "round {round}");
    }
}

#[test]
fn together_is_alone_on_the_oracle() {
    let model = oracle(file());
    together_is_alone(&model, VOCAB, &[3]);
    together_is_alone(&model, VOCAB, &[9, 1, 30]);
    // More rows than a micro-batch has.
    together_is_alone(&model, VOCAB, &[200, 4, 150, 1, 2, 90, 1, 66]);
}

#[test]
fn together_is_alone_on_the_cpu() {
    let gguf = Gguf::open(std::path::Path::new(NANO)).unwrap();
    for threads in [1, 2] {
        let options = CpuOptions {
            threads: Some(threads),
            ..CpuOptions::default()
        };
        let cpu = Arc::new(Cpu::open(options).unwrap());
        let model = Transformer::load(&gguf, cpu).unwrap();
        let vocab = model.spec().vocab as u32;
        together_is_alone(&model, vocab, &[1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1]);
        together_is_alone(&model, vocab, &[130, 9, 1, 140]);
    }
}

/// There the width of a batch moves bits: a sequence among others must not see
/// theirs.
#[test]
fn in_the_pinned_lane_sequences_go_one_by_one() {
    let profile = Profile::LlamaCppAvx2;
    let gguf = Gguf::from_vec(file()).unwrap();
    let backend = pinned::Oracle {
        profile,
        threads: 1,
    };
    let model = Transformer::load(&gguf, Arc::new(backend)).unwrap();
    let (a, b) = (tokens(12, VOCAB), tokens(5, VOCAB));
    let alone = |t: &[u32]| bits(&model, &mut model.cache(64), t, &[]);
    let mut caches = [model.cache(64), model.cache(64)];
    let seen = pass(&model, &mut caches, &[(&a, Want::All), (&b, Want::All)]);
    let rows = |step| -> Vec<Vec<u32>> {
        let of = seen.iter().filter(|s| s.0 == step);
        of.map(|s| s.2.clone()).collect()
    };
    assert!(rows(0) == alone(&a) && rows(1) == alone(&b));
}

#[test]
fn a_clone_goes_its_own_way() {
    let gguf = Gguf::open(std::path::Path::new(NANO)).unwrap();
    let cpu = Arc::new(Cpu::open(CpuOptions::default()).unwrap());
    let model = Transformer::load(&gguf, cpu).unwrap();
    let vocab = model.spec().vocab as u32;
    // Longer than the window, so that rings have wrapped.
    let all = tokens(700, vocab);
    let (past, a, b) = (&all[..600], &all[600..650], &all[650..]);
    let mut first = model.cache(1024);
    bits(&model, &mut first, past, &[]);
    let mut second = first.clone();
    let rows_a = bits(&model, &mut first, a, &[3]);
    let rows_b = bits(&model, &mut second, b, &[1, 1]);
    let fresh = |tail: &[u32]| {
        let whole: Vec<u32> = [past, tail].concat();
        bits(&model, &mut model.cache(1024), &whole, &[]).split_off(past.len())
    };
    assert!(rows_a == fresh(a));
    assert!(rows_b == fresh(b));
    assert!(rows_a != rows_b);
}

#[test]
fn a_refusal_names_the_step_and_leaves_all_as_they_were() {
    let model = oracle(file());
    let mut caches = [model.cache(8), model.cache(8)];
    let mut work = model.workspace();
    let [a, b] = &mut caches;
    let step = |cache, tokens| Step {
        cache,
        tokens,
        want: Want::Last,
        choice: None,
    };
    let mut steps = [step(a, &[1, 2][..]), step(b, &[1; 9][..])];
    let error = model
        .forward_many(&mut work, &mut steps, &mut |_, _, _| panic!("no work yet"))
        .unwrap_err();
    assert_eq!(error.step, Some(1));
    assert!(matches!(error.source, ModelError::ContextFull { .. }));
    assert!(caches.iter().all(Cache::is_empty));
}
