//! What a model computes, as data: [`Spec`], read from a file's metadata.
//!
//! An architecture is a way to write a [`Spec`] (the module `arch`); the forward
//! pass, the binding of weights, `synth`, `convert`, the budget and the check
//! for tensors that nothing reads follow the spec and know no architecture.
//! Each knob stands here, also those that the pass does not compute yet: these
//! are refused by name ([`Spec::check_computed`]), never passed over.

use crate::{ModelError, arch};
use muser_gguf::Gguf;
use muser_ops::{Attention, KvLayout, Lane, RopeSpec};

/// Bounds that no size may exceed, far above any model: products of two stay
/// within 64 bits, and the layers (some 250 bytes each) are the only
/// allocation made before tensors confirm the sizes.
pub(crate) const MAX_LAYERS: u32 = 1 << 14;
pub(crate) const MAX_HEADS: u32 = 1 << 14;
pub(crate) const MAX_WIDTH: u32 = 1 << 24;
pub(crate) const MAX_POSITIONS: u32 = 1 << 30;
pub(crate) const MAX_EXPERTS: u32 = 1 << 12;

/// A model: its sizes, and what each part of its forward pass does.
#[derive(Clone, Debug, PartialEq)]
pub struct Spec {
    /// `general.name`, empty if the file has none.
    pub name: String,
    /// The architecture, as `general.architecture` has it.
    pub arch: &'static str,
    /// Values of the residual stream.
    pub hidden: usize,
    /// Token ids.
    pub vocab: usize,
    /// Positions that the model was trained on.
    pub context: usize,
    /// From a token to the residual stream.
    pub embed: Embed,
    /// The layers, first to last; at least one.
    pub layers: Vec<LayerSpec>,
    /// The rotary encodings that layers name by [`RopeId`].
    pub ropes: Vec<Rope>,
    /// From the residual stream to logits.
    pub out: Out,
}

/// The beginning of the pass.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Embed {
    /// Factor of the embedding row.
    pub scale: Option<f32>,
    /// Epsilon of an RMS norm without weights over it.
    pub norm: Option<f32>,
}

/// The end of the pass.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Out {
    /// The last norm.
    pub norm: Norm,
    /// Whether the head is the embedding table.
    pub tied: bool,
    /// Whether the head has a bias (`output.bias`).
    pub bias: bool,
    /// Factor of the logits, before the cap.
    pub scale: f32,
    /// `cap · tanh(x / cap)` over the scaled logits.
    pub cap: Option<f32>,
}

/// One layer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LayerSpec {
    /// Its attention.
    pub attn: Attn,
    /// Its feed-forward network.
    pub ffn: Ffn,
    /// Its norms over the residual stream.
    pub norms: Norms,
}

/// A weighted RMS norm.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Norm {
    /// The tensor's name without layer and `.weight`. Architectures share the
    /// operation and not the name: the norm before the FFN is `ffn_norm` in
    /// most and `post_attention_norm` in gpt-oss.
    pub tensor: &'static str,
    /// Its epsilon.
    pub eps: f32,
}

/// The norms of a layer: of each half's input, and of its output before it is
/// added to the residual stream.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Norms {
    /// Before attention.
    pub attn: Norm,
    /// After attention.
    pub post_attn: Option<Norm>,
    /// Before the FFN.
    pub ffn: Norm,
    /// After the FFN.
    pub post_ffn: Option<Norm>,
}

/// A rotary encoding by its index in [`Spec::ropes`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RopeId(pub usize);

/// Attention of one layer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Attn {
    /// Query heads, a multiple of `kv_heads`.
    pub heads: usize,
    /// KV heads.
    pub kv_heads: usize,
    /// Values in a head of Q, K and V; even.
    pub head_dim: usize,
    /// Factor of the scores.
    pub scale: f32,
    /// Positions that a query sees, its own included; `None` sees all.
    pub window: Option<usize>,
    /// `cap · tanh(s / cap)` over the scaled scores, before the mask.
    pub cap: Option<f32>,
    /// Whether a learned logit a head (`attn_sinks`) joins the softmax.
    pub sinks: bool,
    /// The encoding of Q and K; `None` leaves positions unencoded.
    pub rope: Option<RopeId>,
    /// Norm of each head of Q and K, before the encoding.
    pub qk_norm: Option<QkNorm>,
    /// Which projections have a bias.
    pub bias: AttnBias,
    /// Whether Q, K and V are one matrix, `attn_qkv`.
    pub fused: bool,
    /// Whether attention's output is multiplied by the sigmoid of a projection
    /// of its input, `attn_gate`.
    pub gate: bool,
}

/// Norms of each head of Q and K.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct QkNorm {
    /// Their epsilon.
    pub eps: f32,
    /// Whether the weights must be one constant. A model that folds its query
    /// scale into them learns nothing there, and one whose weights vary is
    /// another variant, whose further differences nobody has checked.
    pub constant: bool,
}

/// Biases of attention's projections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names are those of the projections")]
pub struct AttnBias {
    pub q: bool,
    pub k: bool,
    pub v: bool,
    pub output: bool,
}

/// A feed-forward network.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Ffn {
    /// `Wdown glu(Wgate h, Wup h)`.
    Dense {
        /// Values between the two projections.
        width: usize,
        /// What joins gate and up.
        glu: Glu,
        /// Which projections have a bias.
        bias: FfnBias,
        /// Whether gate and up are one matrix, `ffn_up`, the gate's rows first.
        fused: bool,
    },
    /// A sum over the experts that a router chooses for each token.
    Experts {
        /// Experts in all.
        count: usize,
        /// Experts chosen for a token.
        used: usize,
        /// Values between an expert's two projections.
        width: usize,
        /// What joins gate and up.
        glu: Glu,
        /// Width of an expert that every token takes.
        shared: Option<usize>,
        /// How the router's values become weights.
        gating: Gating,
        /// Whether router and experts have biases.
        bias: bool,
    },
}

/// Biases of a dense FFN's projections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names are those of the projections")]
pub struct FfnBias {
    pub gate: bool,
    pub up: bool,
    pub down: bool,
}

/// What joins gate and up, value by value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Glu {
    /// `silu(g) · u`.
    Silu,
    /// `gelu(g) · u`, GELU in its tanh form.
    Gelu,
    /// `g' / (1 + exp(-alpha g')) · (u' + 1)`, `g'` at most `limit` and `u'`
    /// within ±`limit`.
    Clamped {
        /// Factor in the exponent.
        alpha: f32,
        /// Bound of both.
        limit: f32,
    },
}

/// How a router's values become the weights of the experts chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gating {
    /// Softmax over all, the largest chosen and divided by their sum.
    SoftmaxThenTop,
    /// The largest chosen, then softmax over these.
    TopThenSoftmax,
}

/// A rotary encoding.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rope {
    /// Which values of a head form a pair.
    pub pairs: Pairs,
    /// Values of a head that are rotated, from its beginning.
    pub dims: usize,
    /// Base of the angles.
    pub base: f32,
    /// What is done to the angles.
    pub scaling: Scaling,
    /// Tensors whose values divide the angles.
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

/// A change of a rotary encoding's angles.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Scaling {
    /// None.
    Unscaled,
    /// Every angle divided by `factor`.
    Linear {
        /// Above 0.
        factor: f32,
        /// The magnitude.
        attn_factor: f32,
    },
    /// YaRN: high frequencies as they are, low ones divided by `factor`, a
    /// ramp between, and a magnitude.
    Yarn {
        /// Of the low frequencies.
        factor: f32,
        /// Positions that the model was trained on before it was extended.
        original: usize,
        /// Factor of the magnitude.
        attn_factor: f32,
    },
    /// LongRoPE: factors by the context that is opened, and a magnitude.
    Long {
        /// Divides every angle, too.
        factor: f32,
        /// Contexts above this take the long factors.
        original: usize,
        /// The magnitude.
        attn_factor: f32,
    },
}

/// Tensors whose values divide a rotary encoding's angles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Factors {
    /// None.
    Absent,
    /// `rope_freqs.weight`.
    One,
    /// `rope_factors_long.weight` and `rope_factors_short.weight`.
    LongAndShort,
}

impl Norm {
    /// The norm of this tensor with this epsilon.
    pub(crate) fn new(tensor: &'static str, eps: f32) -> Self {
        Self { tensor, eps }
    }
}

impl Attn {
    /// Attention over all positions, its scores divided by the square root of
    /// the head's width, and nothing more.
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

    /// Width of Q, of the gate and of attention's output.
    pub fn width(&self) -> usize {
        self.heads * self.head_dim
    }

    /// Width of K and of V.
    pub fn kv_width(&self) -> usize {
        self.kv_heads * self.head_dim
    }
}

impl Ffn {
    /// A dense FFN without biases.
    pub(crate) fn dense(width: usize, glu: Glu) -> Self {
        Self::Dense {
            width,
            glu,
            bias: FfnBias::default(),
            fused: false,
        }
    }

    /// Values between the projections.
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
    /// An architecture that is not in the table; a key that is missing, of the
    /// wrong type, out of range, at odds with another, or unknown to the
    /// architecture and not known to be harmless.
    pub fn from_gguf(gguf: &Gguf) -> Result<Self, ModelError> {
        Self::in_lane(gguf, Lane::Strict)
    }

    /// [`Spec::from_gguf`] with the defaults of a lane: in the pinned lane
    /// those of llama.cpp, where they are not the architecture's.
    ///
    /// # Errors
    /// As [`Spec::from_gguf`]; an architecture that the pinned lane does not
    /// cover.
    pub fn in_lane(gguf: &Gguf, lane: Lane) -> Result<Self, ModelError> {
        arch::read(gguf.metadata(), &|name| gguf.tensor(name).is_some(), lane)
    }

    /// The widest Q; layers that differ in width are refused by
    /// [`Spec::check_computed`].
    pub fn attention_width(&self) -> usize {
        self.widest(|l| l.attn.width())
    }

    /// The widest K.
    pub fn kv_width(&self) -> usize {
        self.widest(|l| l.attn.kv_width())
    }

    /// The widest FFN.
    pub fn ffn_width(&self) -> usize {
        self.widest(|l| l.ffn.width())
    }

    fn widest(&self, width: impl Fn(&LayerSpec) -> usize) -> usize {
        self.layers.iter().map(width).max().unwrap_or(0)
    }

    /// The window of a layer; `None` on one that sees all positions.
    pub fn layer_window(&self, layer: usize) -> Option<usize> {
        self.layers.get(layer).and_then(|l| l.attn.window)
    }

    /// The widest window; `None` if no layer has one.
    pub fn window(&self) -> Option<usize> {
        self.layers.iter().filter_map(|l| l.attn.window).max()
    }

    /// What a layer's cache holds for a sequence of `context` positions, stored
    /// in micro-batches of at most `max_batch`.
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
