//! Lists the tensors that a model must have: [`Spec::tensors`] is the one such list.
//!
//! Binding, `synth`, `convert`, `inspect`, the budget and the check for unknown tensors
//! iterate it. It has no optional entry: what a file may have or lack (a bias, a head
//! of its own) is a field of the [`Spec`], set when the metadata is read. So every
//! tensor of a file is either in the list or refused.

use crate::spec::{Factors, Ffn, LayerSpec, Norm, Spec};

/// The role of a tensor: its purpose in the model, such as the Q projection or the
/// embedding table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[expect(missing_docs, reason = "the names are those of the tensor table")]
pub enum Role {
    Embedding,
    OutputNorm,
    Head,
    HeadBias,
    RopeFactors,
    RopeLong,
    RopeShort,
    AttnNorm,
    PostAttnNorm,
    Q,
    K,
    V,
    Qkv,
    Gate,
    AttnOutput,
    QBias,
    KBias,
    VBias,
    AttnOutputBias,
    QNorm,
    KNorm,
    Sinks,
    FfnNorm,
    PostFfnNorm,
    FfnGate,
    FfnUp,
    FfnDown,
    FfnGateBias,
    FfnUpBias,
    FfnDownBias,
    Router,
    ExpertGate,
    ExpertUp,
    ExpertDown,
    RouterBias,
    ExpertGateBias,
    ExpertUpBias,
    ExpertDownBias,
    SharedGate,
    SharedUp,
    SharedDown,
}

/// How the forward pass uses the values of a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Use {
    /// The tensor is a table, whose rows are looked up by token.
    Table,
    /// The tensor is a matrix that multiplies activations.
    Product,
    /// The tensor's values are factors or terms, one for each channel; F32 in memory.
    Vector,
    /// The tensor's values divide the angles of a rotary encoding.
    RopeFactors,
}

impl Use {
    /// Returns the name of this use of a tensor: `table`, `product`, `vector` or
    /// `rope factors`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Table => "table",
            Self::Product => "product",
            Self::Vector => "vector",
            Self::RopeFactors => "rope factors",
        }
    }

    /// Returns whether tensors of this use may be quantised: tables and matrices may,
    /// vectors may not.
    pub fn may_be_quantised(self) -> bool {
        matches!(self, Self::Table | Self::Product)
    }
}

/// A tensor that a model must have, with the name and shape expected of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorSpec {
    /// The tensor's name in the GGUF file.
    pub name: String,
    /// The tensor's purpose in the model, such as the Q projection.
    pub role: Role,
    /// The layer that the tensor belongs to, from 0; `None` for the tensors of the
    /// whole model.
    pub layer: Option<usize>,
    /// The tensor's dimensions, the row length first: one for a vector, `[in, out]` for
    /// a matrix, `[in, out, experts]` for the matrices of all experts.
    pub dims: Vec<usize>,
}

/// One entry for each role that a tensor can have, in the order of [`Role`]: the
/// tensor's name without the layer, and its use.
const TABLE: [(Role, &str, Use); 41] = {
    use Role::*;
    use Use::{Product, RopeFactors as Divisors, Table, Vector};
    [
        (Embedding, "token_embd.weight", Table),
        (OutputNorm, "output_norm.weight", Vector),
        (Head, "output.weight", Product),
        (HeadBias, "output.bias", Vector),
        (RopeFactors, "rope_freqs.weight", Divisors),
        (RopeLong, "rope_factors_long.weight", Divisors),
        (RopeShort, "rope_factors_short.weight", Divisors),
        (AttnNorm, "attn_norm.weight", Vector),
        (PostAttnNorm, "post_attention_norm.weight", Vector),
        (Q, "attn_q.weight", Product),
        (K, "attn_k.weight", Product),
        (V, "attn_v.weight", Product),
        (Qkv, "attn_qkv.weight", Product),
        (Gate, "attn_gate.weight", Product),
        (AttnOutput, "attn_output.weight", Product),
        (QBias, "attn_q.bias", Vector),
        (KBias, "attn_k.bias", Vector),
        (VBias, "attn_v.bias", Vector),
        (AttnOutputBias, "attn_output.bias", Vector),
        (QNorm, "attn_q_norm.weight", Vector),
        (KNorm, "attn_k_norm.weight", Vector),
        (Sinks, "attn_sinks.weight", Vector),
        (FfnNorm, "ffn_norm.weight", Vector),
        (PostFfnNorm, "post_ffw_norm.weight", Vector),
        (FfnGate, "ffn_gate.weight", Product),
        (FfnUp, "ffn_up.weight", Product),
        (FfnDown, "ffn_down.weight", Product),
        (FfnGateBias, "ffn_gate.bias", Vector),
        (FfnUpBias, "ffn_up.bias", Vector),
        (FfnDownBias, "ffn_down.bias", Vector),
        (Router, "ffn_gate_inp.weight", Product),
        (ExpertGate, "ffn_gate_exps.weight", Product),
        (ExpertUp, "ffn_up_exps.weight", Product),
        (ExpertDown, "ffn_down_exps.weight", Product),
        (RouterBias, "ffn_gate_inp.bias", Vector),
        (ExpertGateBias, "ffn_gate_exps.bias", Vector),
        (ExpertUpBias, "ffn_up_exps.bias", Vector),
        (ExpertDownBias, "ffn_down_exps.bias", Vector),
        (SharedGate, "ffn_gate_shexp.weight", Product),
        (SharedUp, "ffn_up_shexp.weight", Product),
        (SharedDown, "ffn_down_shexp.weight", Product),
    ]
};

/// The roles of tensors that belong to the whole model, such as the embedding; all
/// other roles belong to a layer.
const OF_MODEL: [Role; 7] = [
    Role::Embedding,
    Role::OutputNorm,
    Role::Head,
    Role::HeadBias,
    Role::RopeFactors,
    Role::RopeLong,
    Role::RopeShort,
];

impl Role {
    fn row(self) -> (&'static str, Use) {
        let (_, name, usage) = TABLE[self as usize];
        (name, usage)
    }

    /// Returns how the values of a tensor of this role are used.
    pub fn usage(self) -> Use {
        self.row().1
    }

    /// Returns the usual name of this role's tensor without the layer and the suffix:
    /// `attn_q`, `output`, …
    pub fn class(self) -> &'static str {
        let name = self.row().0;
        name.split_once('.').map_or(name, |(class, _)| class)
    }

    /// Returns the usual name in a GGUF file of the tensor of this role. Roles of the
    /// whole model ignore `layer`.
    pub fn tensor_name(self, layer: usize) -> String {
        let name = self.row().0;
        match OF_MODEL.contains(&self) {
            true => name.to_owned(),
            false => format!("blk.{layer}.{name}"),
        }
    }

    /// Returns whether a tensor of this role is a matrix of attention.
    pub fn is_attention_projection(self) -> bool {
        matches!(
            self,
            Self::Q | Self::K | Self::V | Self::Qkv | Self::Gate | Self::AttnOutput
        )
    }

    /// Returns whether a tensor of this role is a vector or holds RoPE factors, and so
    /// may not be quantised.
    pub fn is_vector(self) -> bool {
        !self.usage().may_be_quantised()
    }
}

/// The list of a model's tensors under construction, for one layer or the whole model.
struct List {
    layer: Option<usize>,
    tensors: Vec<TensorSpec>,
}

impl List {
    fn add(&mut self, role: Role, dims: &[usize]) {
        self.tensors.push(TensorSpec {
            name: role.tensor_name(self.layer.unwrap_or(0)),
            role,
            layer: self.layer,
            dims: dims.to_vec(),
        });
    }

    fn add_if(&mut self, there: bool, role: Role, dims: &[usize]) {
        if there {
            self.add(role, dims);
        }
    }

    /// Adds the weights of a norm to the list of the model's tensors, under the tensor
    /// name that the architecture has for it.
    fn norm(&mut self, role: Role, norm: &Norm, width: usize) {
        let name = match self.layer {
            Some(layer) => format!("blk.{layer}.{}.weight", norm.tensor),
            None => format!("{}.weight", norm.tensor),
        };
        self.tensors.push(TensorSpec {
            name,
            role,
            layer: self.layer,
            dims: vec![width],
        });
    }
}

impl Spec {
    /// Returns every tensor that a model of this spec must have: those of the whole
    /// model, then those of each layer.
    pub fn tensors(&self) -> impl Iterator<Item = TensorSpec> + '_ {
        let layers = self.layers.iter().enumerate();
        let layers = layers.flat_map(|(i, layer)| self.of_layer(i, layer));
        self.of_model().into_iter().chain(layers)
    }

    fn of_model(&self) -> Vec<TensorSpec> {
        let (hidden, vocab) = (self.hidden, self.vocab);
        let mut list = List {
            layer: None,
            tensors: Vec::new(),
        };
        list.add(Role::Embedding, &[hidden, vocab]);
        list.norm(Role::OutputNorm, &self.out.norm, hidden);
        list.add_if(!self.out.tied, Role::Head, &[hidden, vocab]);
        list.add_if(self.out.bias, Role::HeadBias, &[vocab]);
        let with = |factors| self.ropes.iter().find(|r| r.factors == factors);
        if let Some(rope) = with(Factors::One) {
            list.add(Role::RopeFactors, &[rope.dims / 2]);
        }
        if let Some(rope) = with(Factors::LongAndShort) {
            list.add(Role::RopeLong, &[rope.dims / 2]);
            list.add(Role::RopeShort, &[rope.dims / 2]);
        }
        list.tensors
    }

    fn of_layer(&self, layer: usize, spec: &LayerSpec) -> Vec<TensorSpec> {
        let mut list = List {
            layer: Some(layer),
            tensors: Vec::new(),
        };
        self.attention_tensors(&mut list, spec);
        list.norm(Role::FfnNorm, &spec.norms.ffn, self.hidden);
        if let Some(norm) = &spec.norms.post_ffn {
            list.norm(Role::PostFfnNorm, norm, self.hidden);
        }
        self.ffn_tensors(&mut list, &spec.ffn);
        list.tensors
    }

    fn attention_tensors(&self, list: &mut List, spec: &LayerSpec) {
        let (hidden, attn, norms) = (self.hidden, &spec.attn, &spec.norms);
        let (width, kv_width) = (attn.width(), attn.kv_width());
        list.norm(Role::AttnNorm, &norms.attn, hidden);
        if let Some(norm) = &norms.post_attn {
            list.norm(Role::PostAttnNorm, norm, hidden);
        }
        if attn.fused {
            list.add(Role::Qkv, &[hidden, width + 2 * kv_width]);
        } else {
            list.add(Role::Q, &[hidden, width]);
            list.add(Role::K, &[hidden, kv_width]);
            list.add(Role::V, &[hidden, kv_width]);
        }
        list.add_if(attn.gate, Role::Gate, &[hidden, width]);
        list.add(Role::AttnOutput, &[width, hidden]);
        list.add_if(attn.bias.q, Role::QBias, &[width]);
        list.add_if(attn.bias.k, Role::KBias, &[kv_width]);
        list.add_if(attn.bias.v, Role::VBias, &[kv_width]);
        list.add_if(attn.bias.output, Role::AttnOutputBias, &[hidden]);
        list.add_if(attn.qk_norm.is_some(), Role::QNorm, &[attn.head_dim]);
        list.add_if(attn.qk_norm.is_some(), Role::KNorm, &[attn.head_dim]);
        list.add_if(attn.sinks, Role::Sinks, &[attn.heads]);
    }

    fn ffn_tensors(&self, list: &mut List, ffn: &Ffn) {
        let hidden = self.hidden;
        match *ffn {
            Ffn::Dense {
                width, bias, fused, ..
            } => {
                list.add_if(!fused, Role::FfnGate, &[hidden, width]);
                let up = if fused { 2 * width } else { width };
                list.add(Role::FfnUp, &[hidden, up]);
                list.add(Role::FfnDown, &[width, hidden]);
                list.add_if(bias.gate, Role::FfnGateBias, &[width]);
                list.add_if(bias.up, Role::FfnUpBias, &[width]);
                list.add_if(bias.down, Role::FfnDownBias, &[hidden]);
            }
            Ffn::Experts {
                count,
                width,
                shared,
                bias,
                ..
            } => {
                list.add(Role::Router, &[hidden, count]);
                list.add(Role::ExpertGate, &[hidden, width, count]);
                list.add(Role::ExpertUp, &[hidden, width, count]);
                list.add(Role::ExpertDown, &[width, hidden, count]);
                list.add_if(bias, Role::RouterBias, &[count]);
                list.add_if(bias, Role::ExpertGateBias, &[width, count]);
                list.add_if(bias, Role::ExpertUpBias, &[width, count]);
                list.add_if(bias, Role::ExpertDownBias, &[hidden, count]);
                if let Some(shared) = shared {
                    list.add(Role::SharedGate, &[hidden, shared]);
                    list.add(Role::SharedUp, &[hidden, shared]);
                    list.add(Role::SharedDown, &[shared, hidden]);
                }
            }
        }
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
        assert_eq!(Role::FfnDown.tensor_name(7), "blk.7.ffn_down.weight");
        assert_eq!(Role::QBias.tensor_name(7), "blk.7.attn_q.bias");
        assert_eq!(Role::Head.tensor_name(7), "output.weight");
        assert_eq!(Role::QBias.class(), "attn_q");
    }
}
