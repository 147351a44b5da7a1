//! A model whose weights are bound to a backend.

use crate::bind::Binder;
use crate::{Cache, Config, ModelError, Role, Tensor, Workspace};
use muser_gguf::Gguf;
use muser_ops::{Attention, Backend, Lane, RopeSpec, Sizes};
use std::sync::Arc;

/// The weights of one model, checked, on one backend.
///
/// Immutable: any number of sessions share it, each with its own [`Cache`].
pub struct Transformer<B: Backend> {
    pub(crate) config: Arc<Config>,
    /// The backend's arithmetic.
    pub(crate) lane: Lane,
    /// How the backend wants calls cut.
    pub(crate) sizes: Sizes,
    pub(crate) backend: Arc<B>,
    pub(crate) embedding: B::Table,
    pub(crate) layers: Vec<Layer<B>>,
    pub(crate) output_norm: B::Vector,
    pub(crate) head: B::Set,
    /// The rotary encodings that layers name.
    pub(crate) ropes: Vec<B::Rope>,
    tensors: Vec<Tensor>,
}

/// One layer's parts, in the order of their use. What an architecture leaves
/// out is `None`.
pub(crate) struct Layer<B: Backend> {
    pub(crate) attn_norm: B::Vector,
    /// Q, the gate if there is one, K, V: what reads one row alone comes first.
    pub(crate) attn_input: B::Set,
    /// Whether attention's output is gated.
    pub(crate) gate: bool,
    pub(crate) q_norm: Option<B::Vector>,
    pub(crate) k_norm: Option<B::Vector>,
    /// Which of the model's rotary encodings Q and K have.
    pub(crate) rope: Option<usize>,
    pub(crate) attention: Attention,
    pub(crate) output: B::Set,
    pub(crate) post_attn_norm: Option<B::Vector>,
    pub(crate) ffn_norm: B::Vector,
    /// Gate and up.
    pub(crate) ffn_input: B::Set,
    pub(crate) ffn_down: B::Set,
    pub(crate) post_ffn_norm: Option<B::Vector>,
}

impl<B: Backend> Layer<B> {
    fn bind(bind: &mut Binder<'_, B>, config: &Config, i: usize) -> Result<Self, ModelError> {
        let at = Some(i);
        let attention = config.attention(i);
        Ok(Self {
            attn_norm: bind.norm(Role::AttnNorm, at)?,
            attn_input: bind.set(&[Role::Q, Role::Gate, Role::K, Role::V], at)?,
            gate: true,
            q_norm: Some(bind.norm(Role::QNorm, at)?),
            k_norm: Some(bind.norm(Role::KNorm, at)?),
            rope: attention.window.map(|_| 0),
            attention,
            output: bind.set(&[Role::AttnOutput], at)?,
            post_attn_norm: Some(bind.norm(Role::PostAttnNorm, at)?),
            ffn_norm: bind.norm(Role::FfnNorm, at)?,
            ffn_input: bind.set(&[Role::FfnGate, Role::FfnUp], at)?,
            ffn_down: bind.set(&[Role::FfnDown], at)?,
            post_ffn_norm: Some(bind.norm(Role::PostFfnNorm, at)?),
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
        let embedding = bind.table()?;
        let output_norm = bind.norm(Role::OutputNorm, None)?;
        let head = bind.set(&[Role::Head], None)?;
        // Not sized by `config.layers`: the first layer that is missing ends it.
        let mut layers = Vec::new();
        for i in 0..config.layers {
            layers.push(Layer::bind(&mut bind, &config, i)?);
        }
        let tensors = bind.finish()?;
        let rope = RopeSpec {
            base: config.rope_base,
            head_dim: config.head_dim,
        };
        let ropes = match layers.iter().any(|layer| layer.rope.is_some()) {
            true => vec![backend.bind_rope(rope)?],
            false => Vec::new(),
        };
        Ok(Self {
            config: Arc::new(config),
            lane,
            sizes: backend.sizes(),
            backend,
            embedding,
            layers,
            output_norm,
            head,
            ropes,
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
