//! The architecture's knobs, read from a file's metadata and checked.

use crate::ModelError;
use muser_gguf::{Gguf, Metadata, Value};
use muser_ops::{Attention, KvLayout, Lane};

/// The architecture that this crate computes, as `general.architecture` has it.
pub const ARCH: &str = "muse-glimmer";

/// Epsilon of the norms after attention and FFN. A constant of the graph: no
/// file carries it.
pub const POST_NORM_EPS: f32 = 1e-8;

/// RoPE base where the file has none.
const ROPE_BASE: f32 = 500_000.0;

/// Every fourth layer is full where the file has no pattern.
const PERIOD: usize = 4;

/// Bounds that no size may exceed, far above any model: products of two stay
/// within 64 bits, and the pattern (one byte a layer) is the only allocation
/// made before tensors confirm the sizes.
pub(crate) const MAX_LAYERS: u32 = 1 << 14;
pub(crate) const MAX_HEADS: u32 = 1 << 14;
pub(crate) const MAX_WIDTH: u32 = 1 << 24;
pub(crate) const MAX_POSITIONS: u32 = 1 << 30;

/// The knobs of a Muse Glimmer model.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// `general.name`, empty if the file has none.
    pub name: String,
    /// Always [`ARCH`].
    pub arch: &'static str,
    /// Layers.
    pub layers: usize,
    /// Values of the residual stream.
    pub hidden: usize,
    /// Query heads, a multiple of `kv_heads`.
    pub heads: usize,
    /// KV heads.
    pub kv_heads: usize,
    /// Values in a head of Q, K and V; even.
    pub head_dim: usize,
    /// Width of the FFN.
    pub ffn: usize,
    /// Token ids.
    pub vocab: usize,
    /// Positions that the model was trained on.
    pub context: usize,
    /// Epsilon of every norm but the two after attention and FFN.
    pub rms_eps: f32,
    /// [`POST_NORM_EPS`].
    pub post_norm_eps: f32,
    /// Positions that a sliding layer sees, the query's own included.
    pub window: usize,
    /// Each layer: sliding with RoPE (`true`), or full without any position
    /// encoding.
    pub sliding: Vec<bool>,
    /// RoPE base of the sliding layers, the only ones that have RoPE.
    pub rope_base: f32,
    /// Factor of the logits, before the cap.
    pub logit_scale: f32,
    /// `cap · tanh(x / cap)` over the scaled logits.
    pub softcap: Option<f32>,
}

impl Config {
    /// Reads and checks the configuration of a file.
    ///
    /// # Errors
    /// Another architecture; a key missing, of the wrong type, out of range or
    /// at odds with another; a key that asks for arithmetic that the forward
    /// pass does not have (RoPE over a part of a head, RoPE scaling).
    pub fn from_gguf(gguf: &Gguf) -> Result<Self, ModelError> {
        Self::in_lane(gguf, Lane::Strict)
    }

    /// The same with the lane's defaults for keys that are not there: in the
    /// pinned lane llama.cpp's own, a cap of 30 and a RoPE base of 10,000, which
    /// are not the architecture's.
    ///
    /// # Errors
    /// As [`Config::from_gguf`].
    pub fn in_lane(gguf: &Gguf, lane: Lane) -> Result<Self, ModelError> {
        let (softcap, rope_base) = match lane.profile() {
            None => (None, ROPE_BASE),
            Some(_) => (Some(30.0), 10_000.0),
        };
        let keys = Keys(gguf.metadata());
        let arch = keys.0.string("general.architecture")?;
        if arch != ARCH {
            return Err(refused("general.architecture", ARCH, arch));
        }
        let layers = keys.size("block_count", MAX_LAYERS)?;
        let heads = keys.size("attention.head_count", MAX_HEADS)?;
        let kv_heads = keys.size("attention.head_count_kv", MAX_HEADS)?;
        if !heads.is_multiple_of(kv_heads) {
            let expected = format!("a divisor of attention.head_count {heads}");
            return Err(refused(&key("attention.head_count_kv"), expected, kv_heads));
        }
        let window = keys.size("attention.sliding_window", MAX_POSITIONS)?;
        Ok(Self {
            name: keys.0.opt_string("general.name")?.unwrap_or("").to_owned(),
            arch: ARCH,
            layers,
            hidden: keys.size("embedding_length", MAX_WIDTH)?,
            heads,
            kv_heads,
            head_dim: keys.head_dim()?,
            ffn: keys.size("feed_forward_length", MAX_WIDTH)?,
            vocab: keys.vocab()?,
            context: keys.size("context_length", MAX_POSITIONS)?,
            rms_eps: keys.positive("attention.layer_norm_rms_epsilon")?,
            post_norm_eps: POST_NORM_EPS,
            window,
            sliding: keys.pattern(layers)?,
            rope_base: keys.rope_base()?.unwrap_or(rope_base),
            logit_scale: keys.positive("logit_scale")?,
            softcap: keys.opt_positive("final_logit_softcapping")?.or(softcap),
        })
    }

    /// Width of Q, of the attention gate and of attention's output.
    pub fn attention_width(&self) -> usize {
        self.heads * self.head_dim
    }

    /// Width of K and of V.
    pub fn kv_width(&self) -> usize {
        self.kv_heads * self.head_dim
    }

    /// The window of a layer; `None` on a full one.
    pub fn layer_window(&self, layer: usize) -> Option<usize> {
        (self.sliding.get(layer) == Some(&true)).then_some(self.window)
    }

    /// The attention of a layer.
    pub fn attention(&self, layer: usize) -> Attention {
        Attention {
            heads: self.heads,
            kv_heads: self.kv_heads,
            head_dim: self.head_dim,
            window: self.layer_window(layer),
            scale: 1.0 / (self.head_dim as f32).sqrt(),
        }
    }

    /// What a layer's cache holds for a sequence of `context` positions, stored
    /// in micro-batches of at most `max_batch`.
    pub fn kv_layout(&self, layer: usize, context: usize, max_batch: usize) -> KvLayout {
        KvLayout {
            kv_heads: self.kv_heads,
            head_dim: self.head_dim,
            window: self.layer_window(layer),
            context,
            max_batch,
        }
    }
}

/// The key with the architecture's prefix.
pub(crate) fn key(suffix: &str) -> String {
    format!("{ARCH}.{suffix}")
}

fn refused(key: &str, expected: impl ToString, found: impl ToString) -> ModelError {
    ModelError::Config {
        key: key.to_owned(),
        expected: expected.to_string(),
        found: found.to_string(),
    }
}

struct Keys<'a>(&'a Metadata);

impl Keys<'_> {
    /// A size from 1 to `most`.
    fn size(&self, suffix: &str, most: u32) -> Result<usize, ModelError> {
        let key = key(suffix);
        let value = self.0.u32(&key)?;
        if value == 0 || value > most {
            return Err(refused(&key, format!("1 to {most}"), value));
        }
        Ok(value as usize)
    }

    fn positive(&self, suffix: &str) -> Result<f32, ModelError> {
        let value = self.0.f32(&key(suffix))?;
        self.check_positive(suffix, value)
    }

    fn opt_positive(&self, suffix: &str) -> Result<Option<f32>, ModelError> {
        let value = self.0.opt_f32(&key(suffix))?;
        value.map(|v| self.check_positive(suffix, v)).transpose()
    }

    fn check_positive(&self, suffix: &str, value: f32) -> Result<f32, ModelError> {
        if value.is_finite() && value > 0.0 {
            Ok(value)
        } else {
            Err(refused(&key(suffix), "a finite number above 0", value))
        }
    }

    /// The width of a head, which K, V and (where given) RoPE agree about.
    fn head_dim(&self) -> Result<usize, ModelError> {
        let head_dim = self.size("attention.key_length", MAX_HEADS)?;
        if !head_dim.is_multiple_of(2) {
            let key = key("attention.key_length");
            return Err(refused(&key, "an even number (RoPE pairs)", head_dim));
        }
        let value = self.size("attention.value_length", MAX_HEADS)?;
        let mut same = vec![("attention.value_length", value)];
        for suffix in [
            "rope.dimension_count",
            "rope.dimension_count_swa",
            "attention.key_length_swa",
            "attention.value_length_swa",
        ] {
            if self.0.get(&key(suffix)).is_some() {
                same.push((suffix, self.size(suffix, MAX_HEADS)?));
            }
        }
        match same.into_iter().find(|&(_, v)| v != head_dim) {
            None => Ok(head_dim),
            Some((suffix, found)) => {
                let expected = format!("attention.key_length {head_dim}");
                Err(refused(&key(suffix), expected, found))
            }
        }
    }

    /// `vocab_size` and the token list, either of which serves alone.
    fn vocab(&self) -> Result<usize, ModelError> {
        const TOKENS: &str = "tokenizer.ggml.tokens";
        let tokens = self.0.opt_strings(TOKENS)?.map(|t| t.len());
        let Some(tokens) = tokens else {
            return self.size("vocab_size", MAX_WIDTH);
        };
        if tokens == 0 || tokens > MAX_WIDTH as usize {
            let expected = format!("1 to {MAX_WIDTH} tokens");
            return Err(refused(TOKENS, expected, tokens));
        }
        if self.0.get(&key("vocab_size")).is_some() {
            let size = self.size("vocab_size", MAX_WIDTH)?;
            if size != tokens {
                let expected = format!("the length of {TOKENS}, {tokens}");
                return Err(refused(&key("vocab_size"), expected, size));
            }
        }
        Ok(tokens)
    }

    /// Both dialects in circulation: a period n, of which every n-th layer is
    /// full, or one boolean a layer. A file without either means every fourth,
    /// as llama.cpp reads it; "all full" would write plausible wrong text.
    fn pattern(&self, layers: usize) -> Result<Vec<bool>, ModelError> {
        let key = key("attention.sliding_window_pattern");
        let period = match self.0.get(&key) {
            Some(Value::Array(_)) => {
                let pattern = self.0.bools(&key)?;
                if pattern.len() != layers {
                    let expected = format!("one boolean for each of {layers} layers");
                    return Err(refused(&key, expected, pattern.len()));
                }
                return Ok(pattern);
            }
            Some(_) => self.0.u32(&key)? as usize,
            None => PERIOD,
        };
        if period == 0 {
            return Err(refused(&key, "a period of at least 1", 0));
        }
        Ok((0..layers).map(|i| i % period != period - 1).collect())
    }

    /// The base of the sliding layers. Scaled RoPE is refused: the forward
    /// pass has none.
    fn rope_base(&self) -> Result<Option<f32>, ModelError> {
        let scaling = key("rope.scaling.type");
        match self.0.opt_string(&scaling)? {
            None | Some("none" | "linear") => {}
            Some(other) => return Err(refused(&scaling, "none or linear", other)),
        }
        for suffix in ["rope.scaling.factor", "rope.scale_linear"] {
            // 0 stands for "no scaling" in circulating files.
            match self.0.opt_f32(&key(suffix))? {
                None | Some(0.0 | 1.0) => {}
                Some(other) => return Err(refused(&key(suffix), "1 (no scaling)", other)),
            }
        }
        let base = self.opt_positive("rope.freq_base")?;
        let sliding = self.opt_positive("rope.freq_base_swa")?;
        Ok(sliding.or(base))
    }
}
