//! One sequence, however it is cut: batches, rings that wrap, cache reuse.

#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]

mod common;

use common::{bits, oracle, synthetic, tokens};
use muser_model::synth::{Geometry, Mix};
use muser_model::{Cache, ModelError, Step, Transformer, Want};
use muser_ops::oracle::Oracle;
use muser_ops::{Choice, Sampler, SamplingParams};
use muser_quant::DType;
use std::sync::LazyLock;

/// The one format that widths below 256 have.
const FLOATS: Mix = Mix::Uniform(DType::F32);

/// Small enough for hundreds of positions on the oracle; its window is far
/// shorter than a chunk of 64.
fn small() -> Geometry {
    Geometry {
        layers: 3,
        hidden: 64,
        heads: 4,
        kv_heads: 2,
        head_dim: 16,
        ffn: 64,
        vocab: 32,
        window: 5,
        period: 3,
        ..Geometry::named("glimmer-tiny").unwrap()
    }
}

/// Rows of a micro-batch.
const MAX_BATCH: usize = 256;

static SMALL: LazyLock<Transformer<Oracle>> = LazyLock::new(|| oracle(synthetic(&small(), FLOATS)));

const LONG: usize = 2 * MAX_BATCH + 130;

/// The long sequence in one call, and its logits.
static WHOLE: LazyLock<(Vec<u32>, Vec<Vec<u32>>)> = LazyLock::new(|| {
    let tokens = tokens(LONG, 32);
    let rows = bits(&SMALL, &mut SMALL.cache(1024), &tokens, &[]);
    (tokens, rows)
});

fn keep_nothing(_: usize, _: &[f32]) {
    panic!("no logits were asked for");
}

#[test]
fn no_cut_of_the_sequence_changes_a_bit() {
    let (tokens, whole) = &*WHOLE;
    assert_eq!(whole.len(), LONG);
    // Rows differ from each other, or equality below would say little.
    assert!(whole.windows(2).all(|w| w[0] != w[1]));
    for chunks in [
        vec![1; 90],
        vec![7, 9, 16, 33, 64, 65],
        vec![MAX_BATCH - 1, 1, 1],
        vec![MAX_BATCH, MAX_BATCH],
        vec![MAX_BATCH + 1],
        vec![1, 2 * MAX_BATCH],
    ] {
        let n: usize = chunks.iter().sum();
        let rows = bits(&SMALL, &mut SMALL.cache(1024), &tokens[..n], &chunks);
        assert!(rows == whole[..n], "{chunks:?}");
    }
}

/// The window is what the configuration says, not one off: a token beyond it
/// moves nothing, one within it does. Only sliding layers: a full one sees all.
#[test]
fn the_window_is_exact() {
    let geometry = Geometry {
        layers: 1,
        period: 2,
        ..small()
    };
    let model = oracle(synthetic(&geometry, FLOATS));
    let a = tokens(20, 32);
    let last = |changed: usize| {
        let mut a = a.clone();
        a[changed] = (a[changed] + 1) % 32;
        bits(&model, &mut model.cache(64), &a, &[]).pop().unwrap()
    };
    let original = bits(&model, &mut model.cache(64), &a, &[]).pop().unwrap();
    assert!(last(14) == original, "19 - 14 = 5 is outside a window of 5");
    assert!(last(15) != original, "19 - 15 = 4 is inside");
}

/// Gives the logits of the last of `n` tokens only, then goes on: what was
/// skipped must not be missed, for the next positions read K and V of every
/// layer.
fn last_only(model: &Transformer<Oracle>, tokens: &[u32], whole: &[Vec<u32>], n: usize) {
    let mut cache = model.cache(1024);
    let mut seen = Vec::new();
    let last = &mut |i: usize, row: &[f32]| {
        seen.push((i, row.iter().map(|v| v.to_bits()).collect::<Vec<_>>()));
    };
    model
        .forward(&mut cache, &tokens[..n], Want::Last, last)
        .unwrap();
    assert_eq!(cache.len(), n);
    assert!(seen == [(n - 1, whole[n - 1].clone())], "{n}");
    let next = &tokens[n..n + 3];
    model
        .forward(&mut cache, next, Want::Nothing, &mut keep_nothing)
        .unwrap();
    let rows = bits(model, &mut cache, &tokens[n + 3..n + 5], &[]);
    assert!(rows == whole[n + 3..n + 5], "{n}");
}

#[test]
fn wanting_less_changes_no_bit_and_stores_all() {
    let (tokens, whole) = &*WHOLE;
    for n in [1, 2, 63, MAX_BATCH, MAX_BATCH + 1, MAX_BATCH + 70] {
        last_only(&SMALL, tokens, whole, n);
    }
    // The last layer of that model is full; of this one it is sliding.
    let geometry = Geometry {
        layers: 4,
        ..small()
    };
    let model = oracle(synthetic(&geometry, FLOATS));
    let whole = bits(&model, &mut model.cache(1024), &tokens[..100], &[]);
    for n in [2, 63] {
        last_only(&model, tokens, &whole, n);
    }
}

#[test]
fn a_sequence_cut_back_and_extended_is_the_sequence() {
    let (tokens, whole) = &*WHOLE;
    let mut cache = SMALL.cache(1024);
    bits(&SMALL, &mut cache, &tokens[..200], &[]);
    for to in [150, 149, 64, 1] {
        // Something else after `to`, which must leave no trace.
        assert!(cache.truncate(to));
        assert_eq!(cache.len(), to);
        bits(&SMALL, &mut cache, &[3; 40], &[13]);
        assert!(cache.truncate(to));
        let rows = bits(&SMALL, &mut cache, &tokens[to..200], &[1, 2]);
        assert!(rows == whole[to..200], "{to}");
    }
    cache.clear();
    assert!(cache.is_empty());
    assert!(bits(&SMALL, &mut cache, &tokens[..9], &[]) == whole[..9]);
}

#[test]
fn a_ring_says_when_it_has_forgotten() {
    let (tokens, whole) = &*WHOLE;
    let mut cache = SMALL.cache(1024);
    bits(&SMALL, &mut cache, tokens, &[]);
    assert!(!cache.truncate(LONG + 1));
    // Window 5 and 256 rows need 5 chunks and one more: 384 positions, of
    // which the newest chunk is number 10. Chunk 5 begins at 320, so position
    // 324 sees 320..=324, and 323 sees one position that is gone.
    assert!(!cache.truncate(323));
    assert_eq!(cache.len(), LONG, "refused, hence unchanged");
    assert!(cache.truncate(324));
    let rows = bits(&SMALL, &mut cache, &tokens[324..330], &[]);
    assert!(rows == whole[324..330]);
    // Cut back, it has not un-forgotten.
    assert!(!cache.truncate(323));
    // Nothing at all is always held.
    assert!(cache.truncate(0));
    assert!(bits(&SMALL, &mut cache, &tokens[..9], &[]) == whole[..9]);
    assert!(
        cache.truncate(5),
        "a sequence begun anew has forgotten nothing"
    );
}

#[test]
fn the_cache_counts_its_bytes() {
    let mut cache = SMALL.cache(1024);
    assert_eq!((cache.bytes(), cache.context()), (0, 1024));
    bits(&SMALL, &mut cache, &WHOLE.0[..65], &[]);
    // K and V, 32 values of f16 each: 128 bytes a position and layer.
    assert_eq!(cache.bytes(), 3 * 128 * 128);
    assert_eq!(SMALL.cache_bytes(1024), (1024 + 2 * 384) * 128);
    assert_eq!(SMALL.cache_bytes(100), 3 * 128 * 128);
}

fn refusal(cache: &mut Cache<Oracle>, tokens: &[u32]) -> String {
    let before = cache.len();
    let error = SMALL.forward(cache, tokens, Want::Nothing, &mut keep_nothing);
    assert_eq!(cache.len(), before);
    error.unwrap_err().to_string()
}

#[test]
fn what_cannot_be_done_is_refused_before_any_work() {
    let mut cache = SMALL.cache(10);
    let run = |cache: &mut Cache<Oracle>, tokens: &[u32]| {
        SMALL.forward(cache, tokens, Want::Nothing, &mut keep_nothing)
    };
    run(&mut cache, &[]).unwrap();
    run(&mut cache, &[1; 8]).unwrap();
    assert_eq!(
        refusal(&mut cache, &[1; 3]),
        "the context is full: 8 of 10 positions taken, 3 more asked for"
    );
    assert_eq!(
        refusal(&mut cache, &[1, 32]),
        "token 32 at index 1: expected an id below 32"
    );
    run(&mut cache, &[1, 31]).unwrap();
    assert_eq!(
        refusal(&mut cache, &[1]),
        "the context is full: 10 of 10 positions taken, 1 more asked for"
    );
    let other = oracle(synthetic(&small(), FLOATS));
    assert_eq!(
        refusal(&mut other.cache(10), &[1]),
        "cache: expected one made by this model, found another layout"
    );
}

/// A file with one tensor's F32 values changed.
fn changed(bytes: &mut [u8], tensor: &str, change: impl Fn(usize, f32) -> f32) {
    let gguf = muser_gguf::Gguf::from_vec(bytes.to_vec()).unwrap();
    let info = gguf.tensor(tensor).unwrap();
    let data = &mut bytes[info.offset as usize..][..info.byte_len as usize];
    for (i, v) in data.as_chunks_mut::<4>().0.iter_mut().enumerate() {
        *v = change(i, f32::from_le_bytes(*v)).to_le_bytes();
    }
}

/// The norms after attention and FFN divide any scale of their input away,
/// down to their epsilon of 1e-8. With the 1e-5 of the others, outputs of this
/// size would come out at half or less, and logits differ by over 1.
#[test]
fn the_post_norms_have_an_epsilon_of_their_own() {
    let file = synthetic(&small(), FLOATS);
    let logits = |bytes: Vec<u8>| {
        let model = oracle(bytes);
        let rows = bits(&model, &mut model.cache(64), &[1, 2, 3], &[]);
        rows.into_iter()
            .flatten()
            .map(f32::from_bits)
            .collect::<Vec<_>>()
    };
    let original = logits(file.clone());
    for class in ["attn_output", "ffn_down"] {
        let mut scaled = file.clone();
        for layer in 0..3 {
            let name = format!("blk.{layer}.{class}.weight");
            changed(&mut scaled, &name, |_, v| v / 256.0);
        }
        let scaled = logits(scaled);
        assert_ne!(original, scaled, "{class}: the epsilon is not zero either");
        let apart = original.iter().zip(&scaled).map(|(a, b)| (a - b).abs());
        let apart = apart.fold(0.0, f32::max);
        assert!(apart < 0.05, "{class}: {apart}");
    }
}

/// A head whose row 3 is infinite, in an otherwise sound F32 model.
#[test]
fn a_logit_that_is_not_finite_is_an_error_and_the_cache_stays() {
    let geometry = Geometry {
        vocab: 8,
        softcap: None,
        ..small()
    };
    let mut bytes = synthetic(&geometry, FLOATS);
    let row_3 = 3 * geometry.hidden;
    let infinite = |i, v| if i == row_3 { f32::INFINITY } else { v };
    changed(&mut bytes, "output.weight", infinite);
    let model = oracle(bytes);

    let mut cache = model.cache(2048);
    let a = tokens(400, 8);
    let run =
        |cache: &mut Cache<Oracle>, a: &[u32], want| model.forward(cache, a, want, &mut |_, _| {});
    run(&mut cache, &a[..20], Want::Nothing).unwrap();
    let error = run(&mut cache, &a[20..24], Want::Last).unwrap_err();
    assert!(
        matches!(
            error,
            ModelError::NonFinite {
                position: 23,
                token: 3,
                ..
            }
        ),
        "{error}"
    );
    assert_eq!(cache.len(), 20);
    // No token is chosen from such a row either.
    let mut sampler = Sampler::new(SamplingParams::default(), 8).unwrap();
    let mut step = Step {
        cache: &mut cache,
        tokens: &a[20..24],
        want: Want::Last,
        choice: Some(Choice::new(&mut sampler, &a[..24], None)),
    };
    let chosen = model.forward_step(&mut step, &mut |_, _| panic!("no row is read"));
    assert_eq!(chosen.unwrap_err().to_string(), error.to_string());
    assert_eq!(cache.len(), 20);
    run(&mut cache, &a[20..22], Want::Nothing).unwrap();
    assert_eq!(cache.len(), 22);

    // A failed call that went round the ring took the window with it.
    let long = tokens(700, 8);
    let error = run(&mut cache, &long, Want::Last).unwrap_err();
    assert!(
        matches!(error, ModelError::NonFinite { position: 721, .. }),
        "{error}"
    );
    assert_eq!(cache.len(), 22);
    assert!(!cache.truncate(22));
    assert_eq!(
        run(&mut cache, &a[..1], Want::Nothing)
            .unwrap_err()
            .to_string(),
        "the cache no longer holds the window before position 22: expected it cut back further \
         or cleared"
    );
    assert!(cache.truncate(0));
    run(&mut cache, &a[..20], Want::Nothing).unwrap();
}
