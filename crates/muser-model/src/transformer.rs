//! Loads a model and binds its weights to a backend: [`Transformer`].

use crate::bind::{Binder, Index, Tensor};
use crate::spec::{LayerSpec, Norm, RopeId};
use crate::{Cache, ModelError, Role, Spec, Workspace};
use muser_gguf::Gguf;
use muser_ops::{Attention, Backend, Lane, OpError, Sizes};
use std::sync::Arc;

/// A loaded model: its weights, checked and bound to one backend, and what its forward
/// pass computes.
///
/// The model is immutable: any number of sequences share it, each with its own
/// [`Cache`].
pub struct Transformer<B: Backend> {
    pub(crate) spec: Arc<Spec>,
    /// The lane (strict or pinned arithmetic) that the backend computes in.
    pub(crate) lane: Lane,
    /// The most rows that the backend computes at once in the layers (a micro-batch)
    /// and in the output projection (a head slice).
    pub(crate) sizes: Sizes,
    pub(crate) backend: Arc<B>,
    pub(crate) embedding: B::Table,
    pub(crate) layers: Vec<Layer<B>>,
    pub(crate) output_norm: NormWeights<B>,
    pub(crate) head: B::Set,
    /// The rotary position encodings, bound to the backend; layers refer to them by
    /// [`RopeId`].
    pub(crate) ropes: Vec<B::Rope>,
    tensors: Index,
    /// The GGUF file of the model. The weights share its memory map.
    gguf: Gguf,
}

/// The weights of one layer, bound to a backend, in the order of their use; `None`
/// where the architecture has none.
pub(crate) struct Layer<B: Backend> {
    pub(crate) attn_norm: NormWeights<B>,
    /// The projections of attention's input as one set: Q, the gate if there is one, K
    /// and V. The matrices that only query rows need come first.
    pub(crate) attn_input: B::Set,
    /// Whether the output of attention is multiplied by the sigmoid of the gate.
    pub(crate) gate: bool,
    pub(crate) q_norm: Option<NormWeights<B>>,
    pub(crate) k_norm: Option<NormWeights<B>>,
    /// The rotary position encoding of Q and K; `None` encodes no position.
    pub(crate) rope: Option<RopeId>,
    pub(crate) attention: Attention,
    pub(crate) output: B::Set,
    pub(crate) post_attn_norm: Option<NormWeights<B>>,
    pub(crate) ffn_norm: NormWeights<B>,
    /// The gate and up projections of the FFN as one set.
    pub(crate) ffn_input: B::Set,
    pub(crate) ffn_down: B::Set,
    pub(crate) post_ffn_norm: Option<NormWeights<B>>,
}

/// An RMS norm with its weights bound to a backend.
pub(crate) struct NormWeights<B: Backend> {
    pub(crate) weights: B::Vector,
    pub(crate) eps: f32,
}

impl<B: Backend> NormWeights<B> {
    /// Computes the RMS norm of the first `rows` rows of `x` into `out`.
    pub(crate) fn apply(
        &self,
        b: &B,
        rows: usize,
        x: &B::Buffer,
        out: &mut B::Buffer,
    ) -> Result<(), OpError> {
        b.rms_norm(rows, x, Some(&self.weights), self.eps, out)
    }
}

impl<B: Backend> Layer<B> {
    fn bind(bind: &Binder<'_, B>, layer: &LayerSpec, i: usize) -> Result<Self, ModelError> {
        let LayerSpec { attn, norms, .. } = layer;
        let at = Some(i);
        let qk_norm = |role| attn.qk_norm.map(|norm| bind.norm(role, at, norm.eps));
        let post = |role, norm: Option<Norm>| norm.map(|norm| bind.norm(role, at, norm.eps));
        let input: &[Role] = match attn.gate {
            true => &[Role::Q, Role::Gate, Role::K, Role::V],
            false => &[Role::Q, Role::K, Role::V],
        };
        Ok(Self {
            attn_norm: bind.norm(Role::AttnNorm, at, norms.attn.eps)?,
            attn_input: bind.set(input, at)?,
            gate: attn.gate,
            q_norm: qk_norm(Role::QNorm).transpose()?,
            k_norm: qk_norm(Role::KNorm).transpose()?,
            rope: attn.rope,
            attention: attn.into(),
            output: bind.set(&[Role::AttnOutput], at)?,
            post_attn_norm: post(Role::PostAttnNorm, norms.post_attn).transpose()?,
            ffn_norm: bind.norm(Role::FfnNorm, at, norms.ffn.eps)?,
            ffn_input: bind.set(&[Role::FfnGate, Role::FfnUp], at)?,
            ffn_down: bind.set(&[Role::FfnDown], at)?,
            post_ffn_norm: post(Role::PostFfnNorm, norms.post_ffn).transpose()?,
        })
    }
}

impl<B: Backend> Transformer<B> {
    /// Loads the model of a GGUF file: checks it and binds its weights to the backend.
    /// Where the backend reads host memory, matrices are not copied and keep the file's
    /// map alive.
    ///
    /// # Errors
    /// Those of [`Spec::in_lane`], [`Spec::check_computed`] and the backend; a tensor
    /// that is missing, unknown, or of another shape or an unsuitable format; norm
    /// weights that are not finite, or that differ where they must be equal.
    pub fn load(gguf: &Gguf, backend: Arc<B>) -> Result<Self, ModelError> {
        let lane = backend.info().lane;
        let spec = Spec::in_lane(gguf, lane)?;
        spec.check_computed()?;
        let tensors = Index::new(gguf, &spec)?;
        let bind = Binder {
            gguf,
            spec: &spec,
            tensors: &tensors,
            backend: &*backend,
        };
        let head = if spec.out.tied {
            Role::Embedding
        } else {
            Role::Head
        };
        let layers = spec.layers.iter().enumerate();
        let layers = layers.map(|(i, layer)| Layer::bind(&bind, layer, i));
        let ropes = spec.ropes.iter().map(|rope| backend.bind_rope(rope.into()));
        Ok(Self {
            lane,
            sizes: backend.sizes(),
            embedding: bind.table()?,
            layers: layers.collect::<Result<_, ModelError>>()?,
            output_norm: bind.norm(Role::OutputNorm, None, spec.out.norm.eps)?,
            head: bind.set(&[head], None)?,
            ropes: ropes.collect::<Result<_, OpError>>()?,
            gguf: gguf.clone(),
            spec: Arc::new(spec),
            tensors,
            backend,
        })
    }

    /// Returns the spec of the model: its sizes and what its layers compute.
    pub fn spec(&self) -> &Spec {
        &self.spec
    }

    /// Returns the lane (strict or pinned arithmetic) that the model is computed in.
    pub fn lane(&self) -> Lane {
        self.lane
    }

    /// Returns the backend that the model's weights are bound to.
    pub fn backend(&self) -> &Arc<B> {
        &self.backend
    }

    /// Returns all tensors of the model: those of the whole model, then those of each
    /// layer.
    pub fn tensors(&self) -> &[Tensor] {
        self.tensors.all()
    }

    /// Returns the list of the model's tensors, by layer.
    pub(crate) fn index(&self) -> &Index {
        &self.tensors
    }

    /// Returns the GGUF file that the model was loaded from.
    pub(crate) fn gguf(&self) -> &Gguf {
        &self.gguf
    }

    /// Returns the bytes of all weights of the model.
    pub fn weights_bytes(&self) -> u64 {
        self.tensors().iter().map(|t| t.bytes).sum()
    }

    /// Returns the bytes of weights that one token reads: every matrix and norm, and
    /// one row of the embedding table. A table that is also the head (the output
    /// projection) is read whole.
    pub fn bytes_per_token(&self) -> u64 {
        let all = self.weights_bytes();
        let embedding = self.tensors.get(Role::Embedding, None);
        embedding.map_or(all, |t| {
            let row = t.bytes / t.rows as u64;
            if self.spec.out.tied {
                all + row
            } else {
                all - t.bytes + row
            }
        })
    }

    /// Returns the number of the model's parameters, norms and embedding included.
    pub fn parameters(&self) -> u64 {
        let count = |t: &Tensor| t.rows as u64 * t.cols as u64;
        self.tensors().iter().map(count).sum()
    }

    /// Makes an empty KV cache for one sequence of up to `context` positions, at least
    /// one. `context` may exceed [`Spec::context`], the positions that the model was
    /// trained on.
    pub fn cache(&self, context: usize) -> Cache<B> {
        let max_batch = self.sizes.micro_batch;
        Cache::new(&*self.backend, &self.spec, context.max(1), max_batch)
    }

    /// Makes a workspace (activation buffers) for forward passes over several sequences
    /// ([`Transformer::forward_many`]).
    pub fn workspace(&self) -> Workspace<B> {
        Workspace::new(&self.spec)
    }

    /// Returns the bytes of K and V that a full cache of `context` positions holds.
    pub fn cache_bytes(&self, context: usize) -> u64 {
        crate::cache::kv_bytes(&self.spec, context, self.sizes.micro_batch, context)
    }
}

impl<B: Backend> std::fmt::Debug for Transformer<B> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Transformer")
            .field("spec", &self.spec)
            .field("backend", &self.backend.info())
            .finish_non_exhaustive()
    }
}
