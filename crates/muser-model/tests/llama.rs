//! Llama files: what their keys and tensors say, and what is refused by name.

#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]

mod common;

use common::parts::Parts;
use common::synthetic;
use muser_gguf::{GgmlType, Value};
use muser_model::spec::{Factors, Ffn, Gating, Glu, Pairs, Rope, RopeId, Scaling};
use muser_model::synth::{Geometry, Mix};
use muser_model::{Spec, TensorSpec, Use};
use muser_ops::{Lane, Profile};
use muser_quant::DType;

fn tiny(tied: bool) -> Geometry {
    Geometry {
        tied,
        ..Geometry::named("llama-tiny").unwrap()
    }
}

fn parts() -> Parts {
    Parts::of(synthetic(&tiny(false), Mix::Uniform(DType::Q4K)))
}

fn rope(parts: Parts) -> Rope {
    parts.spec().ropes[0]
}

#[test]
fn a_llama_is_data() {
    let spec = parts().spec();
    assert_eq!((spec.arch, spec.layers.len()), ("llama", 2));
    assert_eq!((spec.hidden, spec.vocab, spec.context), (256, 256, 1024));
    assert_eq!((spec.embed.scale, spec.embed.norm), (None, None));
    let out = spec.out;
    assert_eq!(
        (out.tied, out.bias, out.scale, out.cap),
        (false, false, 1.0, None)
    );
    for layer in &spec.layers {
        let attn = layer.attn;
        assert_eq!((attn.heads, attn.kv_heads, attn.head_dim), (8, 2, 32));
        assert_eq!(
            (attn.rope, attn.window, attn.gate),
            (Some(RopeId(0)), None, false)
        );
        assert_eq!(attn.scale, 1.0 / 32f32.sqrt());
        assert_eq!(
            (attn.qk_norm, layer.norms.post_attn, layer.norms.post_ffn),
            (None, None, None)
        );
        assert_eq!((layer.norms.attn.eps, layer.norms.ffn.eps), (1e-5, 1e-5));
        assert!(matches!(
            layer.ffn,
            Ffn::Dense {
                width: 512,
                glu: Glu::Silu,
                ..
            }
        ));
    }
    let expected = Rope {
        pairs: Pairs::Neighbours,
        dims: 32,
        base: 500_000.0,
        scaling: Scaling::Unscaled,
        factors: Factors::Absent,
    };
    assert_eq!(spec.ropes, [expected]);
    spec.check_computed().unwrap();
}

#[test]
fn the_list_of_tensors_is_the_file() {
    for tied in [false, true] {
        let file = Parts::of(synthetic(&tiny(tied), Mix::Uniform(DType::F16)));
        let gguf = file.gguf();
        let spec = Spec::from_gguf(&gguf).unwrap();
        assert_eq!(spec.out.tied, tied);
        let listed: Vec<TensorSpec> = spec.tensors().collect();
        assert_eq!(listed.len(), 2 + usize::from(!tied) + 2 * 9);
        for (tensor, info) in listed.iter().zip(gguf.tensors()) {
            assert_eq!(tensor.name, info.name);
            let dims: Vec<u64> = tensor.dims.iter().map(|&d| d as u64).collect();
            assert_eq!(dims, info.dims);
            let vector = tensor.role.usage() == Use::Vector;
            let ty = if vector { GgmlType::F32 } else { GgmlType::F16 };
            assert_eq!(info.ty, ty, "{}", info.name);
        }
    }
}

#[test]
fn absent_keys_have_the_format_s_defaults() {
    assert_eq!(rope(parts().unset("rope.freq_base")).base, 10_000.0);
    let heads = |parts: Parts| {
        let attn = parts.spec().layers[0].attn;
        (attn.heads, attn.kv_heads, attn.head_dim)
    };
    let derived = parts()
        .unset("attention.key_length")
        .unset("attention.value_length")
        .unset("rope.dimension_count");
    assert_eq!(heads(derived), (8, 2, 32));
    assert_eq!(heads(parts().unset("attention.head_count_kv")), (8, 8, 32));
    // One number a layer, all the same.
    assert_eq!(
        heads(parts().set("attention.head_count", vec![8u32, 8])),
        (8, 2, 32)
    );
    let scaling = |kind: &str, factor: f32| {
        let parts = parts().set("rope.scaling.type", kind);
        rope(parts.set("rope.scaling.factor", factor)).scaling
    };
    assert_eq!(scaling("linear", 1.0), Scaling::Unscaled);
    assert_eq!(scaling("linear", 0.0), Scaling::Unscaled);
    assert_eq!(scaling("none", 8.0), Scaling::Unscaled);
}

#[test]
fn each_wrong_key_is_refused() {
    for (key, value, rest) in [
        (
            "attention.head_count",
            Value::from(vec![8u32, 4]),
            "expected one number, or the same one for each of 2 layers, found 8 and 4",
        ),
        (
            "feed_forward_length",
            vec![512u32].into(),
            "expected one number, or the same one for each of 2 layers, found 1 numbers",
        ),
        (
            "rope.dimension_count",
            16u32.into(),
            "expected attention.key_length 32, found 16",
        ),
        (
            "rope.scaling.type",
            "su".into(),
            "expected none, linear, yarn or longrope, found su",
        ),
        (
            "expert_used_count",
            2u32.into(),
            "expected 1 to expert_count 0, or 0, found 2",
        ),
        (
            "logit_scale",
            0.5f32.into(),
            "expected no such key: what it means for the arithmetic is not known, found 0.5",
        ),
    ] {
        let message = format!("metadata key \"llama.{key}\": {rest}");
        parts().set(key, value).refused(&message);
    }
    parts()
        .unset("attention.key_length")
        .set("embedding_length", 252u32)
        .refused("metadata key \"llama.embedding_length\": expected a multiple of attention.head_count 8, found 252");
}

/// Knobs that the spec holds and the pass lacks: refused by the knob and what
/// asks for it.
#[test]
fn what_is_not_computed_is_refused_by_name() {
    let refused = |parts: Parts, what: &str| {
        parts.refused(&format!(
            "llama: {what}: expected none, which this version does not compute"
        ));
    };
    for (class, width) in [
        ("attn_q", 256),
        ("attn_k", 64),
        ("attn_v", 64),
        ("attn_output", 256),
        ("ffn_gate", 512),
        ("ffn_up", 512),
        ("ffn_down", 256),
    ] {
        let name = format!("blk.1.{class}.bias");
        let biased = parts().tensor(&name, &[width], GgmlType::F32);
        refused(biased, &format!("a bias ({name})"));
    }
    let with = |name: &str, width| parts().tensor(name, &[width], GgmlType::F32);
    refused(with("output.bias", 256), "a bias of the head (output.bias)");
    refused(
        with("blk.0.attn_qkv.weight", 384),
        "Q, K and V in one matrix (blk.0.attn_qkv.weight)",
    );
    refused(
        with("rope_freqs.weight", 16),
        "RoPE factors (rope_freqs.weight)",
    );
    let experts = parts()
        .set("expert_count", 8u32)
        .set("expert_used_count", 2u32);
    let spec = experts.spec();
    let Ffn::Experts {
        count,
        used,
        width,
        gating,
        ..
    } = spec.layers[1].ffn
    else {
        panic!("experts");
    };
    assert_eq!((count, used, width), (8, 2, 512));
    assert_eq!(gating, Gating::SoftmaxThenTop);
    let up = spec
        .tensors()
        .find(|t| t.name == "blk.1.ffn_up_exps.weight");
    assert_eq!(up.unwrap().dims, [256, 512, 8]);
    let experts = parts()
        .set("expert_count", 8u32)
        .set("expert_used_count", 2u32)
        .set("expert_feed_forward_length", 512u32);
    refused(experts, "experts (llama.expert_count)");
    let yarn = parts().set("rope.scaling.type", "yarn");
    refused(yarn, "scaled RoPE (llama.rope.scaling.type)");
    let linear = parts().set("rope.scaling.factor", 4.0f32);
    refused(linear, "scaled RoPE (llama.rope.scaling.factor)");
}

#[test]
fn the_pinned_lane_has_no_llama() {
    let lane = Lane::Pinned(Profile::LlamaCppAvx2);
    let error = Spec::in_lane(&parts().gguf(), lane).unwrap_err();
    assert_eq!(
        error.to_string(),
        "metadata key \"general.architecture\": expected muse-glimmer in the pinned \
         lane, found llama"
    );
}
