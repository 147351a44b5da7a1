//! The tensor table: which tensors a model has, under which names, of which
//! shapes.

use crate::Config;

/// What a tensor is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[expect(missing_docs, reason = "the names are those of the tensor table")]
pub enum Role {
    Embedding,
    OutputNorm,
    Head,
    AttnNorm,
    PostAttnNorm,
    Q,
    K,
    V,
    Gate,
    AttnOutput,
    QNorm,
    KNorm,
    FfnNorm,
    PostFfnNorm,
    FfnGate,
    FfnUp,
    FfnDown,
}

/// The width of an axis, by the configuration.
#[derive(Clone, Copy)]
enum Axis {
    Hidden,
    Attention,
    Kv,
    HeadDim,
    Ffn,
    Vocab,
}

use Axis::{Attention, Ffn, HeadDim, Hidden, Kv, Vocab};

/// One row a role: its name, and its axes with the row length first.
const TABLE: [(Role, &str, &[Axis]); 17] = [
    (Role::Embedding, "token_embd", &[Hidden, Vocab]),
    (Role::OutputNorm, "output_norm", &[Hidden]),
    (Role::Head, "output", &[Hidden, Vocab]),
    (Role::AttnNorm, "attn_norm", &[Hidden]),
    (Role::PostAttnNorm, "post_attention_norm", &[Hidden]),
    (Role::Q, "attn_q", &[Hidden, Attention]),
    (Role::K, "attn_k", &[Hidden, Kv]),
    (Role::V, "attn_v", &[Hidden, Kv]),
    (Role::Gate, "attn_gate", &[Hidden, Attention]),
    (Role::AttnOutput, "attn_output", &[Attention, Hidden]),
    (Role::QNorm, "attn_q_norm", &[HeadDim]),
    (Role::KNorm, "attn_k_norm", &[HeadDim]),
    (Role::FfnNorm, "ffn_norm", &[Hidden]),
    (Role::PostFfnNorm, "post_ffw_norm", &[Hidden]),
    (Role::FfnGate, "ffn_gate", &[Hidden, Ffn]),
    (Role::FfnUp, "ffn_up", &[Hidden, Ffn]),
    (Role::FfnDown, "ffn_down", &[Ffn, Hidden]),
];

impl Role {
    /// The roles of the whole model.
    pub const MODEL: [Self; 3] = [Self::Embedding, Self::OutputNorm, Self::Head];

    /// The roles of each layer.
    pub const LAYER: [Self; 14] = [
        Self::AttnNorm,
        Self::PostAttnNorm,
        Self::Q,
        Self::K,
        Self::V,
        Self::Gate,
        Self::AttnOutput,
        Self::QNorm,
        Self::KNorm,
        Self::FfnNorm,
        Self::PostFfnNorm,
        Self::FfnGate,
        Self::FfnUp,
        Self::FfnDown,
    ];

    /// The name without layer and `.weight`: `attn_q`, `output`, …
    pub fn class(self) -> &'static str {
        TABLE[self as usize].1
    }

    /// The tensor's name in the file; `layer` counts for roles of a layer.
    pub fn tensor_name(self, layer: usize) -> String {
        let class = self.class();
        if Self::MODEL.contains(&self) {
            format!("{class}.weight")
        } else {
            format!("blk.{layer}.{class}.weight")
        }
    }

    /// Whether it is a matrix of attention's half of a layer.
    pub fn is_attention_projection(self) -> bool {
        matches!(
            self,
            Self::Q | Self::K | Self::V | Self::Gate | Self::AttnOutput
        )
    }

    /// Whether it is a vector of norm weights.
    pub fn is_norm(self) -> bool {
        TABLE[self as usize].2.len() == 1
    }

    /// The dimensions, the row length first: one for a norm, `[in, out]` for a
    /// matrix.
    pub fn dims(self, config: &Config) -> Vec<usize> {
        let width = |axis: &Axis| match axis {
            Hidden => config.hidden,
            Attention => config.attention_width(),
            Kv => config.kv_width(),
            HeadDim => config.head_dim,
            Ffn => config.ffn,
            Vocab => config.vocab,
        };
        TABLE[self as usize].2.iter().map(width).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_in_the_order_of_the_roles() {
        for (i, (role, ..)) in TABLE.iter().enumerate() {
            assert_eq!(*role as usize, i);
        }
        let all = Role::MODEL.iter().chain(&Role::LAYER);
        assert!(all.copied().eq(TABLE.iter().map(|row| row.0)));
        assert_eq!(Role::FfnDown.tensor_name(7), "blk.7.ffn_down.weight");
        assert_eq!(Role::Head.tensor_name(7), "output.weight");
    }
}
