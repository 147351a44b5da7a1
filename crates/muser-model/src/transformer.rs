//! A model whose weights are bound to a backend.

use crate::bind::{Binder, Index, Source, Tensor};
use crate::spec::{LayerSpec, Norm};
use crate::{Cache, ModelError, Role, Spec, Workspace};
use muser_gguf::Gguf;
use muser_ops::{Attention, Backend, Lane, RopeFrequencies};
use std::sync::Arc;

/// The weights of one model, checked, on one backend.
///
/// Immutable: any number of sessions share it, each with its own [`Cache`].
pub struct Transformer<B: Backend> {
    pub(crate) config: Arc<Spec>,
    /// The backend's arithmetic.
    pub(crate) lane: Lane,
    pub(crate) backend: Arc<B>,
    pub(crate) embedding: B::Weight,
    pub(crate) layers: Vec<Layer<B>>,
    pub(crate) output_norm: NormWeights<B>,
    pub(crate) head: B::Weight,
    pub(crate) rope: RopeFrequencies,
    tensors: Arc<Index>,
}

/// One layer's weights, in the order of their use.
pub(crate) struct Layer<B: Backend> {
    pub(crate) attn_norm: NormWeights<B>,
    pub(crate) q: B::Weight,
    pub(crate) k: B::Weight,
    pub(crate) v: B::Weight,
    pub(crate) gate: B::Weight,
    pub(crate) q_norm: NormWeights<B>,
    pub(crate) k_norm: NormWeights<B>,
    pub(crate) attention: Attention,
    pub(crate) output: B::Weight,
    pub(crate) post_attn_norm: NormWeights<B>,
    pub(crate) ffn_norm: NormWeights<B>,
    pub(crate) ffn_gate: B::Weight,
    pub(crate) ffn_up: B::Weight,
    pub(crate) ffn_down: B::Weight,
    pub(crate) post_ffn_norm: NormWeights<B>,
}

/// An RMS norm, ready for use.
pub(crate) struct NormWeights<B: Backend> {
    pub(crate) weights: B::Vector,
    pub(crate) eps: f32,
}

/// The weights of one place in the model.
struct Take<'a, B: Backend> {
    spec: &'a Spec,
    source: &'a mut dyn Source<B>,
    layer: Option<usize>,
}

impl<B: Backend> Take<'_, B> {
    fn matrix(&mut self, role: Role) -> Result<B::Weight, ModelError> {
        let matrix = self.source.matrix(role, self.layer)?;
        matrix.ok_or_else(|| self.lacks(role))
    }

    fn norm(&mut self, role: Role, eps: f32) -> Result<NormWeights<B>, ModelError> {
        let weights = self.source.vector(role, self.layer)?;
        let weights = weights.ok_or_else(|| self.lacks(role))?;
        Ok(NormWeights { weights, eps })
    }

    /// The refusal of a model whose spec has not what the pass needs.
    fn lacks(&self, role: Role) -> ModelError {
        let name = role.tensor_name(self.layer.unwrap_or(0));
        self.spec.not_computed("a pass without this tensor", name)
    }
}

impl<B: Backend> Layer<B> {
    fn take(take: &mut Take<'_, B>, layer: &LayerSpec) -> Result<Self, ModelError> {
        let LayerSpec { attn, norms, .. } = layer;
        let post = |norm: Option<Norm>| norm.map_or(0.0, |n| n.eps);
        let qk_eps = attn.qk_norm.map_or(0.0, |n| n.eps);
        Ok(Self {
            attn_norm: take.norm(Role::AttnNorm, norms.attn.eps)?,
            q: take.matrix(Role::Q)?,
            k: take.matrix(Role::K)?,
            v: take.matrix(Role::V)?,
            gate: take.matrix(Role::Gate)?,
            q_norm: take.norm(Role::QNorm, qk_eps)?,
            k_norm: take.norm(Role::KNorm, qk_eps)?,
            attention: attn.into(),
            output: take.matrix(Role::AttnOutput)?,
            post_attn_norm: take.norm(Role::PostAttnNorm, post(norms.post_attn))?,
            ffn_norm: take.norm(Role::FfnNorm, norms.ffn.eps)?,
            ffn_gate: take.matrix(Role::FfnGate)?,
            ffn_up: take.matrix(Role::FfnUp)?,
            ffn_down: take.matrix(Role::FfnDown)?,
            post_ffn_norm: take.norm(Role::PostFfnNorm, post(norms.post_ffn))?,
        })
    }
}

impl<B: Backend> Transformer<B> {
    /// Binds the model of a file. Matrices are not copied where the backend
    /// reads host memory: the file's map stays alive as long as they do.
    ///
    /// # Errors
    /// [`Spec::in_lane`]'s and [`Spec::check_computed`]'s; a tensor that is
    /// missing, has another shape than the spec asks for or a format that
    /// nothing decodes; QK norms that are not one constant where they must be;
    /// norm weights that are not finite; a tensor that the forward pass does
    /// not use.
    pub fn load(gguf: &Gguf, backend: Arc<B>) -> Result<Self, ModelError> {
        let spec = Spec::in_lane(gguf, backend.info().lane)?;
        spec.check_computed()?;
        let tensors = Arc::new(Index::new(gguf, &spec)?);
        let mut source = Binder::new(gguf, &spec, &tensors, &*backend);
        Self::assemble(&spec, &tensors, &backend, &mut source)
    }

    /// The model of a spec whose weights come from `source`.
    pub(crate) fn assemble(
        spec: &Spec,
        tensors: &Arc<Index>,
        backend: &Arc<B>,
        source: &mut dyn Source<B>,
    ) -> Result<Self, ModelError> {
        let mut take = Take {
            spec,
            source,
            layer: None,
        };
        let embedding = take.matrix(Role::Embedding)?;
        let output_norm = take.norm(Role::OutputNorm, spec.out.norm.eps)?;
        let head = take.matrix(Role::Head)?;
        let mut layers = Vec::with_capacity(spec.layers.len());
        for (i, layer) in spec.layers.iter().enumerate() {
            take.layer = Some(i);
            layers.push(Layer::take(&mut take, layer)?);
        }
        let lane = backend.info().lane;
        let Some(rope) = spec.ropes.first() else {
            return Err(spec.not_computed("a pass without RoPE", spec.arch.to_owned()));
        };
        Ok(Self {
            config: Arc::new(spec.clone()),
            lane,
            backend: Arc::clone(backend),
            embedding,
            layers,
            output_norm,
            head,
            rope: RopeFrequencies::new(lane, rope.base, rope.dims),
            tensors: Arc::clone(tensors),
        })
    }

    /// What the model computes.
    pub fn config(&self) -> &Spec {
        &self.config
    }

    /// The arithmetic that it is computed in.
    pub fn lane(&self) -> Lane {
        self.lane
    }

    /// The backend.
    pub fn backend(&self) -> &Arc<B> {
        &self.backend
    }

    /// Every tensor, the model's own first, then layer by layer.
    pub fn tensors(&self) -> &[Tensor] {
        self.tensors.all()
    }

    pub(crate) fn index(&self) -> &Arc<Index> {
        &self.tensors
    }

    /// Bytes of all weights.
    pub fn weights_bytes(&self) -> u64 {
        self.tensors().iter().map(|t| t.bytes).sum()
    }

    /// Bytes of weights that one token reads: every matrix and norm, and one
    /// row of the embedding.
    pub fn bytes_per_token(&self) -> u64 {
        self.tensors().iter().map(Tensor::bytes_per_token).sum()
    }

    /// Parameters, norms and embedding included.
    pub fn parameters(&self) -> u64 {
        let count = |t: &Tensor| t.rows as u64 * t.cols as u64;
        self.tensors().iter().map(count).sum()
    }

    /// An empty cache for one sequence of up to `context` positions (at least
    /// one). The model's own [`Spec::context`] does not bound it: going
    /// beyond what it was trained on is the caller's decision.
    pub fn cache(&self, context: usize) -> Cache<B> {
        let max_batch = self.lane.micro_batch();
        Cache::new(&*self.backend, &self.config, context.max(1), max_batch)
    }

    /// Buffers for passes over several sequences at once
    /// ([`Transformer::forward_many`]).
    pub fn workspace(&self) -> Workspace<B> {
        Workspace::new(&*self.backend, &self.config, 1, 1)
    }

    /// Bytes of KV that a cache of `context` positions holds when full.
    pub fn cache_bytes(&self, context: usize) -> u64 {
        crate::cache::kv_bytes(&self.config, context, self.lane.micro_batch(), context)
    }
}

impl<B: Backend> std::fmt::Debug for Transformer<B> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Transformer")
            .field("config", &self.config)
            .field("backend", &self.backend.info())
            .finish_non_exhaustive()
    }
}
