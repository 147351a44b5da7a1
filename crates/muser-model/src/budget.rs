//! [`Budget`]: the bytes of weights and KV that a token reads, its floating-point
//! operations, and the speed that a given memory bandwidth allows.
//!
//! A budget runs [`Transformer::forward`] over a backend that computes nothing and
//! counts the operations, so it needs no description of the model beside the
//! pass itself. It reads only the header and the norms of a file. It counts
//! compulsory traffic: each byte of a weight once for a pass, and each position
//! that a pass attends to once for a layer, whatever the processor's caches save.
//! Activations are not counted, because they stay in those caches.
//!
//! Operations are those of matrices and attention, two for a multiply-add. Norms,
//! rotations and other elementwise work are below a thousandth of them.

use crate::bind::{Index, Tensor};
use crate::{ModelError, Role, Spec, Transformer, Want, cache};
use muser_gguf::Gguf;
use muser_ops::null::Null;
use muser_ops::profiler::{Event, Op, Profiled};
use muser_ops::{Backend, Lane, Stage};
use muser_quant::DType;
use std::sync::{Arc, Mutex, PoisonError};

/// A group of tensors that are read together or serve one purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Class {
    /// The embedding, of which a token reads one row.
    EmbeddingRow,
    /// Q, K, V and gate: one projection set.
    AttentionSet,
    /// The projection of attention's output.
    AttentionOutput,
    /// The gate projection of the FFN.
    FfnGate,
    /// The up projection of the FFN, in one set with the gate.
    FfnUp,
    /// The down projection of the FFN.
    FfnDown,
    /// The projection to logits.
    Head,
    /// All vectors. The forward pass has no other vectors than norm weights yet.
    Norms,
}

impl Class {
    /// All classes in the order of a forward pass, then the norms.
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

    /// Returns the class of a tensor.
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

    /// Returns whether it is a class of projections in layers.
    pub fn is_layer_projection(self) -> bool {
        !matches!(self, Self::EmbeddingRow | Self::Head | Self::Norms)
    }

    /// Returns the name in records: `attention_set`, `ffn_down`, …
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

/// The weights that one token reads of some tensors.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Number of weights; of the embedding, those of one row.
    pub weights: u64,
    /// Their size in bytes.
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

/// One read of a tensor by an operation of the pass.
#[derive(Clone, Copy, Debug)]
struct Read {
    class: Class,
    dtype: DType,
    traffic: Traffic,
}

fn count(t: &Tensor) -> u64 {
    (t.rows as u64).saturating_mul(t.cols as u64)
}

/// The traffic and the operations of one forward pass.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pass {
    /// Bytes of weights read.
    pub weight_bytes: u64,
    /// Bytes of K and V read, including those that the pass stored.
    pub kv_read: u64,
    /// Bytes of K and V stored.
    pub kv_written: u64,
    /// Floating-point operations, two for a multiply-add.
    pub flops: u64,
}

impl Pass {
    /// Returns the bytes read: weights and KV.
    pub fn bytes(&self) -> u64 {
        self.weight_bytes.saturating_add(self.kv_read)
    }

    /// Returns the arithmetic intensity: operations for each byte read.
    pub fn intensity(&self) -> f64 {
        self.flops as f64 / self.bytes() as f64
    }

    /// Returns the passes per second if only reading takes time, at a `bandwidth` in
    /// bytes per second.
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

/// A model over a backend that computes nothing and records its operations.
type Dry = Transformer<Profiled<Null>>;

/// The cost of a model's forward pass in bytes and operations.
#[derive(Clone, Debug)]
pub struct Budget {
    /// Locked, because the record of the operations belongs to the backend: passes
    /// go one at a time.
    dry: Arc<Mutex<Dry>>,
    spec: Arc<Spec>,
    tensors: Index,
    /// The reads of one token outside of the layers.
    own: Arc<[Read]>,
    /// The reads of one token in each layer.
    layers: Arc<[Vec<Read>]>,
    micro_batch: usize,
}

impl Budget {
    /// Makes the budget of a file in the strict lane. Reads the header and the norms,
    /// but no matrix.
    ///
    /// # Errors
    /// Those of [`Transformer::load`].
    pub fn of(gguf: &Gguf) -> Result<Self, ModelError> {
        Self::in_lane(gguf, Lane::Strict)
    }

    /// Makes the budget of a loaded model, in its lane.
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

    /// Returns the description of the model.
    pub fn spec(&self) -> &Spec {
        &self.spec
    }

    /// Returns all tensors: those of the whole model, then those of each layer.
    pub fn tensors(&self) -> &[Tensor] {
        self.tensors.all()
    }

    /// Returns the number of parameters, norms and embedding included.
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

    /// Returns all weights that one token reads.
    pub fn token(&self) -> Traffic {
        Traffic::of(self.reads(None))
    }

    /// Returns the weights of a class that one token reads, in one layer or, for
    /// `None`, in the whole model.
    pub fn class(&self, class: Class, layer: Option<usize>) -> Traffic {
        Traffic::of(self.reads(layer).filter(|r| r.class == class))
    }

    /// Returns the weights of a layer that one token reads.
    pub fn layer(&self, layer: usize) -> Traffic {
        Traffic::of(self.reads(Some(layer)))
    }

    /// Returns the reads of one token in a layer, none if there is no such layer; for
    /// `None`, all reads.
    fn reads(&self, layer: Option<usize>) -> impl Iterator<Item = &Read> {
        let (own, layers) = match layer {
            None => (&self.own[..], &self.layers[..]),
            Some(i) => (&[][..], self.layers.get(i..=i).unwrap_or_default()),
        };
        own.iter().chain(layers.iter().flatten())
    }

    /// Returns the weights that one token reads in each format that occurs.
    pub fn by_dtype(&self) -> Vec<(DType, Traffic)> {
        let traffic = |d| Traffic::of(self.reads(None).filter(|r| r.dtype == d));
        let all = DType::ALL.into_iter().map(|dtype| (dtype, traffic(dtype)));
        all.filter(|(_, traffic)| traffic.weights > 0).collect()
    }

    /// Returns the formats that occur in a class, in one layer or, for `None`, in all.
    pub fn dtypes(&self, class: Class, layer: Option<usize>) -> Vec<DType> {
        let occurs = |dtype: &DType| {
            let mut reads = self.reads(layer);
            reads.any(|r| r.dtype == *dtype && r.class == class)
        };
        DType::ALL.into_iter().filter(occurs).collect()
    }

    /// Returns the bytes that a layer's tensors of a class would take in a format;
    /// `None` if a row is not a whole number of blocks.
    pub fn class_as(&self, class: Class, layer: usize, dtype: DType) -> Option<u64> {
        let part = self.tensors.part(Some(layer)).iter();
        let mut of_it = part.filter(|t| Class::of(t.role) == class);
        of_it.try_fold(0u64, |sum, t| {
            let row = dtype.row_bytes(t.cols)? as u64;
            sum.checked_add(row.checked_mul(t.rows as u64)?)
        })
    }

    /// Returns the bytes of K and V of one position in all layers, in f16.
    pub fn position_bytes(&self) -> u64 {
        self.forward(0, 1, Want::Nothing).kv_written
    }

    /// Returns the bytes of K and V that a token reads when `positions` are stored,
    /// its own included. A sliding layer reads at most its window.
    pub fn kv_slot(&self, positions: usize) -> u64 {
        match positions {
            0 => 0,
            _ => self.forward(positions - 1, 1, Want::Last).kv_read,
        }
    }

    /// Returns the bytes of the KV cache of one sequence with `positions` stored:
    /// whole chunks, and rings with space for a micro-batch.
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
        // Every pass passes the checks that the first one did, when the budget was
        // made: its logits are zeros and its tokens are 0.
        Pass::of(&events.expect("a pass that computes nothing has no reason to fail"))
    }
}

/// Runs a pass over `rows` tokens after `first` stored positions and returns its
/// operations.
fn record(dry: &Dry, first: usize, rows: usize, want: Want) -> Result<Vec<Event>, ModelError> {
    let mut cache = dry.cache(first + rows);
    cache.pretend(first);
    // Drops what an earlier pass left, if it was cut short.
    dry.backend().take();
    dry.forward(&mut cache, &vec![0; rows], want, &mut |_, _| {})?;
    Ok(dry.backend().take())
}

/// Returns the reads of an operation.
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
            // A tied head has the role of the table.
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
