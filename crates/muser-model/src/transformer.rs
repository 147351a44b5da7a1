//! A model whose weights are bound to a backend.

use crate::bind::{Binder, Index, Source, Tensor};
use crate::spec::{LayerSpec, Norm};
use crate::{Cache, ModelError, Role, Spec, Workspace};
use muser_gguf::Gguf;
use muser_ops::{Attention, Backend, Lane, RopeSpec, Sizes};
use std::sync::Arc;

/// The weights of one model, checked, on one backend.
///
/// Immutable: any number of sessions share it, each with its own [`Cache`].
pub struct Transformer<B: Backend> {
    pub(crate) config: Arc<Spec>,
    /// The backend's arithmetic.
    pub(crate) lane: Lane,
    /// How the backend wants calls cut.
    pub(crate) sizes: Sizes,
    pub(crate) backend: Arc<B>,
    pub(crate) embedding: B::Table,
    pub(crate) layers: Vec<Layer<B>>,
    pub(crate) output_norm: NormWeights<B>,
    pub(crate) head: B::Set,
    /// The rotary encodings that layers name.
    pub(crate) ropes: Vec<B::Rope>,
    tensors: Arc<Index>,
}

/// One layer's parts, in the order of their use. What an architecture leaves
/// out is `None`.
pub(crate) struct Layer<B: Backend> {
    pub(crate) attn_norm: NormWeights<B>,
    /// Q, the gate if there is one, K, V: what only query rows read comes first.
    pub(crate) attn_input: B::Set,
    /// Whether attention's output is gated.
    pub(crate) gate: bool,
    pub(crate) q_norm: Option<NormWeights<B>>,
    pub(crate) k_norm: Option<NormWeights<B>>,
    /// Which of the model's rotary encodings Q and K have.
    pub(crate) rope: Option<usize>,
    pub(crate) attention: Attention,
    pub(crate) output: B::Set,
    pub(crate) post_attn_norm: Option<NormWeights<B>>,
    pub(crate) ffn_norm: NormWeights<B>,
    /// Gate and up.
    pub(crate) ffn_input: B::Set,
    pub(crate) ffn_down: B::Set,
    pub(crate) post_ffn_norm: Option<NormWeights<B>>,
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
    fn set(&mut self, roles: &[Role]) -> Result<B::Set, ModelError> {
        let set = self.source.set(roles, self.layer)?;
        set.ok_or_else(|| self.lacks(roles[0]))
    }

    fn table(&mut self) -> Result<B::Table, ModelError> {
        let table = self.source.table()?;
        table.ok_or_else(|| self.lacks(Role::Embedding))
    }

    fn norm(&mut self, role: Role, eps: f32) -> Result<NormWeights<B>, ModelError> {
        let weights = self.source.vector(role, self.layer)?;
        let weights = weights.ok_or_else(|| self.lacks(role))?;
        Ok(NormWeights { weights, eps })
    }

    /// A norm that a model may leave out.
    fn norm_if(
        &mut self,
        role: Role,
        eps: Option<f32>,
    ) -> Result<Option<NormWeights<B>>, ModelError> {
        eps.map(|eps| self.norm(role, eps)).transpose()
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
        let eps = |norm: Option<Norm>| norm.map(|n| n.eps);
        let qk_eps = attn.qk_norm.map(|n| n.eps);
        let input: &[Role] = match attn.gate {
            true => &[Role::Q, Role::Gate, Role::K, Role::V],
            false => &[Role::Q, Role::K, Role::V],
        };
        Ok(Self {
            attn_norm: take.norm(Role::AttnNorm, norms.attn.eps)?,
            attn_input: take.set(input)?,
            gate: attn.gate,
            q_norm: take.norm_if(Role::QNorm, qk_eps)?,
            k_norm: take.norm_if(Role::KNorm, qk_eps)?,
            rope: attn.rope.map(|id| id.0),
            attention: attn.into(),
            output: take.set(&[Role::AttnOutput])?,
            post_attn_norm: take.norm_if(Role::PostAttnNorm, eps(norms.post_attn))?,
            ffn_norm: take.norm(Role::FfnNorm, norms.ffn.eps)?,
            ffn_input: take.set(&[Role::FfnGate, Role::FfnUp])?,
            ffn_down: take.set(&[Role::FfnDown])?,
            post_ffn_norm: take.norm_if(Role::PostFfnNorm, eps(norms.post_ffn))?,
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
        let embedding = take.table()?;
        let output_norm = take.norm(Role::OutputNorm, spec.out.norm.eps)?;
        let head = take.set(&[if spec.out.tied { Role::Embedding } else { Role::Head }])?;
        let mut layers = Vec::with_capacity(spec.layers.len());
        for (i, layer) in spec.layers.iter().enumerate() {
            take.layer = Some(i);
            layers.push(Layer::take(&mut take, layer)?);
        }
        let ropes = spec.ropes.iter().map(|rope| {
            backend.bind_rope(RopeSpec {
                base: rope.base,
                head_dim: rope.dims,
            })
        });
        let ropes = ropes.collect::<Result<_, _>>()?;
        Ok(Self {
            config: Arc::new(spec.clone()),
            lane: backend.info().lane,
            sizes: backend.sizes(),
            backend: Arc::clone(backend),
            embedding,
            layers,
            output_norm,
            head,
            ropes,
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
        let max_batch = self.sizes.micro_batch;
        Cache::new(&*self.backend, &self.config, context.max(1), max_batch)
    }

    /// Buffers for passes over several sequences at once
    /// ([`Transformer::forward_many`]).
    pub fn workspace(&self) -> Workspace<B> {
        Workspace::new(&self.config)
    }

    /// Bytes of KV that a cache of `context` positions holds when full.
    pub fn cache_bytes(&self, context: usize) -> u64 {
        crate::cache::kv_bytes(&self.config, context, self.sizes.micro_batch, context)
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
