//! What a token costs: bytes of weights and of KV, floating-point operations,
//! and the speed at which a given bandwidth delivers them.
//!
//! A [`Budget`] is read from a file's header alone. It counts compulsory
//! traffic: each byte of a weight once a pass, each stored position that a
//! pass sees once a layer, whatever caches and kernels make of it. Activations
//! are left out: they stay in the caches.
//!
//! Operations are those of matrices and of attention (a multiplication and an
//! addition each); norms, rotations and the like are below a thousandth of
//! them.

use crate::bind::{Index, Tensor};
use crate::forward::head_slices;
use crate::{ModelError, Role, Spec, Transformer, Want, cache};
use muser_gguf::Gguf;
use muser_ops::{Backend, Lane, Sizes};
use muser_quant::DType;
use std::sync::Arc;

/// Groups of tensors that are read together, or for one purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Class {
    /// One row of the embedding.
    EmbeddingRow,
    /// Q, K, V and gate: one set over one input.
    AttentionSet,
    /// The projection of attention's output.
    AttentionOutput,
    /// The FFN's gate.
    FfnGate,
    /// The FFN's up projection, one set with its gate.
    FfnUp,
    /// The FFN's down projection.
    FfnDown,
    /// The projection to logits.
    Head,
    /// Every vector of norm weights.
    Norms,
}

impl Class {
    /// Every class, in the order of a forward pass; norms last.
    pub const ALL: [Self; 8] = [
        Self::EmbeddingRow,
        Self::AttentionSet,
        Self::AttentionOutput,
        Self::FfnGate,
        Self::FfnUp,
        Self::FfnDown,
        Self::Head,
        Self::Norms,
    ];

    /// The class of a tensor.
    pub fn of(role: Role) -> Self {
        match role {
            Role::Embedding => Self::EmbeddingRow,
            Role::Q | Role::K | Role::V | Role::Gate => Self::AttentionSet,
            Role::AttnOutput => Self::AttentionOutput,
            Role::FfnGate => Self::FfnGate,
            Role::FfnUp => Self::FfnUp,
            Role::FfnDown => Self::FfnDown,
            Role::Head => Self::Head,
            Role::Qkv => Self::AttentionSet,
            Role::Router | Role::ExpertGate | Role::SharedGate => Self::FfnGate,
            Role::ExpertUp | Role::SharedUp => Self::FfnUp,
            Role::ExpertDown | Role::SharedDown => Self::FfnDown,
            Role::OutputNorm
            | Role::HeadBias
            | Role::RopeFactors
            | Role::RopeLong
            | Role::RopeShort
            | Role::AttnNorm
            | Role::PostAttnNorm
            | Role::QBias
            | Role::KBias
            | Role::VBias
            | Role::AttnOutputBias
            | Role::QNorm
            | Role::KNorm
            | Role::Sinks
            | Role::FfnNorm
            | Role::PostFfnNorm
            | Role::FfnGateBias
            | Role::FfnUpBias
            | Role::FfnDownBias
            | Role::RouterBias
            | Role::ExpertGateBias
            | Role::ExpertUpBias
            | Role::ExpertDownBias => Self::Norms,
        }
    }

    /// Whether it is a projection of a layer.
    pub fn is_layer_projection(self) -> bool {
        !matches!(self, Self::EmbeddingRow | Self::Head | Self::Norms)
    }

    /// `attention_set`, `ffn_down`, …
    pub fn name(self) -> &'static str {
        match self {
            Self::EmbeddingRow => "embedding_row",
            Self::AttentionSet => "attention_set",
            Self::AttentionOutput => "attention_output",
            Self::FfnGate => "ffn_gate",
            Self::FfnUp => "ffn_up",
            Self::FfnDown => "ffn_down",
            Self::Head => "head",
            Self::Norms => "norms",
        }
    }
}

/// What one token reads of some tensors.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Part {
    /// Weights; of the embedding those of one row.
    pub weights: u64,
    /// Their bytes.
    pub bytes: u64,
}

impl Part {
    fn of<'a>(tensors: impl Iterator<Item = &'a Tensor>) -> Self {
        tensors.fold(Self::default(), |sum, t| Self {
            weights: sum.weights.saturating_add(weights_per_token(t)),
            bytes: sum.bytes.saturating_add(t.bytes_per_token()),
        })
    }
}

fn weights_per_token(t: &Tensor) -> u64 {
    match t.role {
        Role::Embedding => t.cols as u64,
        _ => count(t),
    }
}

fn count(t: &Tensor) -> u64 {
    (t.rows as u64).saturating_mul(t.cols as u64)
}

/// What one forward pass moves and computes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pass {
    /// Bytes of weights read.
    pub weight_bytes: u64,
    /// Bytes of K and V read, those of the pass's own tokens included.
    pub kv_read: u64,
    /// Bytes of K and V stored.
    pub kv_written: u64,
    /// Floating-point operations.
    pub flops: u64,
}

impl Pass {
    /// Bytes read: weights and KV.
    pub fn bytes(&self) -> u64 {
        self.weight_bytes.saturating_add(self.kv_read)
    }

    /// Operations a byte read.
    pub fn intensity(&self) -> f64 {
        self.flops as f64 / self.bytes() as f64
    }

    /// Passes a second if reading is all that takes time; `bandwidth` in bytes
    /// a second.
    pub fn roofline(&self, bandwidth: f64) -> f64 {
        bandwidth / self.bytes() as f64
    }

    fn add(&mut self, other: Self) {
        let add = |a: &mut u64, b| *a = a.saturating_add(b);
        add(&mut self.weight_bytes, other.weight_bytes);
        add(&mut self.kv_read, other.kv_read);
        add(&mut self.kv_written, other.kv_written);
        add(&mut self.flops, other.flops);
    }
}

/// The tensors of a model as a cost.
#[derive(Clone, Debug)]
pub struct Budget {
    config: Spec,
    tensors: Arc<Index>,
    /// What decides how calls are cut and which rows are left out.
    lane: Lane,
}

impl Budget {
    /// Of a file in the strict lane, from its header: no weight is read.
    ///
    /// # Errors
    /// What [`Transformer::load`] refuses in configuration and directory.
    pub fn of(gguf: &Gguf) -> Result<Self, ModelError> {
        let config = Spec::from_gguf(gguf)?;
        config.check_computed()?;
        let tensors = Arc::new(Index::new(gguf, &config)?);
        let lane = Lane::Strict;
        Ok(Self {
            config,
            tensors,
            lane,
        })
    }

    /// Of a model that is loaded.
    pub fn of_model<B: Backend>(model: &Transformer<B>) -> Self {
        Self {
            config: model.config().clone(),
            tensors: Arc::clone(model.index()),
            lane: model.lane(),
        }
    }

    /// The configuration.
    pub fn config(&self) -> &Spec {
        &self.config
    }

    /// Every tensor, the model's own first, then layer by layer.
    pub fn tensors(&self) -> &[Tensor] {
        self.tensors.all()
    }

    /// Parameters, norms and the whole embedding included.
    pub fn parameters(&self) -> u64 {
        self.tensors().iter().map(count).sum()
    }

    /// Weights that meet one token in a projection, the head included.
    pub fn matmul_weights(&self) -> u64 {
        let matrices = |t: &&Tensor| !t.role.is_vector() && t.role != Role::Embedding;
        self.tensors().iter().filter(matrices).map(count).sum()
    }

    /// All that one token reads of the weights.
    pub fn token(&self) -> Part {
        Part::of(self.tensors().iter())
    }

    /// What one token reads of a class; of one layer if `layer` is given.
    pub fn class(&self, class: Class, layer: Option<usize>) -> Part {
        let of_it = |t: &&Tensor| Class::of(t.role) == class;
        Part::of(self.part(layer).iter().filter(of_it))
    }

    /// What one token reads of all tensors of a layer.
    pub fn layer(&self, layer: usize) -> Part {
        Part::of(self.part(Some(layer)).iter())
    }

    /// The tensors of a layer, none if there is no such layer; without a layer
    /// all. By place and not by search: a file may have thousands of layers.
    fn part(&self, layer: Option<usize>) -> &[Tensor] {
        match layer {
            None => self.tensors(),
            Some(_) => self.tensors.part(layer),
        }
    }

    /// What one token reads in each format, of those that occur.
    pub fn by_dtype(&self) -> Vec<(DType, Part)> {
        let part = |d| Part::of(self.tensors().iter().filter(|t| t.dtype == d));
        let all = DType::ALL.into_iter().map(|dtype| (dtype, part(dtype)));
        all.filter(|(_, part)| part.weights > 0).collect()
    }

    /// The formats of a class, of one layer or of all, each once.
    pub fn dtypes(&self, class: Class, layer: Option<usize>) -> Vec<DType> {
        let part = self.part(layer);
        let occurs = |dtype: &DType| {
            let of_it = |t: &Tensor| t.dtype == *dtype && Class::of(t.role) == class;
            part.iter().any(of_it)
        };
        DType::ALL.into_iter().filter(occurs).collect()
    }

    /// Bytes of a layer's class if all of it were in this format; `None` where
    /// its rows are no whole blocks.
    pub fn class_as(&self, class: Class, layer: usize, dtype: DType) -> Option<u64> {
        let part = self.part(Some(layer)).iter();
        let mut of_it = part.filter(|t| Class::of(t.role) == class);
        of_it.try_fold(0u64, |sum, t| {
            let row = dtype.row_bytes(t.cols)? as u64;
            sum.checked_add(row.checked_mul(t.rows as u64)?)
        })
    }

    /// Bytes of K and V of one position in one layer, in f16.
    pub fn position_bytes(&self) -> u64 {
        // Heads and their size are below 2^14 each.
        2 * size_of::<u16>() as u64 * self.config.kv_width() as u64
    }

    /// Bytes of K and V that a token sees at a depth of `positions`, its own
    /// included: on a sliding layer no more than the window.
    pub fn kv_slot(&self, positions: usize) -> u64 {
        (0..self.config.layers.len()).fold(0, |sum: u64, i| {
            let seen = self.config.layer_window(i).unwrap_or(usize::MAX);
            let seen = seen.min(positions) as u64;
            sum.saturating_add(seen.saturating_mul(self.position_bytes()))
        })
    }

    /// Bytes that this implementation's cache holds for `positions`: whole
    /// chunks, and rings with room for a micro-batch.
    pub fn kv_held(&self, positions: usize) -> u64 {
        cache::kv_bytes(&self.config, positions, self.lane.micro_batch(), positions)
    }

    /// What [`Transformer::forward`] does for `rows` tokens after `first`
    /// stored ones.
    pub fn forward(&self, first: usize, rows: usize, want: Want) -> Pass {
        let mut sum = Pass::default();
        let mut done = 0;
        while done < rows {
            let batch = self.lane.micro_batch().min(rows - done);
            let keep = match want {
                Want::All => batch,
                Want::Last | Want::State if done + batch == rows => 1,
                _ => 0,
            };
            sum.add(self.micro_batch(first.saturating_add(done), batch, keep));
            done += batch;
        }
        sum
    }

    /// One micro-batch, of whose rows the last `keep` give logits.
    fn micro_batch(&self, first: usize, rows: usize, keep: usize) -> Pass {
        let last = self.config.layers.len() - 1;
        let slices = head_slices(keep, Sizes::of(self.lane).head_rows).count();
        // In a lane where the width matters, attention's half of the last layer
        // is computed for all rows or for none.
        let attended = match self.lane.width_matters() && keep > 0 {
            true => rows,
            false => keep,
        };
        let mut pass = Pass::default();
        for t in self.tensors() {
            let kept = match t.layer {
                Some(layer) if layer != last => rows,
                Some(_) if t.role.is_attention_projection() => attended,
                _ => keep,
            };
            // How many rows meet it, and how often it is read.
            let (met, reads) = match t.role {
                Role::Embedding => (0, rows),
                Role::Head => (keep, slices),
                Role::OutputNorm => (0, slices),
                Role::K | Role::V => (rows, 1),
                Role::AttnNorm | Role::KNorm => (0, 1),
                role if role.is_vector() => (0, kept.min(1)),
                _ => (kept, kept.min(1)),
            };
            pass.add(Pass {
                weight_bytes: t.bytes_per_token().saturating_mul(reads as u64),
                flops: count(t).saturating_mul(2 * met as u64),
                ..Pass::default()
            });
        }
        for layer in 0..self.config.layers.len() {
            let kept = if layer == last { attended } else { rows };
            pass.add(self.attention(layer, first, rows, kept));
        }
        pass
    }

    /// Attention of the last `kept` of `rows` tokens in one layer.
    fn attention(&self, layer: usize, first: usize, rows: usize, kept: usize) -> Pass {
        let attention = muser_ops::Attention::from(&self.config.layers[layer].attn);
        let end = first.saturating_add(rows);
        let from = end - kept;
        let seen = |p: usize| (p + 1 - attention.first_visible(p)) as u64;
        let pairs = (from..end).map(seen).fold(0, u64::saturating_add);
        let read = match kept {
            0 => 0,
            _ => end - attention.first_visible(from),
        };
        // Σ q·k and Σ p·v, an operation pair a value each.
        let per_pair = 4 * self.config.attention_width() as u64;
        Pass {
            weight_bytes: 0,
            kv_read: self.position_bytes().saturating_mul(read as u64),
            kv_written: self.position_bytes().saturating_mul(rows as u64),
            flops: pairs.saturating_mul(per_pair),
        }
    }
}
