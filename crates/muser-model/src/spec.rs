//! [`Spec`]: what a model computes, as data read from a file's metadata.
//!
//! An architecture (the module `arch`) turns metadata into a [`Spec`]. The forward
//! pass, the binding of weights, `synth`, `convert`, the budget and the check for
//! unknown tensors follow the spec and know no architecture. A spec can describe
//! more than the forward pass computes; [`Spec::check_computed`] refuses the rest
//! by name.

use crate::{ModelError, arch};
use muser_gguf::Gguf;
use muser_ops::{Attention, KvLayout, Lane, RopeSpec};

/// Upper bounds of the sizes, far above any model. Products of two sizes fit in 64
/// bits. The list of layers, some 250 bytes each, is the only allocation made
/// before the file's tensors confirm the sizes.
pub(crate) const MAX_LAYERS: u32 = 1 << 14;
pub(crate) const MAX_HEADS: u32 = 1 << 14;
pub(crate) const MAX_WIDTH: u32 = 1 << 24;
pub(crate) const MAX_POSITIONS: u32 = 1 << 30;
pub(crate) const MAX_EXPERTS: u32 = 1 << 12;

/// Describes a model: its sizes, and what each part of its forward pass computes.
#[derive(Clone, Debug, PartialEq)]
pub struct Spec {
    /// `general.name`, empty if the file has none.
    pub name: String,
    /// The architecture, the value of `general.architecture`.
    pub arch: &'static str,
    /// Width of the residual stream.
    pub hidden: usize,
    /// Size of the vocabulary; token ids are below it.
    pub vocab: usize,
    /// Number of positions that the model was trained on.
    pub context: usize,
    /// How a token becomes the first residual stream.
    pub embed: Embed,
    /// The layers, first to last; at least one.
    pub layers: Vec<LayerSpec>,
    /// The rotary encodings that layers name by [`RopeId`].
    pub ropes: Vec<Rope>,
    /// How the last residual stream becomes logits.
    pub out: Out,
}

/// The first operations of the pass: `x = rms(scale · row of the table)`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Embed {
    /// Factor of the embedding row; `None` is 1.
    pub scale: Option<f32>,
    /// Epsilon of an RMS norm without weights; `None` does not norm.
    pub norm: Option<f32>,
}

/// The last operations of the pass.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Out {
    /// The norm before the head.
    pub norm: Norm,
    /// Whether the head shares the embedding table.
    pub tied: bool,
    /// Whether the head has a bias (`output.bias`).
    pub bias: bool,
    /// Factor of the logits, applied before the cap.
    pub scale: f32,
    /// Caps the scaled logits: `cap · tanh(x / cap)`.
    pub cap: Option<f32>,
}

/// Describes one layer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LayerSpec {
    /// Its attention.
    pub attn: Attn,
    /// Its feed-forward network.
    pub ffn: Ffn,
    /// Its norms over the residual stream.
    pub norms: Norms,
}

/// An RMS norm with weights, `x / sqrt(mean(x²) + eps) · w`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Norm {
    /// The name of its tensor, without layer and `.weight`. The name depends on the
    /// architecture: the norm before the FFN is `ffn_norm` in most and
    /// `post_attention_norm` in gpt-oss.
    pub tensor: &'static str,
    /// Its epsilon.
    pub eps: f32,
}

/// The norms of a layer: of the input of attention and FFN, and of their outputs
/// before these are added to the residual stream.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Norms {
    /// Norm of the input of attention.
    pub attn: Norm,
    /// Norm of the output of attention.
    pub post_attn: Option<Norm>,
    /// Norm of the input of the FFN.
    pub ffn: Norm,
    /// Norm of the output of the FFN.
    pub post_ffn: Option<Norm>,
}

/// The index of a rotary encoding in [`Spec::ropes`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RopeId(pub usize);

/// Describes the attention of one layer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Attn {
    /// Number of query heads, a multiple of `kv_heads`.
    pub heads: usize,
    /// Number of KV heads.
    pub kv_heads: usize,
    /// Width of a head of Q, K and V; even.
    pub head_dim: usize,
    /// Factor of the scores Q · K.
    pub scale: f32,
    /// Number of positions that a query attends to, its own included; `None` is
    /// all.
    pub window: Option<usize>,
    /// Caps the scaled scores before the mask: `cap · tanh(s / cap)`.
    pub cap: Option<f32>,
    /// Whether each head has a learned logit (`attn_sinks`) that takes part in the
    /// softmax and has no value.
    pub sinks: bool,
    /// The rotary encoding of Q and K; `None` encodes no position.
    pub rope: Option<RopeId>,
    /// Norm of each head of Q and K, before the encoding.
    pub qk_norm: Option<QkNorm>,
    /// Which projections have a bias.
    pub bias: AttnBias,
    /// Whether Q, K and V are one matrix, `attn_qkv`.
    pub fused: bool,
    /// Whether the output is multiplied by the sigmoid of another projection of the
    /// input, `attn_gate`.
    pub gate: bool,
}

/// The norms of each head of Q and K.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct QkNorm {
    /// Their epsilon.
    pub eps: f32,
    /// Whether all weights of a norm must be equal. Muse Glimmer folds its query
    /// scale into them. A file whose weights vary is another variant of the model,
    /// which may differ in ways that are not checked.
    pub constant: bool,
}

/// Which projections of attention have a bias.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names are those of the projections")]
pub struct AttnBias {
    pub q: bool,
    pub k: bool,
    pub v: bool,
    pub output: bool,
}

/// Describes the feed-forward network of one layer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Ffn {
    /// `Wdown glu(Wgate h, Wup h)`.
    Dense {
        /// Width between the projections.
        width: usize,
        /// The function that joins gate and up.
        glu: Glu,
        /// Which projections have a bias.
        bias: FfnBias,
        /// Whether gate and up are one matrix, `ffn_up`, the gate's rows first.
        fused: bool,
    },
    /// A weighted sum over the experts that a router chooses for each token.
    Experts {
        /// Number of experts.
        count: usize,
        /// Number of experts chosen for a token.
        used: usize,
        /// Width between the projections of an expert.
        width: usize,
        /// The function that joins gate and up.
        glu: Glu,
        /// Width of a further expert that every token takes; `None` has none.
        shared: Option<usize>,
        /// How the outputs of the router become weights.
        gating: Gating,
        /// Whether router and experts have biases.
        bias: bool,
    },
}

/// Which projections of a dense FFN have a bias.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names are those of the projections")]
pub struct FfnBias {
    pub gate: bool,
    pub up: bool,
    pub down: bool,
}

/// The function that joins gate `g` and up `u`, value by value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Glu {
    /// `silu(g) · u`.
    Silu,
    /// `gelu(g) · u`, with the tanh form of GELU.
    Gelu,
    /// `g' / (1 + exp(-alpha · g')) · (u' + 1)` with `g' = min(g, limit)` and `u'`
    /// clamped to ±`limit`.
    Clamped {
        /// Factor in the exponent.
        alpha: f32,
        /// Bound of gate and up.
        limit: f32,
    },
}

/// How the outputs of a router become the weights of the chosen experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gating {
    /// Softmax over all experts; the largest are chosen and divided by their sum.
    SoftmaxThenTop,
    /// The largest are chosen, then softmax over these.
    TopThenSoftmax,
}

/// Describes a rotary encoding.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rope {
    /// Which values of a head form a pair.
    pub pairs: Pairs,
    /// Number of values at the beginning of a head that are rotated.
    pub dims: usize,
    /// Base of the angles: pair i of position p has the angle
    /// `p · base^(-2i / dims)`.
    pub base: f32,
    /// How the angles are scaled.
    pub scaling: Scaling,
    /// The tensors whose values divide the angles.
    pub factors: Factors,
}

/// Which values of a head form a pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pairs {
    /// (2i, 2i + 1): llama.cpp's NORM.
    Neighbours,
    /// (i, i + d / 2): llama.cpp's NEOX.
    Halves,
}

/// How the angles of a rotary encoding are scaled.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Scaling {
    /// The angles stay as they are.
    Unscaled,
    /// Every angle is divided by `factor`.
    Linear {
        /// Divisor of the angles, above 0.
        factor: f32,
        /// Factor of Q and K.
        attn_factor: f32,
    },
    /// YaRN: high frequencies stay, low ones are divided by `factor`, with a ramp
    /// between; Q and K are multiplied by a magnitude.
    Yarn {
        /// Divisor of the low frequencies.
        factor: f32,
        /// Number of positions that the model was trained on before it was extended.
        original: usize,
        /// Factor of the magnitude.
        attn_factor: f32,
    },
    /// LongRoPE: one of two lists of factors, chosen by the size of the context; Q and
    /// K are multiplied by a magnitude.
    Long {
        /// A further divisor of every angle.
        factor: f32,
        /// Contexts of more positions take the long factors.
        original: usize,
        /// Factor of Q and K.
        attn_factor: f32,
    },
}

/// The tensors whose values divide the angles of a rotary encoding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Factors {
    /// No tensor.
    Absent,
    /// `rope_freqs.weight`.
    One,
    /// `rope_factors_long.weight` and `rope_factors_short.weight`.
    LongAndShort,
}

impl Norm {
    /// Makes the norm of this tensor with this epsilon.
    pub(crate) fn new(tensor: &'static str, eps: f32) -> Self {
        Self { tensor, eps }
    }
}

impl Attn {
    /// Makes plain attention: over all positions, with scores divided by the square
    /// root of the head's width, and without any of the options.
    pub(crate) fn plain(heads: usize, kv_heads: usize, head_dim: usize) -> Self {
        Self {
            heads,
            kv_heads,
            head_dim,
            scale: 1.0 / (head_dim as f32).sqrt(),
            window: None,
            cap: None,
            sinks: false,
            rope: None,
            qk_norm: None,
            bias: AttnBias::default(),
            fused: false,
            gate: false,
        }
    }

    /// Returns the width of Q, of the gate and of the output.
    pub fn width(&self) -> usize {
        self.heads * self.head_dim
    }

    /// Returns the width of K and of V.
    pub fn kv_width(&self) -> usize {
        self.kv_heads * self.head_dim
    }
}

impl Ffn {
    /// Makes a dense FFN without biases.
    pub(crate) fn dense(width: usize, glu: Glu) -> Self {
        Self::Dense {
            width,
            glu,
            bias: FfnBias::default(),
            fused: false,
        }
    }

    /// Returns the width between the projections, of one expert where there are
    /// several.
    pub fn width(&self) -> usize {
        match *self {
            Self::Dense { width, .. } | Self::Experts { width, .. } => width,
        }
    }
}

impl Spec {
    /// Reads and checks the metadata of a file, with the strict lane's
    /// defaults for keys that are absent.
    ///
    /// # Errors
    /// An unknown architecture; a key that is missing, of the wrong type, out of
    /// range or in conflict with another; a key that the architecture neither reads
    /// nor lists as harmless.
    pub fn from_gguf(gguf: &Gguf) -> Result<Self, ModelError> {
        Self::in_lane(gguf, Lane::Strict)
    }

    /// Reads and checks the metadata of a file like [`Spec::from_gguf`], with the
    /// defaults of a lane. The pinned lane has llama.cpp's.
    ///
    /// # Errors
    /// Those of [`Spec::from_gguf`]; an architecture that the pinned lane does not
    /// cover.
    pub fn in_lane(gguf: &Gguf, lane: Lane) -> Result<Self, ModelError> {
        arch::read(gguf.metadata(), &|name| gguf.tensor(name).is_some(), lane)
    }

    /// Returns the width of Q, the largest of all layers. The forward pass computes
    /// layers of one width only ([`Spec::check_computed`]).
    pub fn attention_width(&self) -> usize {
        self.widest(|l| l.attn.width())
    }

    /// Returns the width of K, the largest of all layers.
    pub fn kv_width(&self) -> usize {
        self.widest(|l| l.attn.kv_width())
    }

    /// Returns the width of the FFN, the largest of all layers.
    pub fn ffn_width(&self) -> usize {
        self.widest(|l| l.ffn.width())
    }

    fn widest(&self, width: impl Fn(&LayerSpec) -> usize) -> usize {
        self.layers.iter().map(width).max().unwrap_or(0)
    }

    /// Returns the window of a layer; `None` if it attends to all positions.
    pub fn layer_window(&self, layer: usize) -> Option<usize> {
        self.layers.get(layer).and_then(|l| l.attn.window)
    }

    /// Returns the largest window; `None` if no layer has one.
    pub fn window(&self) -> Option<usize> {
        self.layers.iter().filter_map(|l| l.attn.window).max()
    }

    /// Returns the layout of a layer's KV cache, for a sequence of `context`
    /// positions that is stored in micro-batches of at most `max_batch` rows.
    ///
    /// # Panics
    /// If there is no such layer.
    pub fn kv_layout(&self, layer: usize, context: usize, max_batch: usize) -> KvLayout {
        let attn = &self.layers[layer].attn;
        KvLayout {
            kv_heads: attn.kv_heads,
            head_dim: attn.head_dim,
            window: attn.window,
            context,
            max_batch,
        }
    }
}

impl From<&Rope> for RopeSpec {
    fn from(rope: &Rope) -> Self {
        Self {
            base: rope.base,
            head_dim: rope.dims,
        }
    }
}

impl From<&Attn> for Attention {
    fn from(attn: &Attn) -> Self {
        Self {
            heads: attn.heads,
            kv_heads: attn.kv_heads,
            head_dim: attn.head_dim,
            window: attn.window,
            scale: attn.scale,
        }
    }
}
