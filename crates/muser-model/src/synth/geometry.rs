//! Defines the sizes of synthetic models, and the named ones: [`Geometry`].

use crate::ModelError;
use crate::arch::{self, Arch};
use crate::spec::{MAX_HEADS, MAX_LAYERS, MAX_POSITIONS, MAX_WIDTH};

/// The sizes of a synthetic model (a file of random weights). Each can be changed.
#[derive(Clone, Debug, PartialEq)]
pub struct Geometry {
    /// The synthetic model's name, `general.name` in its file.
    pub name: String,
    /// The synthetic model's architecture, `general.architecture` in its file: one of
    /// [`ARCHITECTURES`](crate::ARCHITECTURES).
    pub arch: &'static str,
    /// Number of layers of the synthetic model.
    pub layers: usize,
    /// Width of the synthetic model's residual stream.
    pub hidden: usize,
    /// Number of query heads of a layer, a multiple of `kv_heads`.
    pub heads: usize,
    /// Number of K/V heads of a layer.
    pub kv_heads: usize,
    /// Width of an attention head in values; even.
    pub head_dim: usize,
    /// Width of the feed-forward network between its projections.
    pub ffn: usize,
    /// Size of the synthetic model's vocabulary.
    pub vocab: usize,
    /// Attention window of the sliding layers, in positions.
    pub window: usize,
    /// Number of positions that the synthetic model's metadata give as its context.
    pub context: usize,
    /// The period of full layers: every `period`-th layer attends to all positions, the
    /// others to a sliding window.
    pub period: usize,
    /// Whether the file lists a boolean for each layer, sliding or not, instead of the
    /// period of full layers.
    pub pattern_as_array: bool,
    /// Whether the head (the output projection to logits) is the embedding table.
    pub tied: bool,
    /// Factor of the synthetic model's logits.
    pub logit_scale: f32,
    /// Soft cap of the synthetic model's logits; `None` if there is none.
    pub softcap: Option<f32>,
}

impl Geometry {
    /// The names of the ready-made geometries (sizes of synthetic models) that
    /// [`Geometry::named`] takes.
    pub const NAMES: [&str; 5] = [
        "glimmer-30b",
        "glimmer-nano",
        "glimmer-tiny",
        "llama-8b",
        "llama-tiny",
    ];

    /// Returns the name of the smallest geometry (sizes of a synthetic model) of an
    /// architecture; `None` if there is no such architecture.
    pub fn smallest(arch: &str) -> Option<&'static str> {
        let of_arch = |name: &&str| Self::named(name).is_some_and(|g| g.arch == arch);
        Self::NAMES.into_iter().rfind(of_arch)
    }

    /// Returns the sizes of a synthetic model by name, `None` for an unknown name. The
    /// names are `glimmer-30b` (the sizes of the released Muse Glimmer), `glimmer-nano`
    /// (of the model in the `muser` binary), `glimmer-tiny` (the smallest with whole
    /// blocks of every weight format, and with both sliding and full layers),
    /// `llama-8b` (the sizes of Llama 3) and `llama-tiny`.
    pub fn named(name: &str) -> Option<Self> {
        let release = Self {
            name: format!("{name} synthetic"),
            arch: "muse-glimmer",
            layers: 52,
            hidden: 6656,
            heads: 32,
            kv_heads: 2,
            head_dim: 128,
            ffn: 19_968,
            vocab: 202_048,
            window: 2048,
            context: 131_072,
            period: 4,
            pattern_as_array: true,
            tied: false,
            logit_scale: 0.196_116,
            softcap: Some(20.0),
        };
        match name {
            "glimmer-30b" => Some(release),
            "glimmer-nano" => Some(Self {
                layers: 8,
                hidden: 512,
                heads: 4,
                kv_heads: 1,
                ffn: 1024,
                vocab: 4096,
                window: 128,
                context: 2048,
                logit_scale: std::f32::consts::FRAC_1_SQRT_2,
                ..release
            }),
            "glimmer-tiny" => Some(Self {
                layers: 2,
                hidden: 256,
                heads: 4,
                kv_heads: 1,
                head_dim: 64,
                ffn: 256,
                vocab: 256,
                window: 16,
                context: 1024,
                period: 2,
                logit_scale: 1.0,
                ..release
            }),
            "llama-8b" => Some(Self {
                arch: "llama",
                layers: 32,
                hidden: 4096,
                kv_heads: 8,
                ffn: 14_336,
                vocab: 128_256,
                context: 8192,
                logit_scale: 1.0,
                softcap: None,
                ..release
            }),
            "llama-tiny" => Some(Self {
                arch: "llama",
                layers: 2,
                hidden: 256,
                heads: 8,
                kv_heads: 2,
                head_dim: 32,
                ffn: 512,
                vocab: 256,
                context: 1024,
                logit_scale: 1.0,
                softcap: None,
                ..release
            }),
            _ => None,
        }
    }

    /// Returns for each layer of the synthetic model whether it has a sliding window.
    pub(crate) fn sliding(&self) -> Vec<bool> {
        let full = |i| i % self.period == self.period - 1;
        (0..self.layers).map(|i| !full(i)).collect()
    }

    /// Returns the architecture of the synthetic model, or the error that there is none
    /// of that name.
    pub(crate) fn arch(&self) -> Result<&'static Arch, ModelError> {
        let expected = || format!("one of {}", arch::NAMES.join(", "));
        arch::named(self.arch).ok_or_else(|| refused("arch", expected(), self.arch))
    }

    /// Returns the names of the geometry's fields that the synthetic model's
    /// architecture does not use.
    ///
    /// # Errors
    /// An unknown architecture.
    pub fn unused(&self) -> Result<&'static [&'static str], ModelError> {
        Ok(self.arch()?.unused)
    }

    /// Checks the sizes of a synthetic model against their ranges, so that no product
    /// of them overflows.
    pub(super) fn check(&self) -> Result<(), ModelError> {
        if self.tied && self.unused()?.contains(&"tied") {
            let expected = format!("a head of its own in {}", self.arch);
            return Err(refused("tied", expected, "the embedding"));
        }
        for (what, value, most) in [
            ("layers", self.layers, MAX_LAYERS),
            ("hidden", self.hidden, MAX_WIDTH),
            ("heads", self.heads, MAX_HEADS),
            ("kv_heads", self.kv_heads, MAX_HEADS),
            ("head_dim", self.head_dim, MAX_HEADS),
            ("ffn", self.ffn, MAX_WIDTH),
            ("vocab", self.vocab, MAX_WIDTH),
            ("window", self.window, MAX_POSITIONS),
            ("context", self.context, MAX_POSITIONS),
            ("period", self.period, MAX_POSITIONS),
        ] {
            if value == 0 || value > most as usize {
                return Err(refused(what, format!("1 to {most}"), value));
            }
        }
        if !self.heads.is_multiple_of(self.kv_heads) {
            let expected = format!("a divisor of heads {}", self.heads);
            return Err(refused("kv_heads", expected, self.kv_heads));
        }
        if !self.head_dim.is_multiple_of(2) {
            return Err(refused("head_dim", "an even number", self.head_dim));
        }
        for (what, value) in [
            ("logit_scale", self.logit_scale),
            ("softcap", self.softcap.unwrap_or(1.0)),
        ] {
            if !(value.is_finite() && value > 0.0) {
                return Err(refused(what, "a finite number above 0", value));
            }
        }
        Ok(())
    }
}

fn refused(what: &'static str, expected: impl Into<String>, found: impl ToString) -> ModelError {
    ModelError::Geometry {
        what,
        expected: expected.into(),
        found: found.to_string(),
    }
}
