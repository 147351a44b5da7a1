//! Files whose metadata or tensors are not a Muse Glimmer model: one row a
//! refusal, each with its message.

#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]

mod common;

use common::{load, synthetic};
use muser_gguf::{GgmlType, Gguf, Value, Writer};
use muser_model::synth::{Geometry, Mix};
use muser_model::{Config, POST_NORM_EPS};
use muser_ops::{Lane, Profile};
use muser_quant::DType;

/// A file taken apart, to be changed and put together again.
struct Parts {
    keys: Vec<(String, Value)>,
    tensors: Vec<(String, Vec<u64>, GgmlType, Vec<u8>)>,
}

impl Parts {
    fn sound() -> Self {
        let tiny = Geometry::named("glimmer-tiny").unwrap();
        let gguf = Gguf::from_vec(synthetic(&tiny, Mix::Q4KM)).unwrap();
        let entries = gguf.metadata().iter();
        let tensors = gguf.tensors().iter();
        Self {
            keys: entries.map(|e| (e.key.clone(), e.value.clone())).collect(),
            tensors: tensors
                .map(|t| {
                    let data = gguf.tensor_data(t).to_vec();
                    (t.name.clone(), t.dims.clone(), t.ty, data)
                })
                .collect(),
        }
    }

    fn unset(mut self, key: &str) -> Self {
        self.keys.retain(|(k, _)| k != &full(key));
        self
    }

    fn set(self, key: &str, value: impl Into<Value>) -> Self {
        let mut parts = self.unset(key);
        parts.keys.push((full(key), value.into()));
        parts
    }

    fn drop_tensor(mut self, name: &str) -> Self {
        let before = self.tensors.len();
        self.tensors.retain(|t| t.0 != name);
        assert_eq!(self.tensors.len(), before - 1);
        self
    }

    /// Another tensor under this name (which may be new), of zeros.
    fn tensor(mut self, name: &str, dims: &[u64], ty: GgmlType) -> Self {
        self.tensors.retain(|t| t.0 != name);
        let bytes = ty.row_bytes(dims.iter().product()).unwrap();
        let data = vec![0; bytes as usize];
        self.tensors
            .push((name.to_owned(), dims.to_vec(), ty, data));
        self
    }

    /// One F32 value of a tensor.
    fn value(mut self, name: &str, index: usize, value: f32) -> Self {
        let tensor = self.tensors.iter_mut().find(|t| t.0 == name).unwrap();
        tensor.3[4 * index..4 * index + 4].copy_from_slice(&value.to_le_bytes());
        self
    }

    fn gguf(self) -> Gguf {
        let mut writer = Writer::new();
        for (key, value) in self.keys {
            writer.metadata(key, value).unwrap();
        }
        for (name, dims, ty, _) in &self.tensors {
            writer.tensor(name.as_str(), dims, *ty).unwrap();
        }
        let mut data = writer.start(Vec::new()).unwrap();
        for (name, _, _, bytes) in &self.tensors {
            data.tensor(name, bytes).unwrap();
        }
        Gguf::from_vec(data.finish().unwrap()).unwrap()
    }

    fn config(self) -> Config {
        Config::from_gguf(&self.gguf()).unwrap()
    }

    #[track_caller]
    fn refused(self, message: &str) {
        let error = load(&self.gguf()).map(|_| ()).unwrap_err().to_string();
        // The byte offset of a key moves with the file: not part of the row.
        let offset = error.find(" at byte ").map(|at| {
            let end = error[at..].find(':').unwrap() + at;
            error[at..end].to_owned()
        });
        assert_eq!(error.replace(&offset.unwrap_or("\0".into()), ""), message);
    }
}

fn full(key: &str) -> String {
    let own = key.starts_with("general.") || key.starts_with("tokenizer.");
    if own {
        key.to_owned()
    } else {
        format!("muse-glimmer.{key}")
    }
}

fn key(key: &str, rest: &str) -> String {
    format!("metadata key {:?}: {rest}", full(key))
}

#[test]
fn the_sound_file_loads() {
    let config = Parts::sound().config();
    assert_eq!(config.sliding, [true, false]);
    assert_eq!(
        (config.window, config.context, config.vocab),
        (16, 1024, 256)
    );
    assert_eq!(
        (config.rms_eps, config.post_norm_eps),
        (1e-5, POST_NORM_EPS)
    );
    assert_eq!((config.rope_base, config.softcap), (500_000.0, Some(20.0)));
    assert_eq!((config.attention_width(), config.kv_width()), (256, 64));
    assert_eq!(config.attention(0).window, Some(16));
    assert_eq!(
        (config.attention(1).window, config.attention(1).scale),
        (None, 0.125)
    );
    load(&Parts::sound().gguf()).unwrap();
}

#[test]
fn both_dialects_of_the_pattern_are_read() {
    const KEY: &str = "attention.sliding_window_pattern";
    let of = |parts: Parts| parts.set("block_count", 9u32).config().sliding;
    let every = |n: usize| (0..9).map(|i| i % n != n - 1).collect::<Vec<_>>();
    assert_eq!(of(Parts::sound().set(KEY, 3u32)), every(3));
    assert_eq!(of(Parts::sound().set(KEY, 1u32)), [false; 9]);
    assert_eq!(of(Parts::sound().set(KEY, 100i32)), [true; 9]);
    assert_eq!(of(Parts::sound().unset(KEY)), every(4));
    let odd: Vec<bool> = (0..9).map(|i| i % 5 < 2).collect();
    assert_eq!(of(Parts::sound().set(KEY, odd.clone())), odd);
    Parts::sound().set(KEY, vec![true; 3]).refused(&key(
        KEY,
        "expected one boolean for each of 2 layers, found 3",
    ));
    Parts::sound()
        .set(KEY, 0u32)
        .refused(&key(KEY, "expected a period of at least 1, found 0"));
    Parts::sound().set(KEY, vec![1u32, 0]).refused(&key(
        KEY,
        "expected array of bool, found array of 2 u32, element 0 of it u32 1",
    ));
}

#[test]
fn optional_keys_have_their_fallbacks() {
    let s = Parts::sound;
    assert_eq!(s().unset("rope.freq_base").config().rope_base, 500_000.0);
    assert_eq!(s().set("rope.freq_base", 1e4f32).config().rope_base, 1e4);
    assert_eq!(
        s().set("rope.freq_base_swa", 2e4f32).config().rope_base,
        2e4
    );
    assert_eq!(s().unset("final_logit_softcapping").config().softcap, None);
    // llama.cpp's own fallbacks are others.
    let pinned = |parts: Parts| {
        let lane = Lane::Pinned(Profile::LlamaCppAvx2);
        let config = Config::in_lane(&parts.gguf(), lane).unwrap();
        (config.rope_base, config.softcap)
    };
    let neither = s().unset("rope.freq_base").unset("final_logit_softcapping");
    assert_eq!(pinned(neither), (10_000.0, Some(30.0)));
    assert_eq!(pinned(s()), (500_000.0, Some(20.0)));
    assert_eq!(s().unset("rope.dimension_count").config().head_dim, 64);
    let tokens: Vec<String> = (0..256).map(|i| format!("t{i}")).collect();
    let listed = s().set("tokenizer.ggml.tokens", tokens);
    assert_eq!(listed.unset("vocab_size").config().vocab, 256);
    s().set("rope.scaling.type", "linear")
        .set("rope.scaling.factor", 1.0f32)
        .config();
}

#[test]
fn each_wrong_key_is_refused() {
    let s = Parts::sound;
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
        let error = Config::from_gguf(&zero).unwrap_err().to_string();
        assert!(
            error.starts_with(&key(required, "expected 1 to ")),
            "{error}"
        );
        assert!(error.ends_with(", found 0"), "{error}");
        let huge = s().set(required, u32::MAX).gguf();
        let error = Config::from_gguf(&huge).unwrap_err().to_string();
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
            "llama".into(),
            "expected muse-glimmer, found llama",
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

#[test]
fn each_wrong_tensor_is_refused() {
    use GgmlType::{F32, IQ1_S, Q4_K};
    let s = Parts::sound;
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
        .refused("tensor \"output_norm.weight\": expected F32, F16 or BF16, found Q4_K");
}

#[test]
fn norm_weights_are_checked_value_by_value() {
    let s = Parts::sound;
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
