//! A model small enough for the oracle: two layers, one sliding and one full.
#![allow(dead_code, reason = "each test binary uses its own part")]

use muser_engine::Model;
use muser_model::gguf::{GgmlType, Gguf, Writer};
use muser_ops::oracle::Oracle;
use std::sync::Arc;

pub(crate) const VOCAB: usize = 32;
pub(crate) const CONTEXT: usize = 1024;
/// Ids of the special tokens, after the letters, the space and the newline.
pub(crate) const BOS: u32 = 28;
pub(crate) const EOT: u32 = 29;

const HIDDEN: u64 = 16;
const FFN: u64 = 24;
const HEADS: u64 = 2;
const HEAD: u64 = 8;

/// The model, with tokenizer and chat template or without both.
pub(crate) fn model(with_text: bool) -> Arc<Model<Oracle>> {
    let bytes = file(with_text);
    let gguf = Gguf::from_vec(bytes).unwrap();
    Arc::new(Model::load(&gguf, Arc::new(Oracle)).unwrap())
}

pub(crate) fn file(with_text: bool) -> Vec<u8> {
    let mut w = Writer::new();
    geometry(&mut w);
    if with_text {
        text(&mut w, "llama4", TEMPLATE);
    }
    finish(w)
}

pub(crate) const TEMPLATE: &str = "{{ bos_token }}{% for m in messages %}{{ m['role'][:1] }} \
    {{ m['content'] }}<|eot|>{% endfor %}{% if add_generation_prompt %}a {% endif %}";

pub(crate) fn geometry(w: &mut Writer) {
    let sizes = [
        ("block_count", 2u32),
        ("embedding_length", HIDDEN as u32),
        ("feed_forward_length", FFN as u32),
        ("context_length", CONTEXT as u32),
        ("attention.head_count", HEADS as u32),
        ("attention.head_count_kv", 1),
        ("attention.key_length", HEAD as u32),
        ("attention.value_length", HEAD as u32),
        ("attention.sliding_window", 70),
        ("attention.sliding_window_pattern", 2),
        ("rope.dimension_count", HEAD as u32),
        ("vocab_size", VOCAB as u32),
    ];
    w.metadata("general.architecture", "muse-glimmer").unwrap();
    for (key, value) in sizes {
        w.metadata(format!("muse-glimmer.{key}"), value).unwrap();
    }
    w.metadata("muse-glimmer.attention.layer_norm_rms_epsilon", 1e-5f32)
        .unwrap();
    w.metadata("muse-glimmer.logit_scale", 1.0f32).unwrap();
}

pub(crate) fn text(w: &mut Writer, pre: &str, template: &str) {
    let letters = ('a'..='z').map(String::from);
    let rest = ["Ġ", "Ċ", "<|bos|>", "<|eot|>", "<|x|>", "<|y|>"].map(String::from);
    let tokens: Vec<String> = letters.chain(rest).collect();
    let types: Vec<i32> = (0..VOCAB).map(|i| if i < 28 { 1 } else { 3 }).collect();
    w.metadata("tokenizer.ggml.model", "gpt2").unwrap();
    w.metadata("tokenizer.ggml.pre", pre).unwrap();
    w.metadata("tokenizer.ggml.tokens", tokens).unwrap();
    w.metadata("tokenizer.ggml.token_type", types).unwrap();
    w.metadata("tokenizer.ggml.bos_token_id", BOS).unwrap();
    w.metadata("tokenizer.ggml.eot_token_id", EOT).unwrap();
    w.metadata("tokenizer.ggml.add_bos_token", true).unwrap();
    w.metadata("tokenizer.chat_template", template).unwrap();
}

pub(crate) fn finish(mut w: Writer) -> Vec<u8> {
    let mut tensors = vec![
        ("token_embd.weight".to_owned(), vec![HIDDEN, VOCAB as u64]),
        ("output_norm.weight".to_owned(), vec![HIDDEN]),
        ("output.weight".to_owned(), vec![HIDDEN, VOCAB as u64]),
    ];
    for layer in 0..2 {
        let of_layer = [
            ("attn_norm", vec![HIDDEN]),
            ("attn_q", vec![HIDDEN, HEADS * HEAD]),
            ("attn_k", vec![HIDDEN, HEAD]),
            ("attn_v", vec![HIDDEN, HEAD]),
            ("attn_gate", vec![HIDDEN, HEADS * HEAD]),
            ("attn_q_norm", vec![HEAD]),
            ("attn_k_norm", vec![HEAD]),
            ("attn_output", vec![HEADS * HEAD, HIDDEN]),
            ("post_attention_norm", vec![HIDDEN]),
            ("ffn_norm", vec![HIDDEN]),
            ("ffn_gate", vec![HIDDEN, FFN]),
            ("ffn_up", vec![HIDDEN, FFN]),
            ("ffn_down", vec![FFN, HIDDEN]),
            ("post_ffw_norm", vec![HIDDEN]),
        ];
        for (name, dims) in of_layer {
            tensors.push((format!("blk.{layer}.{name}.weight"), dims));
        }
    }
    for (name, dims) in &tensors {
        w.tensor(name, dims, GgmlType::F32).unwrap();
    }
    let mut data = w.start(Vec::new()).unwrap();
    let mut state = 1u64;
    for (name, dims) in &tensors {
        let n: u64 = dims.iter().product();
        let values = (0..n).map(|_| {
            if dims.len() == 1 {
                return 1.0f32;
            }
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            (state >> 40) as f32 / (1u64 << 24) as f32 - 0.5
        });
        let bytes: Vec<u8> = values.flat_map(f32::to_le_bytes).collect();
        data.tensor(name, &bytes).unwrap();
    }
    data.finish().unwrap()
}

/// Some tokens of the vocabulary's letters.
pub(crate) fn tokens(n: usize) -> Vec<u32> {
    (0..n as u32).map(|i| (i * 7 + i * i % 5) % 26).collect()
}
