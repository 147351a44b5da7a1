//! Files whose metadata or tensors are not a Muse Glimmer model: one row a
//! refusal, each with its message.

#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]

mod common;

use common::parts::Parts;
use common::{load, synthetic};
use muser_gguf::{GgmlType, Value};
use muser_model::Spec;
use muser_model::spec::{Norm, RopeId};
use muser_model::synth::{Geometry, Mix};
use muser_ops::{Lane, Profile};
use muser_quant::DType;

fn sound() -> Parts {
    let tiny = Geometry::named("glimmer-tiny").unwrap();
    Parts::of(synthetic(&tiny, Mix::Q4KM))
}

fn key(key: &str, rest: &str) -> String {
    format!("metadata key {:?}: {rest}", sound().full(key))
}

fn sliding(spec: &Spec) -> Vec<bool> {
    let layers = spec.layers.iter();
    layers.map(|l| l.attn.window.is_some()).collect()
}

fn base(spec: &Spec) -> f32 {
    spec.ropes[0].base
}

#[test]
fn the_sound_file_loads() {
    let spec = sound().spec();
    assert_eq!(sliding(&spec), [true, false]);
    assert_eq!(
        (spec.window(), spec.context, spec.vocab),
        (Some(16), 1024, 256)
    );
    let [first, second] = &spec.layers[..] else {
        panic!("two layers");
    };
    let post = |norm: Option<Norm>| norm.unwrap().eps;
    for layer in [first, second] {
        let norms = layer.norms;
        assert_eq!((norms.attn.eps, norms.ffn.eps), (1e-5, 1e-5));
        assert_eq!((post(norms.post_attn), post(norms.post_ffn)), (1e-8, 1e-8));
    }
    assert_eq!((spec.embed.norm, spec.out.norm.eps), (Some(1e-5), 1e-5));
    assert_eq!((base(&spec), spec.out.cap), (500_000.0, Some(20.0)));
    assert_eq!((spec.attention_width(), spec.kv_width()), (256, 64));
    assert_eq!(
        (first.attn.window, first.attn.rope),
        (Some(16), Some(RopeId(0)))
    );
    assert_eq!((second.attn.window, second.attn.rope), (None, None));
    assert_eq!(second.attn.scale, 0.125);
    load(&sound().gguf()).unwrap();
}

#[test]
fn both_dialects_of_the_pattern_are_read() {
    const KEY: &str = "attention.sliding_window_pattern";
    let of = |parts: Parts| sliding(&parts.set("block_count", 9u32).spec());
    let every = |n: usize| (0..9).map(|i| i % n != n - 1).collect::<Vec<_>>();
    assert_eq!(of(sound().set(KEY, 3u32)), every(3));
    assert_eq!(of(sound().set(KEY, 1u32)), [false; 9]);
    assert_eq!(of(sound().set(KEY, 100i32)), [true; 9]);
    assert_eq!(of(sound().unset(KEY)), every(4));
    let odd: Vec<bool> = (0..9).map(|i| i % 5 < 2).collect();
    assert_eq!(of(sound().set(KEY, odd.clone())), odd);
    sound().set(KEY, vec![true; 3]).refused(&key(
        KEY,
        "expected one boolean for each of 2 layers, found 3",
    ));
    sound()
        .set(KEY, 0u32)
        .refused(&key(KEY, "expected a period of at least 1, found 0"));
    sound().set(KEY, vec![1u32, 0]).refused(&key(
        KEY,
        "expected array of bool, found array of 2 u32, element 0 of it u32 1",
    ));
}

#[test]
fn optional_keys_have_their_fallbacks() {
    let s = sound;
    assert_eq!(base(&s().unset("rope.freq_base").spec()), 500_000.0);
    assert_eq!(base(&s().set("rope.freq_base", 1e4f32).spec()), 1e4);
    assert_eq!(base(&s().set("rope.freq_base_swa", 2e4f32).spec()), 2e4);
    assert_eq!(s().unset("final_logit_softcapping").spec().out.cap, None);
    // llama.cpp's own fallbacks are others.
    let pinned = |parts: Parts| {
        let lane = Lane::Pinned(Profile::LlamaCppAvx2);
        let spec = Spec::in_lane(&parts.gguf(), lane).unwrap();
        (base(&spec), spec.out.cap)
    };
    let neither = s().unset("rope.freq_base").unset("final_logit_softcapping");
    assert_eq!(pinned(neither), (10_000.0, Some(30.0)));
    assert_eq!(pinned(s()), (500_000.0, Some(20.0)));
    let of_head = |parts: Parts| parts.spec().layers[0].attn.head_dim;
    assert_eq!(of_head(s().unset("rope.dimension_count")), 64);
    let tokens: Vec<String> = (0..256).map(|i| format!("t{i}")).collect();
    let listed = s().set("tokenizer.ggml.tokens", tokens);
    assert_eq!(listed.unset("vocab_size").spec().vocab, 256);
    s().set("rope.scaling.type", "linear")
        .set("rope.scaling.factor", 1.0f32)
        .spec();
}

#[test]
fn each_wrong_key_is_refused() {
    let s = sound;
    for required in [
        "block_count",
        "embedding_length",
        "feed_forward_length",
        "context_length",
        "attention.head_count",
        "attention.head_count_kv",
        "attention.key_length",
        "attention.value_length",
        "attention.sliding_window",
        "vocab_size",
    ] {
        let expected = "expected u32, found no such key";
        s().unset(required).refused(&key(required, expected));
        let zero = s().set(required, 0u32).gguf();
        let error = Spec::from_gguf(&zero).unwrap_err().to_string();
        assert!(
            error.starts_with(&key(required, "expected 1 to ")),
            "{error}"
        );
        assert!(error.ends_with(", found 0"), "{error}");
        let huge = s().set(required, u32::MAX).gguf();
        let error = Spec::from_gguf(&huge).unwrap_err().to_string();
        assert!(
            error.starts_with(&key(required, "expected 1 to ")),
            "{error}"
        );
    }
    for (name, value) in [
        ("attention.layer_norm_rms_epsilon", 0.0),
        ("attention.layer_norm_rms_epsilon", f32::NAN),
        ("logit_scale", f32::INFINITY),
        ("final_logit_softcapping", 0.0),
        ("final_logit_softcapping", -20.0),
        ("rope.freq_base", -1.0),
        ("rope.freq_base_swa", f32::NAN),
    ] {
        let rest = format!("expected a finite number above 0, found {value}");
        s().set(name, value).refused(&key(name, &rest));
    }
    let rows: [(&str, Value, &str); 10] = [
        (
            "general.architecture",
            "gpt2".into(),
            "expected one of muse-glimmer, llama, found gpt2",
        ),
        (
            "attention.head_count_kv",
            3u32.into(),
            "expected a divisor of attention.head_count 4, found 3",
        ),
        (
            "attention.value_length",
            32u32.into(),
            "expected attention.key_length 64, found 32",
        ),
        (
            "rope.dimension_count",
            32u32.into(),
            "expected attention.key_length 64, found 32",
        ),
        (
            "rope.dimension_count_swa",
            32u32.into(),
            "expected attention.key_length 64, found 32",
        ),
        (
            "attention.key_length",
            63u32.into(),
            "expected an even number (RoPE pairs), found 63",
        ),
        (
            "rope.scaling.type",
            "yarn".into(),
            "expected none or linear, found yarn",
        ),
        (
            "rope.scaling.factor",
            2.0f32.into(),
            "expected 1 (no scaling), found 2",
        ),
        ("tokenizer.ggml.tokens", Value::from(&["a", "b"][..]), "x"),
        (
            "attention.head_count",
            vec![4u32, 4].into(),
            "expected u32, found array of 2 u32",
        ),
    ];
    for (name, value, rest) in rows {
        match name {
            "tokenizer.ggml.tokens" => s().set(name, value).refused(&key(
                "vocab_size",
                "expected the length of tokenizer.ggml.tokens, 2, found 256",
            )),
            _ => s().set(name, value).refused(&key(name, rest)),
        }
    }
}

/// A key that nobody has looked into may stand for arithmetic that the pass
/// lacks.
#[test]
fn an_unknown_key_is_refused_by_name() {
    for (name, value, found) in [
        ("attention.scale", Value::from(0.5f32), "0.5"),
        ("expert_count", 8u32.into(), "8"),
        ("some.list", vec![1u32, 2].into(), "array of 2 u32"),
    ] {
        let rest = "expected no such key: what it means for the arithmetic is not known, found ";
        sound()
            .set(name, value)
            .refused(&key(name, &format!("{rest}{found}")));
    }
    // Of another prefix, or known to change nothing.
    let harmless = sound()
        .set("tokenizer.ggml.some", 1u32)
        .set("rope.scaling.original_context_length", 4096u32);
    load(&harmless.gguf()).unwrap();
    sound()
        .set_whole("split.count", 2u16)
        .refused("metadata key \"split.count\": expected a model in one file, found 2 files");
}

#[test]
fn each_wrong_tensor_is_refused() {
    use GgmlType::{F32, IQ1_S, Q4_K};
    let s = sound;
    for (name, dims) in [
        ("token_embd.weight", "[256, 256]"),
        ("output.weight", "[256, 256]"),
        ("output_norm.weight", "[256]"),
        ("blk.1.attn_gate.weight", "[256, 256]"),
        ("blk.0.attn_v.weight", "[256, 64]"),
        ("blk.1.post_ffw_norm.weight", "[256]"),
    ] {
        s().drop_tensor(name).refused(&format!(
            "tensor {name:?}: expected dimensions {dims}, found no such tensor"
        ));
    }
    // No allocation by the number of layers: the first that is missing ends it.
    s().set("block_count", 9000u32)
        .set("attention.sliding_window_pattern", 2u32)
        .refused(
            "tensor \"blk.2.attn_norm.weight\": expected dimensions [256], found no such tensor",
        );
    s().set("attention.sliding_window_pattern", 2u32)
        .set("block_count", 1u32)
        .refused("tensor \"blk.1.attn_norm.weight\": expected no such tensor in a muse-glimmer file of 1 layers");
    for name in [
        "blk.0.attn_q.bias",
        "rope_freqs.weight",
        "blk.0.attn_qkv.weight",
    ] {
        s().tensor(name, &[256], F32).refused(&format!(
            "tensor {name:?}: expected no such tensor in a muse-glimmer file of 2 layers"
        ));
    }
    s().tensor("blk.0.attn_k.weight", &[256, 128], Q4_K)
        .refused("tensor \"blk.0.attn_k.weight\": expected dimensions [256, 64], found [256, 128]");
    s().tensor("blk.0.attn_output.weight", &[256, 256, 2], Q4_K)
        .refused("tensor \"blk.0.attn_output.weight\": expected dimensions [256, 256], found [256, 256, 2]");
    s().set("vocab_size", 255u32)
        .refused("tensor \"token_embd.weight\": expected dimensions [256, 255], found [256, 256]");
    s().tensor("blk.1.ffn_up.weight", &[256, 256], IQ1_S)
        .refused(&format!(
            "tensor \"blk.1.ffn_up.weight\": expected {}, found IQ1_S",
            DType::NAMES
        ));
    s().tensor("output_norm.weight", &[256], Q4_K)
        .refused("tensor \"output_norm.weight\": expected F16, BF16 or F32, found Q4_K");
}

#[test]
fn norm_weights_are_checked_value_by_value() {
    let s = sound;
    s().value("blk.1.attn_q_norm.weight", 63, 3.5)
        .refused("tensor \"blk.1.attn_q_norm.weight\": expected one constant, 3.87 at index 0, found 3.5 at 63");
    s().value("blk.0.attn_k_norm.weight", 0, 2.0).refused(
        "tensor \"blk.0.attn_k_norm.weight\": expected one constant, 2 at index 0, found 1 at 1",
    );
    s().value("blk.0.ffn_norm.weight", 200, f32::NAN).refused(
        "tensor \"blk.0.ffn_norm.weight\": expected finite values, found NaN at index 200",
    );
    // The other norms are learned vectors, and may be of two bytes.
    let half = s().tensor("blk.0.ffn_norm.weight", &[256], GgmlType::F16);
    load(&half.gguf()).unwrap();
}
