//! Refuses models with features that a [`Spec`] can describe and the forward pass does
//! not compute.

use crate::spec::{Attn, AttnBias, Factors, Ffn, Glu, LayerSpec, Pairs, Rope, Scaling, Spec};
use crate::{ModelError, Role};

impl Spec {
    /// Checks that the forward pass computes everything that the model's spec
    /// describes.
    ///
    /// # Errors
    /// [`ModelError::NotComputed`], with the feature and the key or tensor that asks
    /// for it.
    pub fn check_computed(&self) -> Result<(), ModelError> {
        let first = self.layers.first();
        let width = |l: &LayerSpec| (l.attn.width(), l.attn.kv_width(), l.ffn.width());
        let odd = self
            .layers
            .iter()
            .position(|l| Some(width(l)) != first.map(width));
        if let Some(layer) = odd {
            return Err(self.not_computed("layers of different widths", format!("layer {layer}")));
        }
        for rope in &self.ropes {
            self.check_rope(rope)?;
        }
        for (i, layer) in self.layers.iter().enumerate() {
            self.check_attention(i, &layer.attn)?;
            self.check_ffn(i, &layer.ffn)?;
        }
        match self.out.bias {
            true => Err(self.not_computed("a bias of the head", Role::HeadBias.tensor_name(0))),
            false => Ok(()),
        }
    }

    fn check_rope(&self, rope: &Rope) -> Result<(), ModelError> {
        let whole = |l: &LayerSpec| l.attn.head_dim == rope.dims;
        let tensor = |role: Role| role.tensor_name(0);
        let refusal = match (rope.pairs, rope.scaling, rope.factors) {
            (Pairs::Halves, ..) => ("RoPE over pairs (i, i + d/2)", self.arch.to_owned()),
            (_, Scaling::Linear { .. }, _) => ("scaled RoPE", self.key("rope.scaling.factor")),
            (_, Scaling::Yarn { .. } | Scaling::Long { .. }, _) => {
                ("scaled RoPE", self.key("rope.scaling.type"))
            }
            (.., Factors::One) => ("RoPE factors", tensor(Role::RopeFactors)),
            (.., Factors::LongAndShort) => ("RoPE factors", tensor(Role::RopeLong)),
            (Pairs::Neighbours, Scaling::Unscaled, Factors::Absent) => {
                match self.layers.iter().all(whole) {
                    true => return Ok(()),
                    false => (
                        "RoPE over a part of a head",
                        self.key("rope.dimension_count"),
                    ),
                }
            }
        };
        Err(self.not_computed(refusal.0, refusal.1))
    }

    fn check_attention(&self, layer: usize, attn: &Attn) -> Result<(), ModelError> {
        let AttnBias { q, k, v, output } = attn.bias;
        let knobs = [
            (q, "a bias", Role::QBias),
            (k, "a bias", Role::KBias),
            (v, "a bias", Role::VBias),
            (output, "a bias", Role::AttnOutputBias),
            (attn.fused, "Q, K and V in one matrix", Role::Qkv),
            (attn.sinks, "attention sinks", Role::Sinks),
        ];
        if let Some((_, what, role)) = knobs.into_iter().find(|k| k.0) {
            return Err(self.not_computed(what, role.tensor_name(layer)));
        }
        match attn.cap {
            Some(_) => {
                let key = self.key("attn_logit_softcapping");
                Err(self.not_computed("a cap of the attention scores", key))
            }
            None => Ok(()),
        }
    }

    fn check_ffn(&self, layer: usize, ffn: &Ffn) -> Result<(), ModelError> {
        let (glu, bias, fused) = match *ffn {
            Ffn::Dense {
                glu, bias, fused, ..
            } => (glu, bias, fused),
            Ffn::Experts { .. } => {
                return Err(self.not_computed("experts", self.key("expert_count")));
            }
        };
        let knobs = [
            (bias.gate, "a bias", Role::FfnGateBias),
            (bias.up, "a bias", Role::FfnUpBias),
            (bias.down, "a bias", Role::FfnDownBias),
            (fused, "gate and up in one matrix", Role::FfnUp),
        ];
        if let Some((_, what, role)) = knobs.into_iter().find(|k| k.0) {
            return Err(self.not_computed(what, role.tensor_name(layer)));
        }
        let what = match glu {
            Glu::Silu => return Ok(()),
            Glu::Gelu => "GELU",
            Glu::Clamped { .. } => "a clamped SwiGLU",
        };
        Err(self.not_computed(what, self.arch.to_owned()))
    }

    /// Puts the architecture's prefix before a metadata key, as in
    /// `llama.expert_count`.
    fn key(&self, suffix: &str) -> String {
        format!("{}.{suffix}", self.arch)
    }

    pub(crate) fn not_computed(&self, what: &'static str, because: String) -> ModelError {
        ModelError::NotComputed {
            arch: self.arch,
            what,
            because,
        }
    }
}
