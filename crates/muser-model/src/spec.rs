//! Describes what a model computes, as data read from a GGUF file's metadata: the
//! [`Spec`].
//!
//! An architecture (in the module `arch`) turns metadata into a [`Spec`]. The forward
//! pass, the binding of weights, `synth`, `convert`, the budget and the check for
//! unknown tensors follow the spec and know no architecture. A spec can describe more
//! than the forward pass computes; [`Spec::check_computed`] refuses the rest by name.

use crate::{ModelError, arch};
use muser_gguf::Gguf;
use muser_ops::{Attention, KvLayout, Lane, RopeSpec};

/// Upper bounds of the sizes that metadata may give a model (layers, heads, widths,
/// positions, experts), far above any model. Products of two sizes fit in 64 bits. The
/// list of layers, some 250 bytes each, is the only allocation made before the file's
/// tensors confirm the sizes.
pub(crate) const MAX_LAYERS: u32 = 1 << 14;
pub(crate) const MAX_HEADS: u32 = 1 << 14;
pub(crate) const MAX_WIDTH: u32 = 1 << 24;
pub(crate) const MAX_POSITIONS: u32 = 1 << 30;
pub(crate) const MAX_EXPERTS: u32 = 1 << 12;

/// Describes a model: its sizes, and what each part of its forward pass computes.
#[derive(Clone, Debug, PartialEq)]
pub struct Spec {
    /// The model's name, the value of `general.name`; empty if the file has none.
    pub name: String,
    /// The model's architecture, the value of `general.architecture`, such as `llama`.
    pub arch: &'static str,
    /// Width of the residual stream.
    pub hidden: usize,
    /// Size of the vocabulary; token ids are below it.
    pub vocab: usize,
    /// Number of positions that the model was trained on.
    pub context: usize,
    /// How a token's embedding row becomes the first residual stream.
    pub embed: Embed,
    /// The model's layers, first to last; at least one.
    pub layers: Vec<LayerSpec>,
    /// The rotary position encodings (RoPE), which layers name by [`RopeId`].
    pub ropes: Vec<Rope>,
    /// How the last residual stream becomes logits.
    pub out: Out,
}

/// The first operations of the forward pass, `x = rms(scale · row of the table)`: how a
/// row of the embedding table becomes the residual stream.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Embed {
    /// Factor of a token's embedding row; `None` is 1.
    pub scale: Option<f32>,
    /// Epsilon of the RMS norm, without weights, of the embedding row; `None` if there
    /// is no such norm.
    pub norm: Option<f32>,
}

/// The last operations of the forward pass: how the residual stream becomes logits.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Out {
    /// The RMS norm before the head (the output projection to logits).
    pub norm: Norm,
    /// Whether the head (the output projection to logits) shares the embedding table's
    /// weights.
    pub tied: bool,
    /// Whether the head (the output projection to logits) has a bias (`output.bias`).
    pub bias: bool,
    /// Factor of the logits, applied before their soft cap.
    pub scale: f32,
    /// The soft cap of the scaled logits x, `cap · tanh(x / cap)`; `None` if there is
    /// none.
    pub cap: Option<f32>,
}

/// Describes one layer of a model: its attention, feed-forward network and norms.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LayerSpec {
    /// What the layer's attention computes.
    pub attn: Attn,
    /// What the layer's feed-forward network computes.
    pub ffn: Ffn,
    /// The layer's norms around attention and feed-forward network.
    pub norms: Norms,
}

/// An RMS norm with weights w, `x / sqrt(mean(x²) + eps) · w`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Norm {
    /// The name of the norm's tensor, without layer and `.weight`. The name depends on
    /// the architecture: the norm before the FFN is `ffn_norm` in most and
    /// `post_attention_norm` in gpt-oss.
    pub tensor: &'static str,
    /// The epsilon of the RMS norm, added to the mean square.
    pub eps: f32,
}

/// The norms of a layer: of the input of attention and FFN, and of their outputs
/// before these are added to the residual stream.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Norms {
    /// The norm of the input of a layer's attention.
    pub attn: Norm,
    /// The norm of the output of a layer's attention; `None` if there is none.
    pub post_attn: Option<Norm>,
    /// The norm of the input of a layer's FFN.
    pub ffn: Norm,
    /// The norm of the output of a layer's FFN; `None` if there is none.
    pub post_ffn: Option<Norm>,
}

/// The index of a rotary position encoding in [`Spec::ropes`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RopeId(pub usize);

/// Describes the attention of one layer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Attn {
    /// Number of query heads of a layer's attention, a multiple of `kv_heads`.
    pub heads: usize,
    /// Number of K/V heads of a layer's attention.
    pub kv_heads: usize,
    /// Number of values in a head of Q, K and V; even.
    pub head_dim: usize,
    /// Factor of the attention scores Q · K.
    pub scale: f32,
    /// The attention window: number of positions that a query attends to, its own
    /// included; `None` is all.
    pub window: Option<usize>,
    /// The soft cap of the scaled attention scores s, before the mask,
    /// `cap · tanh(s / cap)`; `None` if there is none.
    pub cap: Option<f32>,
    /// Whether each attention head has a sink: a learned logit (`attn_sinks`) that
    /// takes part in the softmax and has no value.
    pub sinks: bool,
    /// The rotary position encoding of Q and K; `None` encodes no position.
    pub rope: Option<RopeId>,
    /// The RMS norms of each head of Q and K, before the rotary encoding; `None` if
    /// there are none.
    pub qk_norm: Option<QkNorm>,
    /// Which projections of attention have a bias.
    pub bias: AttnBias,
    /// Whether the projections to Q, K and V are one matrix, `attn_qkv`.
    pub fused: bool,
    /// Whether the output of attention is multiplied by the sigmoid of another
    /// projection of the input, `attn_gate`.
    pub gate: bool,
}

/// The QK norms: RMS norms of each head of Q and of K.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct QkNorm {
    /// The epsilon of the QK norms.
    pub eps: f32,
    /// Whether all weights of a QK norm must be equal. Muse Glimmer folds its query
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
    /// A dense FFN, `Wdown glu(Wgate h, Wup h)`: three projections of the normed input
    /// h, with one activation function.
    Dense {
        /// Width of the FFN between its projections.
        width: usize,
        /// The function that joins the outputs of the FFN's gate and up projections.
        glu: Glu,
        /// Which projections of the dense FFN have a bias.
        bias: FfnBias,
        /// Whether the FFN's gate and up projections are one matrix, `ffn_up`, the
        /// gate's rows first.
        fused: bool,
    },
    /// A mixture of experts: a weighted sum over the experts that a router chooses for
    /// each token.
    Experts {
        /// Number of experts of the layer.
        count: usize,
        /// Number of experts chosen for a token.
        used: usize,
        /// Width of an expert between its projections.
        width: usize,
        /// The function that joins the outputs of an expert's gate and up projections.
        glu: Glu,
        /// Width of the shared expert, through which every token goes; `None` if there
        /// is none.
        shared: Option<usize>,
        /// How the router's outputs become the weights of the chosen experts.
        gating: Gating,
        /// Whether the router and the experts have biases.
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

/// The activation function of an FFN, which joins the outputs g of its gate and u of
/// its up projection, value by value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Glu {
    /// SwiGLU, `silu(g) · u`, of the gate's output g and the up projection's output u.
    Silu,
    /// GEGLU, `gelu(g) · u`, of the gate's output g and the up projection's output u,
    /// with the tanh form of GELU.
    Gelu,
    /// Clamped SwiGLU, `g' / (1 + exp(-alpha · g')) · (u' + 1)`, of the gate's output g
    /// and the up projection's output u, with `g' = min(g, limit)` and `u'` clamped to
    /// ±`limit`.
    Clamped {
        /// Factor of the gate's output in the exponent of the clamped SwiGLU.
        alpha: f32,
        /// Bound of the gate's and the up projection's outputs in the clamped SwiGLU.
        limit: f32,
    },
}

/// How the outputs of a mixture's router become the weights of the chosen experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gating {
    /// Computes the softmax of the router's outputs over all experts, keeps the largest
    /// weights and divides these by their sum.
    SoftmaxThenTop,
    /// Keeps the largest of the router's outputs, then computes the softmax over these
    /// alone.
    TopThenSoftmax,
}

/// Describes a rotary position encoding (RoPE).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rope {
    /// Which values of a head the rotary encoding rotates as a pair.
    pub pairs: Pairs,
    /// Number of values at the beginning of a head that the rotary encoding rotates.
    pub dims: usize,
    /// Base of the rotary encoding's angles: pair i of position p has the angle
    /// `p · base^(-2i / dims)`.
    pub base: f32,
    /// How the angles of the rotary encoding are scaled.
    pub scaling: Scaling,
    /// The tensors whose values divide the angles of the rotary encoding.
    pub factors: Factors,
}

/// Which values of a head a rotary encoding rotates as a pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pairs {
    /// Rotates the neighbouring values (2i, 2i + 1) of a head as a pair: llama.cpp's
    /// NORM.
    Neighbours,
    /// Rotates the values (i, i + d / 2) of a head as a pair, d being the number of
    /// rotated values: llama.cpp's NEOX.
    Halves,
}

/// How the angles of a rotary encoding are scaled.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Scaling {
    /// The angles of the rotary encoding stay as they are.
    Unscaled,
    /// Linear scaling: every angle of the rotary encoding is divided by `factor`.
    Linear {
        /// Divisor of the rotary encoding's angles, above 0.
        factor: f32,
        /// Factor by which Q and K are multiplied after the rotary position encoding
        /// (RoPE).
        attn_factor: f32,
    },
    /// YaRN scaling of a rotary encoding: high frequencies stay, low ones are divided
    /// by `factor`, with a ramp between; Q and K are multiplied by a magnitude.
    Yarn {
        /// Divisor of the rotary encoding's low frequencies.
        factor: f32,
        /// Number of positions that the model was trained on before its context was
        /// extended.
        original: usize,
        /// Factor of the magnitude that YaRN multiplies Q and K by.
        attn_factor: f32,
    },
    /// LongRoPE scaling of a rotary encoding: one of two lists of factors, chosen by
    /// the size of the context, divides the angles; Q and K are multiplied by a
    /// magnitude.
    Long {
        /// Divisor of every angle of the rotary encoding, beside LongRoPE's list of
        /// factors.
        factor: f32,
        /// Number of positions above which a context uses LongRoPE's long list of
        /// factors instead of the short one.
        original: usize,
        /// Factor by which Q and K are multiplied after the rotary position encoding
        /// (RoPE).
        attn_factor: f32,
    },
}

/// The tensors whose values divide the angles of a rotary encoding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Factors {
    /// No tensor divides the angles of the rotary encoding.
    Absent,
    /// One tensor, `rope_freqs.weight`, divides the angles of the rotary encoding.
    One,
    /// Two tensors for long and short contexts, `rope_factors_long.weight` and
    /// `rope_factors_short.weight`, divide the angles of the rotary encoding.
    LongAndShort,
}

impl Norm {
    /// Describes the RMS norm whose weights are in this tensor, with this epsilon.
    pub(crate) fn new(tensor: &'static str, eps: f32) -> Self {
        Self { tensor, eps }
    }
}

impl Attn {
    /// Makes the description of plain attention: over all positions, with scores
    /// divided by the square root of the head's width, without window, cap, sinks,
    /// rotary encoding, norms, biases and gate.
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

    /// Returns the width of Q, of the gate and of attention's output in this layer: all
    /// query heads together.
    pub fn width(&self) -> usize {
        self.heads * self.head_dim
    }

    /// Returns the width of K and of V in this layer: all K/V heads together.
    pub fn kv_width(&self) -> usize {
        self.kv_heads * self.head_dim
    }
}

impl Ffn {
    /// Makes the description of a dense FFN without biases, with gate and up
    /// projections apart.
    pub(crate) fn dense(width: usize, glu: Glu) -> Self {
        Self::Dense {
            width,
            glu,
            bias: FfnBias::default(),
            fused: false,
        }
    }

    /// Returns the width of the FFN between its projections, that of one expert where
    /// there are several.
    pub fn width(&self) -> usize {
        match *self {
            Self::Dense { width, .. } | Self::Experts { width, .. } => width,
        }
    }
}

impl Spec {
    /// Reads and checks the metadata of a model file, with the defaults of the strict
    /// lane (muser's own arithmetic) for keys that are absent.
    ///
    /// # Errors
    /// An unknown architecture; a key that is missing, of the wrong type, out of
    /// range or in conflict with another; a key that the architecture neither reads
    /// nor lists as harmless.
    pub fn from_gguf(gguf: &Gguf) -> Result<Self, ModelError> {
        Self::in_lane(gguf, Lane::Strict)
    }

    /// Reads and checks the metadata of a model file like [`Spec::from_gguf`], with the
    /// defaults of a lane (strict or pinned). The pinned lane has llama.cpp's.
    ///
    /// # Errors
    /// Those of [`Spec::from_gguf`]; an architecture that the pinned lane does not
    /// cover.
    pub fn in_lane(gguf: &Gguf, lane: Lane) -> Result<Self, ModelError> {
        arch::read(gguf.metadata(), &|name| gguf.tensor(name).is_some(), lane)
    }

    /// Returns the width of Q (all query heads together), the largest of all layers.
    /// The forward pass computes layers of one width only ([`Spec::check_computed`]).
    pub fn attention_width(&self) -> usize {
        self.widest(|l| l.attn.width())
    }

    /// Returns the width of K (all K/V heads together), the largest of all layers.
    pub fn kv_width(&self) -> usize {
        self.widest(|l| l.attn.kv_width())
    }

    /// Returns the width of the FFN between its projections, the largest of all layers.
    pub fn ffn_width(&self) -> usize {
        self.widest(|l| l.ffn.width())
    }

    fn widest(&self, width: impl Fn(&LayerSpec) -> usize) -> usize {
        self.layers.iter().map(width).max().unwrap_or(0)
    }

    /// Returns the attention window of a layer in positions; `None` if it attends to
    /// all.
    pub fn layer_window(&self, layer: usize) -> Option<usize> {
        self.layers.get(layer).and_then(|l| l.attn.window)
    }

    /// Returns the largest attention window of the model's layers in positions; `None`
    /// if no layer has one.
    pub fn window(&self) -> Option<usize> {
        self.layers.iter().filter_map(|l| l.attn.window).max()
    }

    /// Returns the layout of a layer's KV cache, for a sequence of `context` positions
    /// that is stored in micro-batches of at most `max_batch` rows.
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
