//! The sampling options of `muser run` and `muser chat`, which decide how each token is
//! chosen.

use clap::Args;
use muser_engine::{Sampler, SamplingParams, Token};
use std::hash::{BuildHasher as _, RandomState};

/// Sampling options: how the next token is chosen from the logits.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Sampling")]
pub(crate) struct SamplingArgs {
    /// Temperature, which divides the logits; 0 always takes the likeliest token [0 to 100]
    #[arg(
        short,
        long,
        default_value_t = 0.8,
        value_name = "T",
        allow_negative_numbers = true
    )]
    pub(crate) temperature: f32,
    /// Keep the K likeliest tokens; 0 keeps all
    #[arg(long, default_value_t = 40, value_name = "K")]
    pub(crate) top_k: usize,
    /// Keep the likeliest tokens up to this share of the probability; 1 keeps all
    #[arg(
        long,
        default_value_t = 0.95,
        value_name = "P",
        allow_negative_numbers = true
    )]
    pub(crate) top_p: f32,
    /// Drop tokens less likely than this share of the likeliest token's probability; 0
    /// keeps all
    #[arg(
        long,
        default_value_t = 0.05,
        value_name = "P",
        allow_negative_numbers = true
    )]
    pub(crate) min_p: f32,
    /// Divide the logits of recent tokens by X (multiply negative ones); 1 does nothing
    #[arg(
        long,
        default_value_t = 1.1,
        value_name = "X",
        allow_negative_numbers = true
    )]
    pub(crate) repeat_penalty: f32,
    /// Subtract X from a token's logit for each time that it is among the recent tokens
    #[arg(
        long,
        default_value_t = 0.0,
        value_name = "X",
        allow_negative_numbers = true
    )]
    pub(crate) frequency_penalty: f32,
    /// Subtract X once from a token's logit if it is among the recent tokens
    #[arg(
        long,
        default_value_t = 0.0,
        value_name = "X",
        allow_negative_numbers = true
    )]
    pub(crate) presence_penalty: f32,
    /// Number of last tokens, the prompt's included, that the penalties count as recent
    #[arg(long, default_value_t = 64, value_name = "N")]
    pub(crate) penalty_window: usize,
    /// Add X to the logit of the token ID; -inf rules the token out. May be repeated
    #[arg(long, value_name = "ID=X", value_parser = bias, allow_hyphen_values = true)]
    pub(crate) logit_bias: Vec<(Token, f32)>,
    /// Seed of the random numbers; without it, a random one. The same seed,
    /// options and model give the same text on every machine
    #[arg(long, value_name = "N")]
    pub(crate) seed: Option<u64>,
    /// Never choose an end-of-generation token
    #[arg(long)]
    pub(crate) ignore_eos: bool,
}

impl SamplingArgs {
    /// Makes a sampler with these options for a vocabulary of `vocab` tokens. With
    /// `--ignore-eos` it never chooses one of `ends`, the end-of-generation tokens.
    pub(crate) fn sampler(
        &self,
        vocab: usize,
        ends: impl IntoIterator<Item = Token>,
    ) -> anyhow::Result<Sampler> {
        let mut logit_bias = self.logit_bias.clone();
        if self.ignore_eos {
            logit_bias.extend(ends.into_iter().map(|t| (t, f32::NEG_INFINITY)));
        }
        let params = SamplingParams {
            temperature: self.temperature,
            top_k: self.top_k,
            top_p: self.top_p,
            min_p: self.min_p,
            repeat_penalty: self.repeat_penalty,
            frequency_penalty: self.frequency_penalty,
            presence_penalty: self.presence_penalty,
            penalty_window: self.penalty_window,
            logit_bias,
            seed: self.seed.unwrap_or_else(somewhere),
        };
        // As an error of the engine, an option out of range has the exit code 2.
        Ok(Sampler::new(params, vocab).map_err(muser_engine::Error::from)?)
    }
}

/// Returns a random seed from the system's randomness, of 32 bits: short enough to be typed
/// again.
fn somewhere() -> u64 {
    RandomState::new().hash_one(0) >> 32
}

fn bias(text: &str) -> Result<(Token, f32), String> {
    let parsed = text
        .split_once('=')
        .and_then(|(id, x)| Some((id.parse().ok()?, x.parse().ok()?)));
    parsed.ok_or_else(|| "expected a token id and a number, such as 13=-2.5 or 13=-inf".to_owned())
}
