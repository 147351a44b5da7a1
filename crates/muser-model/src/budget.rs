//! Computes a model's [`Budget`]: the bytes of weights and K/V that a token reads, its
//! floating-point operations, and the speed that a given memory bandwidth allows.
//!
//! A budget runs [`Transformer::forward`] over a backend that computes nothing and
//! counts the operations, so it needs no description of the model beside the forward
//! pass itself. It reads only the header and the norms of a file. It counts compulsory
//! traffic: each byte of a weight once for a pass, and each position that a pass
//! attends to once for a layer, whatever the processor's caches save. Activations are
//! not counted, because they stay in those caches.
//!
//! The floating-point operations are those of matrices and attention, two for a
//! multiply-add. Norms, rotations and other elementwise work are below a thousandth of
//! them.

use crate::bind::{Index, Tensor};
use crate::{ModelError, Role, Spec, Transformer, Want, cache};
use muser_gguf::Gguf;
use muser_ops::null::Null;
use muser_ops::profiler::{Event, Op, Profiled};
use muser_ops::{Backend, Lane, Stage};
use muser_quant::DType;
use std::sync::{Arc, Mutex, PoisonError};

/// A class of weight tensors, for sums of bytes: tensors that are read together or
/// serve one purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Class {
    /// The embedding table, of which a token reads one row.
    EmbeddingRow,
    /// The matrices of attention's input, Q, K, V and gate: one projection set.
    AttentionSet,
    /// The output projection of attention.
    AttentionOutput,
    /// The gate projection of the FFN.
    FfnGate,
    /// The up projection of the FFN, in one set with the gate.
    FfnUp,
    /// The down projection of the FFN.
    FfnDown,
    /// The output projection of the model, from the last state to logits.
    Head,
    /// All weight vectors of the model. The forward pass has no others than the weights
    /// of norms yet.
    Norms,
}

impl Class {
    /// All classes of weight tensors in the order of a forward pass, then the norms.
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

    /// Returns the class of weight tensors, such as the head, in which a tensor of this
    /// role (its purpose in the model) is counted.
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

    /// Returns whether this class of tensors is one of the layers' projections: not
    /// embedding, head or norms.
    pub fn is_layer_projection(self) -> bool {
        !matches!(self, Self::EmbeddingRow | Self::Head | Self::Norms)
    }

    /// Returns the name of this class of tensors in written records: `attention_set`,
    /// `ffn_down`, …
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

/// How many weights of some tensors one token reads, and how many bytes they take.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Number of weights that one token reads; of the embedding table, those of one
    /// row.
    pub weights: u64,
    /// Size in bytes of the weights that one token reads.
    pub bytes: u64,
}

impl Traffic {
    fn of<'a>(reads: impl Iterator<Item = &'a Read>) -> Self {
        reads.fold(Self::default(), |sum, read| Self {
            weights: sum.weights.saturating_add(read.traffic.weights),
            bytes: sum.bytes.saturating_add(read.traffic.bytes),
        })
    }
}

/// One tensor that an operation of the forward pass reads, with the weights that one
/// token needs of it.
#[derive(Clone, Copy, Debug)]
struct Read {
    class: Class,
    dtype: DType,
    traffic: Traffic,
}

fn count(t: &Tensor) -> u64 {
    (t.rows as u64).saturating_mul(t.cols as u64)
}

/// The cost of one forward pass: bytes of weights and K/V, and floating-point
/// operations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pass {
    /// Bytes of weights that the forward pass reads.
    pub weight_bytes: u64,
    /// Bytes of K and V that the forward pass reads, including those that it stored.
    pub kv_read: u64,
    /// Bytes of K and V that the forward pass stores in the KV cache.
    pub kv_written: u64,
    /// Floating-point operations of the forward pass, two for a multiply-add.
    pub flops: u64,
}

impl Pass {
    /// Returns the bytes that the forward pass reads: weights, K and V.
    pub fn bytes(&self) -> u64 {
        self.weight_bytes.saturating_add(self.kv_read)
    }

    /// Returns the arithmetic intensity of the forward pass: floating-point operations
    /// for each byte read.
    pub fn intensity(&self) -> f64 {
        self.flops as f64 / self.bytes() as f64
    }

    /// Returns the forward passes per second if only reading takes time, at a memory
    /// `bandwidth` in bytes per second.
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

/// A model bound to a backend that computes nothing and records the operations it is
/// asked for.
type Dry = Transformer<Profiled<Null>>;

/// The cost of a model's forward pass in bytes and operations.
#[derive(Clone, Debug)]
pub struct Budget {
    /// The model that is run to count operations. Locked, because the record of the
    /// operations belongs to its backend: passes go one at a time.
    dry: Arc<Mutex<Dry>>,
    spec: Arc<Spec>,
    tensors: Index,
    /// The tensors that one token reads outside of the layers: embedding, last norm and
    /// head.
    own: Arc<[Read]>,
    /// The tensors that one token reads in each layer.
    layers: Arc<[Vec<Read>]>,
    micro_batch: usize,
}

impl Budget {
    /// Makes the budget (bytes and operations of a pass) of a model file in the strict
    /// lane (muser's own arithmetic). Reads the header and the norms, but no matrix.
    ///
    /// # Errors
    /// Those of [`Transformer::load`].
    pub fn of(gguf: &Gguf) -> Result<Self, ModelError> {
        Self::in_lane(gguf, Lane::Strict)
    }

    /// Makes the budget (bytes and operations of a pass) of a loaded model, in that
    /// model's lane (its arithmetic: strict or pinned).
    ///
    /// # Errors
    /// Those of [`Budget::of`]; the model has passed the same checks.
    pub fn of_model<B: Backend>(model: &Transformer<B>) -> Result<Self, ModelError> {
        Self::in_lane(model.gguf(), model.lane())
    }

    fn in_lane(gguf: &Gguf, lane: Lane) -> Result<Self, ModelError> {
        let backend = Profiled::new(Arc::new(Null { lane }));
        let dry = Dry::load(gguf, Arc::new(backend))?;
        let events = record(&dry, 0, 1, Want::Last)?;
        let mut own = Vec::new();
        let mut layers = vec![Vec::new(); dry.spec().layers.len()];
        for event in &events {
            let reads = reads(&dry, event);
            match event.stage {
                Some(Stage::Attention(i) | Stage::Ffn(i)) => layers[i].extend(reads),
                Some(Stage::Embed | Stage::Head) | None => own.extend(reads),
            }
        }
        Ok(Self {
            spec: Arc::clone(&dry.spec),
            tensors: dry.index().clone(),
            own: own.into(),
            layers: layers.into(),
            micro_batch: dry.sizes.micro_batch,
            dry: Arc::new(Mutex::new(dry)),
        })
    }

    /// Returns the spec of the model: its sizes and what its layers compute.
    pub fn spec(&self) -> &Spec {
        &self.spec
    }

    /// Returns all tensors of the model: those of the whole model, then those of each
    /// layer.
    pub fn tensors(&self) -> &[Tensor] {
        self.tensors.all()
    }

    /// Returns the number of the model's parameters, norms and embedding included.
    pub fn parameters(&self) -> u64 {
        self.tensors().iter().map(count).sum()
    }

    /// Returns the number of weights that multiply one token: those of all
    /// projections, the head included.
    pub fn matmul_weights(&self) -> u64 {
        let met = |c: &Class| !matches!(c, Class::EmbeddingRow | Class::Norms);
        let classes = Class::ALL.into_iter().filter(met);
        classes.map(|c| self.class(c, None).weights).sum()
    }

    /// Returns the count and bytes of all weights that one token reads.
    pub fn token(&self) -> Traffic {
        Traffic::of(self.reads(None))
    }

    /// Returns the count and bytes of the weights that one token reads of a class of
    /// tensors (such as the FFN's down projections), in one layer or, for `None`, in
    /// the whole model.
    pub fn class(&self, class: Class, layer: Option<usize>) -> Traffic {
        Traffic::of(self.reads(layer).filter(|r| r.class == class))
    }

    /// Returns the count and bytes of the weights that one token reads in a layer.
    pub fn layer(&self, layer: usize) -> Traffic {
        Traffic::of(self.reads(Some(layer)))
    }

    /// Returns the tensors that one token reads in a layer, none if there is no such
    /// layer; for `None`, in the whole model.
    fn reads(&self, layer: Option<usize>) -> impl Iterator<Item = &Read> {
        let (own, layers) = match layer {
            None => (&self.own[..], &self.layers[..]),
            Some(i) => (&[][..], self.layers.get(i..=i).unwrap_or_default()),
        };
        own.iter().chain(layers.iter().flatten())
    }

    /// Returns the count and bytes of the weights that one token reads, for each weight
    /// format that occurs in the model.
    pub fn by_dtype(&self) -> Vec<(DType, Traffic)> {
        let traffic = |d| Traffic::of(self.reads(None).filter(|r| r.dtype == d));
        let all = DType::ALL.into_iter().map(|dtype| (dtype, traffic(dtype)));
        all.filter(|(_, traffic)| traffic.weights > 0).collect()
    }

    /// Returns the weight formats that a class of tensors (such as the FFN's down
    /// projections) has in one layer or, for `None`, in the whole model.
    pub fn dtypes(&self, class: Class, layer: Option<usize>) -> Vec<DType> {
        let occurs = |dtype: &DType| {
            let mut reads = self.reads(layer);
            reads.any(|r| r.dtype == *dtype && r.class == class)
        };
        DType::ALL.into_iter().filter(occurs).collect()
    }

    /// Returns the bytes that a layer's tensors of one class (such as the FFN's down
    /// projection) would take in the weight format `dtype`; `None` if a row is not a
    /// whole number of its blocks.
    pub fn class_as(&self, class: Class, layer: usize, dtype: DType) -> Option<u64> {
        let part = self.tensors.part(Some(layer)).iter();
        let mut of_it = part.filter(|t| Class::of(t.role) == class);
        of_it.try_fold(0u64, |sum, t| {
            let row = dtype.row_bytes(t.cols)? as u64;
            sum.checked_add(row.checked_mul(t.rows as u64)?)
        })
    }

    /// Returns the bytes that K and V of one position take in all layers, in f16.
    pub fn position_bytes(&self) -> u64 {
        self.forward(0, 1, Want::Nothing).kv_written
    }

    /// Returns the bytes of K and V that a token reads when `positions` are stored, its
    /// own included. A layer with a sliding window reads at most its window.
    pub fn kv_slot(&self, positions: usize) -> u64 {
        match positions {
            0 => 0,
            _ => self.forward(positions - 1, 1, Want::Last).kv_read,
        }
    }

    /// Returns the bytes that the KV cache of one sequence of `positions` takes, in
    /// whole chunks of 64 positions. A layer with a sliding window keeps only a ring of
    /// the last positions, with space for a micro-batch.
    pub fn kv_held(&self, positions: usize) -> u64 {
        cache::kv_bytes(&self.spec, positions, self.micro_batch, positions)
    }

    /// Returns the cost of [`Transformer::forward`] for `rows` tokens after `first`
    /// stored positions.
    ///
    /// # Panics
    /// If `first + rows` overflows.
    pub fn forward(&self, first: usize, rows: usize, want: Want) -> Pass {
        // A panic under the lock cannot leave the model half changed.
        let dry = self.dry.lock().unwrap_or_else(PoisonError::into_inner);
        let events = record(&dry, first, rows, want);
        // Every forward pass passes the checks that the first one did, when the budget
        // was made: its logits are zeros and its tokens are 0.
        Pass::of(&events.expect("a pass that computes nothing has no reason to fail"))
    }
}

/// Runs a forward pass over `rows` tokens after `first` stored positions and returns
/// the operations that it asked for.
fn record(dry: &Dry, first: usize, rows: usize, want: Want) -> Result<Vec<Event>, ModelError> {
    let mut cache = dry.cache(first + rows);
    cache.pretend(first);
    // Drops the record that an earlier forward pass left, if it was cut short.
    dry.backend().take();
    dry.forward(&mut cache, &vec![0; rows], want, &mut |_, _| {})?;
    Ok(dry.backend().take())
}

/// Returns the tensors that an operation of the forward pass reads.
fn reads(dry: &Dry, event: &Event) -> Vec<Read> {
    if event.matrices.is_empty() {
        // Norm weights are F32 in memory.
        let bytes = event.counts.weight_bytes;
        let norms = Read {
            class: Class::Norms,
            dtype: DType::F32,
            traffic: Traffic {
                weights: bytes / size_of::<f32>() as u64,
                bytes,
            },
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
    let read = |t: &Tensor| {
        let row = Traffic {
            weights: t.cols as u64,
            bytes: event.counts.weight_bytes,
        };
        let whole = Traffic {
            weights: count(t),
            bytes: t.bytes,
        };
        let (class, traffic) = match (event.op == Op::Embed, layer) {
            (true, _) => (Class::EmbeddingRow, row),
            // A head tied to the embedding has the role of the embedding table.
            (false, None) => (Class::Head, whole),
            (false, Some(_)) => (Class::of(t.role), whole),
        };
        Read {
            class,
            dtype: t.dtype,
            traffic,
        }
    };
    event.matrices.iter().filter_map(named).map(read).collect()
}
