//! Describes the architecture Llama, and models stored under its name (Mistral,
//! SmolLM2, …): GQA, RoPE on every layer, SwiGLU, no norms after attention and FFN, and
//! often a head tied to the embedding.

use super::{Arch, Keys, size};
use crate::spec::{
    Attn, Embed, Ffn, Gating, Glu, LayerSpec, MAX_EXPERTS, MAX_HEADS, MAX_LAYERS, MAX_POSITIONS,
    MAX_WIDTH, Norm, Norms, Out, Pairs, Rope, RopeId, Spec,
};
use crate::synth::Geometry;
use crate::{ModelError, Role};
use muser_gguf::Value;

pub(super) const ARCH: Arch = Arch {
    name: "llama",
    read,
    keys,
    // Why these keys change no result: files of Mistral 7B v0.1 have an attention
    // window, which llama.cpp has never applied; experts are as wide as the FFN;
    // llama.cpp fixes the bounds of YaRN. The other keys are about training.
    harmless: &[
        "expert_feed_forward_length",
        "attention.sliding_window",
        "rope.scaling.yarn_log_multiplier",
        "rope.scaling.yarn_ext_factor",
        "rope.scaling.yarn_attn_factor",
        "rope.scaling.yarn_beta_fast",
        "rope.scaling.yarn_beta_slow",
        "rope.scaling.finetuned",
        "tensor_data_layout",
    ],
    pinned: false,
    unused: &["window", "period", "logit_scale", "softcap"],
};

fn read(k: &Keys<'_>) -> Result<Spec, ModelError> {
    let layers = k.size("block_count", MAX_LAYERS)?;
    let hidden = k.size("embedding_length", MAX_WIDTH)?;
    let context = k.size("context_length", MAX_POSITIONS)?;
    let layer = layer(k, layers, hidden)?;
    Ok(Spec {
        name: k.name()?,
        arch: ARCH.name,
        hidden,
        vocab: k.vocab()?,
        context,
        embed: Embed {
            scale: None,
            norm: None,
        },
        layers: (0..layers).map(|i| with_biases(k, i, layer)).collect(),
        ropes: vec![Rope {
            pairs: Pairs::Neighbours,
            dims: layer.attn.head_dim,
            base: k.opt_positive("rope.freq_base")?.unwrap_or(10_000.0),
            scaling: k.rope_scaling(context)?,
            factors: k.rope_factors(),
        }],
        out: Out {
            norm: Norm::new("output_norm", layer.norms.attn.eps),
            tied: !k.has(&Role::Head.tensor_name(0)),
            bias: k.has(&Role::HeadBias.tensor_name(0)),
            scale: 1.0,
            cap: None,
        },
    })
}

/// Reads from the metadata what a Llama layer computes, apart from its biases.
fn layer(k: &Keys<'_>, layers: usize, hidden: usize) -> Result<LayerSpec, ModelError> {
    let heads = k.uniform("attention.head_count", MAX_HEADS, layers)?;
    let kv_heads = k.opt_uniform("attention.head_count_kv", MAX_HEADS, layers)?;
    let kv_heads = kv_heads.unwrap_or(heads);
    k.check_heads(heads, kv_heads)?;
    let head_dim = match k.opt_size("attention.key_length", MAX_HEADS)? {
        Some(head_dim) => head_dim,
        None if hidden.is_multiple_of(heads) => hidden / heads,
        None => {
            let expected = format!("a multiple of attention.head_count {heads}");
            return Err(k.refused("embedding_length", expected, hidden));
        }
    };
    k.check_head_dim(
        head_dim,
        &["attention.value_length", "rope.dimension_count"],
    )?;
    let eps = k.positive("attention.layer_norm_rms_epsilon")?;
    Ok(LayerSpec {
        attn: Attn {
            rope: Some(RopeId(0)),
            fused: k.has(&Role::Qkv.tensor_name(0)),
            ..Attn::plain(heads, kv_heads, head_dim)
        },
        ffn: ffn(k, layers)?,
        norms: Norms {
            attn: Norm::new("attn_norm", eps),
            post_attn: None,
            ffn: Norm::new("ffn_norm", eps),
            post_ffn: None,
        },
    })
}

/// Reads the feed-forward network of a Llama layer: dense, or experts as in Mixtral,
/// each as wide as the metadata's `feed_forward_length`.
fn ffn(k: &Keys<'_>, layers: usize) -> Result<Ffn, ModelError> {
    const USED: &str = "expert_used_count";
    let width = k.uniform("feed_forward_length", MAX_WIDTH, layers)?;
    let count = k.count("expert_count", MAX_EXPERTS)?;
    let used = k.count(USED, MAX_EXPERTS)?;
    if (count == 0) != (used == 0) || used > count {
        return Err(k.refused(USED, format!("1 to expert_count {count}, or 0"), used));
    }
    Ok(match count {
        0 => Ffn::dense(width, Glu::Silu),
        _ => Ffn::Experts {
            count,
            used,
            width,
            glu: Glu::Silu,
            shared: None,
            gating: Gating::SoftmaxThenTop,
            bias: false,
        },
    })
}

/// Adds to the description of layer `i` the biases that the file has tensors for.
fn with_biases(k: &Keys<'_>, i: usize, mut layer: LayerSpec) -> LayerSpec {
    layer.attn.bias = k.attn_bias(i);
    if let Ffn::Dense { bias, .. } = &mut layer.ffn {
        *bias = k.ffn_bias(i);
    }
    layer
}

fn keys(g: &Geometry) -> Vec<(&'static str, Value)> {
    let mut keys = super::sizes(g);
    keys.extend([
        ("rope.dimension_count", size(g.head_dim)),
        ("vocab_size", size(g.vocab)),
        ("attention.layer_norm_rms_epsilon", 1e-5f32.into()),
        ("rope.freq_base", 500_000.0f32.into()),
    ]);
    keys
}
