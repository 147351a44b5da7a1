//! What a token costs: bytes of weights and of KV, floating-point operations,
//! and the speed at which a given bandwidth delivers them.
//!
//! A [`Budget`] is [`Transformer::forward`] over a backend that computes nothing:
//! nobody has to tell it what a model does. It reads a file's header and norms
//! alone. What it counts is compulsory traffic: each byte of a weight once a
//! pass, each stored position that a pass sees once a layer, whatever caches and
//! kernels make of it. Activations are left out: they stay in the caches.
//!
//! Operations are those of matrices and of attention (a multiplication and an
//! addition each); norms, rotations and the like are below a thousandth of
//! them.

use crate::bind::{Index, Tensor};
use crate::{ModelError, Role, Spec, Transformer, Want, cache};
use muser_gguf::Gguf;
use muser_ops::null::Null;
use muser_ops::profiler::{Event, Op, Profiled};
use muser_ops::{Backend, Lane, Stage};
use muser_quant::DType;
use std::sync::{Arc, Mutex, PoisonError};

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
    /// Every vector, of which all but norm weights are refused so far.
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
    fn of<'a>(reads: impl Iterator<Item = &'a Read>) -> Self {
        reads.fold(Self::default(), |sum, read| Self {
            weights: sum.weights.saturating_add(read.part.weights),
            bytes: sum.bytes.saturating_add(read.part.bytes),
        })
    }
}

/// One reading of a tensor, or of a vector of norm weights.
#[derive(Clone, Copy, Debug)]
struct Read {
    class: Class,
    dtype: DType,
    part: Part,
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

    fn of(events: &[Event]) -> Self {
        let sum = |f: fn(&Event) -> u64| events.iter().map(f).fold(0, u64::saturating_add);
        Self {
            weight_bytes: sum(|e| e.counts.weight_bytes),
            kv_read: sum(|e| e.counts.kv_read),
            kv_written: sum(|e| e.counts.kv_written),
            flops: sum(|e| e.counts.flops),
        }
    }
}

/// A model over a backend that computes nothing and records what it is asked.
type Dry = Transformer<Profiled<Null>>;

/// The tensors of a model as a cost: the forward pass itself, over a backend
/// that computes nothing, counted.
#[derive(Clone, Debug)]
pub struct Budget {
    /// One pass at a time: the record is the backend's.
    dry: Arc<Mutex<Dry>>,
    spec: Arc<Spec>,
    tensors: Index,
    /// What one token reads outside of layers.
    own: Arc<[Read]>,
    /// And of each layer.
    layers: Arc<[Vec<Read>]>,
    micro_batch: usize,
}

impl Budget {
    /// Of a file in the strict lane, from its header and its norms: no matrix
    /// is read.
    ///
    /// # Errors
    /// What [`Transformer::load`] refuses.
    pub fn of(gguf: &Gguf) -> Result<Self, ModelError> {
        Self::in_lane(gguf, Lane::Strict)
    }

    /// Of a model that is loaded, in its lane.
    ///
    /// # Errors
    /// As [`Budget::of`]: none that the model itself has not passed.
    pub fn of_model<B: Backend>(model: &Transformer<B>) -> Result<Self, ModelError> {
        Self::in_lane(model.gguf(), model.lane())
    }

    fn in_lane(gguf: &Gguf, lane: Lane) -> Result<Self, ModelError> {
        let backend = Profiled::new(Arc::new(Null { lane }));
        let dry = Dry::load(gguf, Arc::new(backend))?;
        let events = record(&dry, 0, 1, Want::Last)?;
        let mut own = Vec::new();
        let mut layers = vec![Vec::new(); dry.config().layers.len()];
        for event in &events {
            let reads = reads(&dry, event);
            match event.stage {
                Some(Stage::Attention(i) | Stage::Ffn(i)) => layers[i].extend(reads),
                Some(Stage::Embed | Stage::Head) | None => own.extend(reads),
            }
        }
        Ok(Self {
            spec: Arc::clone(&dry.config),
            tensors: dry.index().clone(),
            own: own.into(),
            layers: layers.into(),
            micro_batch: dry.sizes.micro_batch,
            dry: Arc::new(Mutex::new(dry)),
        })
    }

    /// What the model computes.
    pub fn config(&self) -> &Spec {
        &self.spec
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
        let met = |c: &Class| !matches!(c, Class::EmbeddingRow | Class::Norms);
        let classes = Class::ALL.into_iter().filter(met);
        classes.map(|c| self.class(c, None).weights).sum()
    }

    /// All that one token reads of the weights.
    pub fn token(&self) -> Part {
        Part::of(self.reads(None))
    }

    /// What one token reads of a class; of one layer if `layer` is given.
    pub fn class(&self, class: Class, layer: Option<usize>) -> Part {
        Part::of(self.reads(layer).filter(|r| r.class == class))
    }

    /// What one token reads of all tensors of a layer.
    pub fn layer(&self, layer: usize) -> Part {
        Part::of(self.reads(Some(layer)))
    }

    /// What one token reads of a layer, none if there is no such layer; without
    /// a layer all.
    fn reads(&self, layer: Option<usize>) -> impl Iterator<Item = &Read> {
        let (own, layers) = match layer {
            None => (&self.own[..], &self.layers[..]),
            Some(i) => (&[][..], self.layers.get(i..=i).unwrap_or_default()),
        };
        own.iter().chain(layers.iter().flatten())
    }

    /// What one token reads in each format, of those that occur.
    pub fn by_dtype(&self) -> Vec<(DType, Part)> {
        let part = |d| Part::of(self.reads(None).filter(|r| r.dtype == d));
        let all = DType::ALL.into_iter().map(|dtype| (dtype, part(dtype)));
        all.filter(|(_, part)| part.weights > 0).collect()
    }

    /// The formats of a class, of one layer or of all, each once.
    pub fn dtypes(&self, class: Class, layer: Option<usize>) -> Vec<DType> {
        let occurs = |dtype: &DType| {
            let mut reads = self.reads(layer);
            reads.any(|r| r.dtype == *dtype && r.class == class)
        };
        DType::ALL.into_iter().filter(occurs).collect()
    }

    /// Bytes of a layer's class if all of it were in this format; `None` where
    /// its rows are no whole blocks.
    pub fn class_as(&self, class: Class, layer: usize, dtype: DType) -> Option<u64> {
        let part = self.tensors.part(Some(layer)).iter();
        let mut of_it = part.filter(|t| Class::of(t.role) == class);
        of_it.try_fold(0u64, |sum, t| {
            let row = dtype.row_bytes(t.cols)? as u64;
            sum.checked_add(row.checked_mul(t.rows as u64)?)
        })
    }

    /// Bytes of K and V of one position in all layers, in f16.
    pub fn position_bytes(&self) -> u64 {
        self.forward(0, 1, Want::Nothing).kv_written
    }

    /// Bytes of K and V that a token sees at a depth of `positions`, its own
    /// included: on a sliding layer no more than the window.
    pub fn kv_slot(&self, positions: usize) -> u64 {
        match positions {
            0 => 0,
            _ => self.forward(positions - 1, 1, Want::Last).kv_read,
        }
    }

    /// Bytes that this implementation's cache holds for `positions`: whole
    /// chunks, and rings with room for a micro-batch.
    pub fn kv_held(&self, positions: usize) -> u64 {
        cache::kv_bytes(&self.spec, positions, self.micro_batch, positions)
    }

    /// What [`Transformer::forward`] does for `rows` tokens after `first`
    /// stored ones.
    ///
    /// # Panics
    /// If `first + rows` overflows.
    pub fn forward(&self, first: usize, rows: usize, want: Want) -> Pass {
        // Nothing under the lock leaves the model half changed.
        let dry = self.dry.lock().unwrap_or_else(PoisonError::into_inner);
        let events = record(&dry, first, rows, want);
        // The first pass was taken when the budget was made, and none refuses
        // what that one did not: zeros are finite and token 0 is there.
        Pass::of(&events.expect("a pass that computes nothing has no reason to fail"))
    }
}

/// What a pass over `rows` tokens after `first` stored ones asks for.
fn record(dry: &Dry, first: usize, rows: usize, want: Want) -> Result<Vec<Event>, ModelError> {
    let mut cache = dry.cache(first + rows);
    cache.pretend(first);
    // What an earlier pass has left, should it have been cut short.
    dry.backend().take();
    dry.forward(&mut cache, &vec![0; rows], want, &mut |_, _| {})?;
    Ok(dry.backend().take())
}

/// The tensors that an operation reads.
fn reads(dry: &Dry, event: &Event) -> Vec<Read> {
    if event.matrices.is_empty() {
        // Norm weights are F32 in memory.
        let bytes = event.counts.weight_bytes;
        let part = Part {
            weights: bytes / size_of::<f32>() as u64,
            bytes,
        };
        let norms = Read {
            class: Class::Norms,
            dtype: DType::F32,
            part,
        };
        return (bytes > 0).then_some(norms).into_iter().collect();
    }
    let layer = match event.stage {
        Some(Stage::Attention(i) | Stage::Ffn(i)) => Some(i),
        Some(Stage::Embed | Stage::Head) | None => None,
    };
    let named = |name: &std::sync::Arc<str>| {
        let mut part = dry.index().part(layer).iter();
        part.find(|t| *t.name == **name)
    };
    let read = |t: &Tensor| match event.op {
        Op::Embed => Read {
            class: Class::EmbeddingRow,
            dtype: t.dtype,
            part: Part {
                weights: t.cols as u64,
                bytes: event.counts.weight_bytes,
            },
        },
        _ => Read {
            // A tied head is the table.
            class: if layer.is_none() {
                Class::Head
            } else {
                Class::of(t.role)
            },
            dtype: t.dtype,
            part: Part {
                weights: count(t),
                bytes: t.bytes,
            },
        },
    };
    event.matrices.iter().filter_map(named).map(read).collect()
}
