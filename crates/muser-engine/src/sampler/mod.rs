//! From logits to one token, the same on every machine.
//!
//! ```text
//! allowed    l_i = -inf for tokens that a grammar rules out
//! bias       l_i += bias_i
//! penalties  for tokens i among the last n of the history, c_i times:
//!                l_i = l_i > 0 ? l_i / repeat : l_i · repeat
//!                l_i = l_i - (c_i · frequency + presence)
//! greedy     temperature 0: the largest l_i, the lowest i on ties. The end.
//! weights    w_i = exp((l_i - max l) / temperature)     f32
//! top-k      the first k by (l descending, i ascending)
//! top-p      in that order, up to the first at which Σ w >= p · Σ w of all kept
//! min-p      in that order, up to the last with w >= min_p   (the largest w is 1)
//! draw       u in [0, 1); in that order, the first at which Σ w > u · Σ w of all kept
//! ```
//!
//! This is version 2 of the sampling ([`VERSION`]). Every step is an IEEE
//! operation or [`muser_ops::math::exp`]. Every sum is the strict lane's
//! reduction ([`muser_ops::reduce`], in f32) of the weights in the order above,
//! the sum up to a rank that of the first so many; the sum over a vocabulary that
//! top-k did not cut is by token. Products with p and u, and the comparisons with
//! them, are in f64. `u` is the upper 53 bits of the next 64 of ChaCha8, keyed
//! with the seed. Greedy draws no random number, everything else exactly one a
//! token.

mod params;
mod ranked;
mod rng;
mod tree;

pub use params::SamplingParams;

use crate::{Error, Token};
use muser_ops::math;
pub(crate) use ranked::Ranked;
use rng::Uniform;
use tree::Running;

/// The version of the sampling's arithmetic. It rises whenever a token that is
/// sampled can be another; greedy tokens are the logits' own.
///
/// Version 1 took its sums in f64, one weight after the other. Version 2 takes
/// them in 256 lanes, so that a device can choose the token that the host would.
pub const VERSION: u32 = 2;

/// A sampler: settings and the state of its random numbers.
#[derive(Clone, Debug)]
pub struct Sampler {
    params: SamplingParams,
    uniform: Uniform,
    adjusted: Vec<f32>,
    window: Vec<Token>,
    ranked: Ranked,
}

impl Sampler {
    /// A sampler at its seed, for logits of `vocab` tokens.
    ///
    /// # Errors
    /// A parameter out of its range.
    pub fn new(params: SamplingParams, vocab: usize) -> Result<Self, Error> {
        params.validate(vocab)?;
        Ok(Self {
            uniform: Uniform::new(params.seed),
            params,
            adjusted: Vec::with_capacity(vocab),
            window: Vec::new(),
            ranked: Ranked::default(),
        })
    }

    /// The settings.
    pub fn params(&self) -> &SamplingParams {
        &self.params
    }

    /// Draws a token. `history` is all tokens so far, prompt and answer; the
    /// penalties look at its end.
    ///
    /// # Errors
    /// A logit that is not finite, or a bias that rules out every token.
    pub fn sample(&mut self, logits: &[f32], history: &[Token]) -> Result<Token, Error> {
        self.sample_among(logits, history, None)
    }

    /// [`Sampler::sample`] among the tokens allowed: bit i % 32 of word i / 32.
    /// What the words do not reach is not.
    ///
    /// # Errors
    /// As [`Sampler::sample`]; no token allowed.
    pub fn sample_among(
        &mut self,
        logits: &[f32],
        history: &[Token],
        allowed: Option<&[u32]>,
    ) -> Result<Token, Error> {
        self.adjust(logits, history, allowed)?;
        let best = argmax(&self.adjusted).ok_or(Error::NothingToSample)?;
        if self.params.temperature == 0.0 {
            return Ok(best);
        }
        let max = self.adjusted[best as usize];
        Ok(self.draw(max))
    }

    /// Bias and penalties, into `adjusted`.
    fn adjust(
        &mut self,
        logits: &[f32],
        history: &[Token],
        allowed: Option<&[u32]>,
    ) -> Result<(), Error> {
        refuse(logits, |l| !l.is_finite())?;
        self.adjusted.clear();
        // Adding zero turns -0 into +0: the two must tie.
        self.adjusted.extend(logits.iter().map(|l| l + 0.0));
        if let Some(words) = allowed {
            for (i, l) in self.adjusted.iter_mut().enumerate() {
                if words.get(i / 32).is_none_or(|w| w >> (i % 32) & 1 == 0) {
                    *l = f32::NEG_INFINITY;
                }
            }
        }
        for &(token, bias) in &self.params.logit_bias {
            if let Some(l) = self.adjusted.get_mut(token as usize) {
                *l += bias;
            }
        }
        self.penalize(history);
        refuse(&self.adjusted, |l| l.is_nan() || l == f32::INFINITY)
    }

    fn penalize(&mut self, history: &[Token]) {
        let p = &self.params;
        if p.repeat_penalty == 1.0 && p.frequency_penalty == 0.0 && p.presence_penalty == 0.0 {
            return;
        }
        let from = history.len().saturating_sub(p.penalty_window);
        self.window.clear();
        self.window.extend_from_slice(&history[from..]);
        self.window.sort_unstable();
        for same in self.window.chunk_by(|a, b| a == b) {
            let Some(l) = self.adjusted.get_mut(same[0] as usize) else {
                continue;
            };
            *l = if *l > 0.0 {
                *l / p.repeat_penalty
            } else {
                *l * p.repeat_penalty
            };
            *l -= same.len() as f32 * p.frequency_penalty + p.presence_penalty;
            *l += 0.0;
        }
    }

    fn draw(&mut self, max: f32) -> Token {
        let temperature = self.params.temperature;
        let weight = |l: f32| math::exp((l - max) / temperature);
        self.ranked.fill(&self.adjusted);
        let cut = self.params.top_k > 0 && self.params.top_k < self.ranked.len();
        let mass = if cut {
            let k = self.params.top_k;
            self.ranked.keep(k);
            let ranked = &mut self.ranked;
            let ranks = (0..k).map_while(|rank| ranked.get(rank));
            tree::sum(ranks.map(|(_, l)| weight(l)))
        } else {
            tree::sum(self.adjusted.iter().map(|&l| weight(l)))
        };
        let (kept, mass) = self.keep_likely(mass, weight);

        let target = self.uniform.next() * f64::from(mass);
        let (mut sum, mut chosen) = (Running::new(), 0);
        for rank in 0..kept {
            let Some((token, l)) = self.ranked.get(rank) else {
                break;
            };
            let w = weight(l);
            if w > 0.0 {
                chosen = token;
            }
            if f64::from(sum.push(w)) > target {
                break;
            }
        }
        // Rounding can leave the sum short of the target: the last token with
        // a weight it is, then.
        chosen
    }

    /// top-p and min-p: how many ranks stay, and the sum of their weights.
    fn keep_likely(&mut self, mass: f32, weight: impl Fn(f32) -> f32) -> (usize, f32) {
        let (top_p, min_p) = (self.params.top_p, self.params.min_p);
        if top_p == 1.0 && min_p == 0.0 {
            return (self.ranked.len(), mass);
        }
        let enough = if top_p == 1.0 {
            f64::INFINITY
        } else {
            f64::from(top_p) * f64::from(mass)
        };
        let (mut kept, mut all, mut sum) = (0, Running::new(), 0.0);
        while let Some((_, l)) = self.ranked.get(kept) {
            let w = weight(l);
            if kept > 0 && w < min_p {
                break;
            }
            sum = all.push(w);
            kept += 1;
            if f64::from(sum) >= enough {
                break;
            }
        }
        (kept, sum)
    }
}

/// An error for the first logit that is wrong.
///
/// All are looked at before the first is looked for: a loop without an end of its
/// own is one that the compiler makes vectors of, and there are 200,000 logits.
fn refuse(logits: &[f32], wrong: impl Fn(f32) -> bool) -> Result<(), Error> {
    if !logits.iter().fold(false, |any, &l| any | wrong(l)) {
        return Ok(());
    }
    let first = logits.iter().position(|&l| wrong(l));
    first.map_or(Ok(()), |token| {
        let found = logits[token];
        Err(Error::NonFiniteLogit { token, found })
    })
}

/// The largest, the lowest index on ties; `None` if all are minus infinity.
fn argmax(logits: &[f32]) -> Option<Token> {
    const LANES: usize = 16;
    let larger = |a: f32, b: f32| if b > a { b } else { a };
    let mut lanes = [f32::NEG_INFINITY; LANES];
    let (blocks, rest) = logits.as_chunks::<LANES>();
    for block in blocks {
        for (lane, &l) in lanes.iter_mut().zip(block) {
            *lane = larger(*lane, l);
        }
    }
    let all = lanes.iter().chain(rest).copied();
    let max = all.fold(f32::NEG_INFINITY, larger);
    if max == f32::NEG_INFINITY {
        return None;
    }
    // An index fits: a vocabulary is counted in 32 bits.
    (0..)
        .zip(logits)
        .find(|&(_, &l)| l == max)
        .map(|(token, _)| token)
}

#[cfg(test)]
mod tests;
