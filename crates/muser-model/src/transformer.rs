//! A model whose weights are bound to a backend.

use crate::bind::Binder;
use crate::{Cache, Config, ModelError, Role, Tensor, Workspace};
use muser_gguf::Gguf;
use muser_ops::{Attention, Backend, Lane, RopeFrequencies};
use std::sync::Arc;

/// The weights of one model, checked, on one backend.
///
/// Immutable: any number of sessions share it, each with its own [`Cache`].
pub struct Transformer<B: Backend> {
    pub(crate) config: Arc<Config>,
    /// The backend's arithmetic.
    pub(crate) lane: Lane,
    pub(crate) backend: Arc<B>,
    pub(crate) embedding: B::Weight,
    pub(crate) layers: Vec<Layer<B>>,
    pub(crate) output_norm: B::Vector,
    pub(crate) head: B::Weight,
    pub(crate) rope: RopeFrequencies,
    tensors: Vec<Tensor>,
}

/// One layer's weights, in the order of their use.
pub(crate) struct Layer<B: Backend> {
    pub(crate) attn_norm: B::Vector,
    pub(crate) q: B::Weight,
    pub(crate) k: B::Weight,
    pub(crate) v: B::Weight,
    pub(crate) gate: B::Weight,
    pub(crate) q_norm: B::Vector,
    pub(crate) k_norm: B::Vector,
    pub(crate) attention: Attention,
    pub(crate) output: B::Weight,
    pub(crate) post_attn_norm: B::Vector,
    pub(crate) ffn_norm: B::Vector,
    pub(crate) ffn_gate: B::Weight,
    pub(crate) ffn_up: B::Weight,
    pub(crate) ffn_down: B::Weight,
    pub(crate) post_ffn_norm: B::Vector,
}

impl<B: Backend> Layer<B> {
    fn bind(bind: &mut Binder<'_, B>, config: &Config, i: usize) -> Result<Self, ModelError> {
        let at = Some(i);
        Ok(Self {
            attn_norm: bind.norm(Role::AttnNorm, at)?,
            q: bind.matrix(Role::Q, at)?,
            k: bind.matrix(Role::K, at)?,
            v: bind.matrix(Role::V, at)?,
            gate: bind.matrix(Role::Gate, at)?,
            q_norm: bind.norm(Role::QNorm, at)?,
            k_norm: bind.norm(Role::KNorm, at)?,
            attention: config.attention(i),
            output: bind.matrix(Role::AttnOutput, at)?,
            post_attn_norm: bind.norm(Role::PostAttnNorm, at)?,
            ffn_norm: bind.norm(Role::FfnNorm, at)?,
            ffn_gate: bind.matrix(Role::FfnGate, at)?,
            ffn_up: bind.matrix(Role::FfnUp, at)?,
            ffn_down: bind.matrix(Role::FfnDown, at)?,
            post_ffn_norm: bind.norm(Role::PostFfnNorm, at)?,
        })
    }
}

impl<B: Backend> Transformer<B> {
    /// Binds the model of a file. Matrices are not copied where the backend
    /// reads host memory: the file's map stays alive as long as they do.
    ///
    /// # Errors
    /// [`Config::from_gguf`]'s; a tensor that is missing, has another shape
    /// than the configuration asks for or a format that nothing decodes; QK
    /// norms that are not one constant; norm weights that are not finite; a
    /// tensor that the forward pass does not use. A head tied to the embedding
    /// (no `output.weight`) is a missing tensor: the architecture has none,
    /// and llama.cpp refuses it as well.
    pub fn load(gguf: &Gguf, backend: Arc<B>) -> Result<Self, ModelError> {
        let lane = backend.info().lane;
        let config = Config::in_lane(gguf, lane)?;
        let mut bind = Binder::new(gguf, &config, &*backend);
        let embedding = bind.matrix(Role::Embedding, None)?;
        let output_norm = bind.norm(Role::OutputNorm, None)?;
        let head = bind.matrix(Role::Head, None)?;
        // Not sized by `config.layers`: the first layer that is missing ends it.
        let mut layers = Vec::new();
        for i in 0..config.layers {
            layers.push(Layer::bind(&mut bind, &config, i)?);
        }
        let tensors = bind.finish()?;
        let rope = RopeFrequencies::new(lane, config.rope_base, config.head_dim);
        Ok(Self {
            config: Arc::new(config),
            lane,
            backend,
            embedding,
            layers,
            output_norm,
            head,
            rope,
            tensors,
        })
    }

    /// The configuration.
    pub fn config(&self) -> &Config {
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
        &self.tensors
    }

    /// Bytes of all weights.
    pub fn weights_bytes(&self) -> u64 {
        self.tensors.iter().map(|t| t.bytes).sum()
    }

    /// Bytes of weights that one token reads: every matrix and norm, and one
    /// row of the embedding.
    pub fn bytes_per_token(&self) -> u64 {
        self.tensors.iter().map(Tensor::bytes_per_token).sum()
    }

    /// Parameters, norms and embedding included.
    pub fn parameters(&self) -> u64 {
        let count = |t: &Tensor| t.rows as u64 * t.cols as u64;
        self.tensors.iter().map(count).sum()
    }

    /// An empty cache for one sequence of up to `context` positions (at least
    /// one). The model's own [`Config::context`] does not bound it: going
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
