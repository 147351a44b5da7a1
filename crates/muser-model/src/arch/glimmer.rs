//! Describes the architecture Muse Glimmer: layers with a sliding window and RoPE, full
//! layers without a position encoding, gated attention, QK norms, and norms before and
//! after attention and FFN.

use super::{Arch, Keys, size};
use crate::ModelError;
use crate::spec::{
    Attn, Embed, Factors, Ffn, Glu, LayerSpec, MAX_HEADS, MAX_LAYERS, MAX_POSITIONS, MAX_WIDTH,
    Norm, Norms, Out, Pairs, QkNorm, Rope, RopeId, Scaling, Spec,
};
use crate::synth::Geometry;
use muser_gguf::Value;

pub(super) const ARCH: Arch = Arch {
    name: "muse-glimmer",
    read,
    keys,
    // The first key is ignored where no scaling is set; the second is about training.
    harmless: &[
        "rope.scaling.original_context_length",
        "rope.scaling.finetuned",
    ],
    pinned: true,
    unused: &["tied"],
};

/// Epsilon of Muse Glimmer's norms after attention and FFN, a constant that no file
/// states.
const POST_NORM_EPS: f32 = 1e-8;

/// The period of full-attention layers in Muse Glimmer files that do not state it:
/// every fourth layer attends to all positions, as in llama.cpp.
const PERIOD: usize = 4;

/// Metadata keys that must equal the width of an attention head where they are present.
const SAME_AS_HEAD: [&str; 5] = [
    "attention.value_length",
    "rope.dimension_count",
    "rope.dimension_count_swa",
    "attention.key_length_swa",
    "attention.value_length_swa",
];

fn read(k: &Keys<'_>) -> Result<Spec, ModelError> {
    let (base, cap) = match k.lane().profile() {
        None => (500_000.0, None),
        Some(_) => (10_000.0, Some(30.0)), // the defaults of llama.cpp
    };
    let layers = k.size("block_count", MAX_LAYERS)?;
    let layer = layer(k)?;
    let window = k.size("attention.sliding_window", MAX_POSITIONS)?;
    let of_kind = |sliding: bool| {
        let mut layer = layer;
        layer.attn.window = sliding.then_some(window);
        layer.attn.rope = sliding.then_some(RopeId(0));
        layer
    };
    let eps = layer.norms.attn.eps;
    Ok(Spec {
        name: k.name()?,
        arch: ARCH.name,
        hidden: k.size("embedding_length", MAX_WIDTH)?,
        vocab: k.vocab()?,
        context: k.size("context_length", MAX_POSITIONS)?,
        embed: Embed {
            scale: None,
            norm: Some(eps),
        },
        layers: k
            .pattern(layers, PERIOD)?
            .into_iter()
            .map(of_kind)
            .collect(),
        ropes: vec![Rope {
            pairs: Pairs::Neighbours,
            dims: layer.attn.head_dim,
            base: rope_base(k)?.unwrap_or(base),
            scaling: Scaling::Unscaled,
            factors: Factors::Absent,
        }],
        out: Out {
            norm: Norm::new("output_norm", eps),
            tied: false,
            bias: false,
            scale: k.positive("logit_scale")?,
            cap: k.opt_positive("final_logit_softcapping")?.or(cap),
        },
    })
}

/// Reads from the metadata what a full-attention layer of Muse Glimmer computes: one
/// without a sliding window.
fn layer(k: &Keys<'_>) -> Result<LayerSpec, ModelError> {
    let heads = k.size("attention.head_count", MAX_HEADS)?;
    let kv_heads = k.size("attention.head_count_kv", MAX_HEADS)?;
    k.check_heads(heads, kv_heads)?;
    let head_dim = k.size("attention.key_length", MAX_HEADS)?;
    k.size("attention.value_length", MAX_HEADS)?;
    k.check_head_dim(head_dim, &SAME_AS_HEAD)?;
    let eps = k.positive("attention.layer_norm_rms_epsilon")?;
    Ok(LayerSpec {
        attn: Attn {
            qk_norm: Some(QkNorm {
                eps,
                constant: true,
            }),
            gate: true,
            ..Attn::plain(heads, kv_heads, head_dim)
        },
        ffn: Ffn::dense(k.size("feed_forward_length", MAX_WIDTH)?, Glu::Silu),
        norms: Norms {
            attn: Norm::new("attn_norm", eps),
            post_attn: Some(Norm::new("post_attention_norm", POST_NORM_EPS)),
            ffn: Norm::new("ffn_norm", eps),
            post_ffn: Some(Norm::new("post_ffw_norm", POST_NORM_EPS)),
        },
    })
}

/// Reads the RoPE base of Muse Glimmer's layers with a sliding window; `None` if the
/// file gives none. Refuses scaled RoPE: the released model has none, and what scaling
/// means for the layers without a window is not known.
fn rope_base(k: &Keys<'_>) -> Result<Option<f32>, ModelError> {
    const TYPE: &str = "rope.scaling.type";
    match k.opt_text(TYPE)? {
        None | Some("none" | "linear") => {}
        Some(other) => return Err(k.refused(TYPE, "none or linear", other)),
    }
    let (key, factor) = k.rope_factor()?;
    if factor != 1.0 {
        return Err(k.refused(key, "1 (no scaling)", factor));
    }
    let base = k.opt_positive("rope.freq_base")?;
    let sliding = k.opt_positive("rope.freq_base_swa")?;
    Ok(sliding.or(base))
}

fn keys(g: &Geometry) -> Vec<(&'static str, Value)> {
    let pattern = match g.pattern_as_array {
        true => g.sliding().into(),
        false => size(g.period),
    };
    let mut keys = super::sizes(g);
    keys.extend([
        ("attention.sliding_window", size(g.window)),
        ("rope.dimension_count", size(g.head_dim)),
        ("vocab_size", size(g.vocab)),
        ("attention.sliding_window_pattern", pattern),
        ("attention.layer_norm_rms_epsilon", 1e-5f32.into()),
        ("rope.freq_base", 500_000.0f32.into()),
        ("logit_scale", g.logit_scale.into()),
    ]);
    keys.extend(g.softcap.map(|cap| ("final_logit_softcapping", cap.into())));
    keys
}
