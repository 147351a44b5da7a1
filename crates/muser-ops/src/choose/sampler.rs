//! [`Sampler`]: chooses tokens from logits on the host, by the steps that define the
//! choice (bias, penalties, top-k, …).

use super::rng::Uniform;
use super::tree::{self, Running};
use super::{ChoiceError, Ranked, SamplingParams};
use crate::math;

/// A sampler, which chooses tokens from logits: its settings, and the state of its
/// random numbers.
#[derive(Clone, Debug)]
pub struct Sampler {
    params: SamplingParams,
    uniform: Uniform,
    /// The logits of the current choice after the mask of allowed tokens, bias and
    /// penalties.
    pub(super) adjusted: Vec<f32>,
    window: Vec<u32>,
    ranked: Ranked,
}

impl Sampler {
    /// Makes a sampler of tokens for logits of a vocabulary of `vocab` tokens. Its
    /// random numbers start at the seed.
    ///
    /// # Errors
    /// A parameter out of its range.
    pub fn new(params: SamplingParams, vocab: usize) -> Result<Self, ChoiceError> {
        params.validate(vocab)?;
        Ok(Self {
            uniform: Uniform::new(params.seed),
            params,
            adjusted: Vec::with_capacity(vocab),
            window: Vec::new(),
            ranked: Ranked::default(),
        })
    }

    /// Returns the sampler's settings: temperature, top-k, penalties, …
    pub fn params(&self) -> &SamplingParams {
        &self.params
    }

    /// Chooses a token from logits. `history` is all tokens so far, prompt and answer;
    /// the penalties look at its end.
    ///
    /// # Errors
    /// A logit that is not finite, or a bias that rules out every token. The
    /// random numbers do not advance then.
    pub fn sample(&mut self, logits: &[f32], history: &[u32]) -> Result<u32, ChoiceError> {
        self.sample_among(logits, history, None)
    }

    /// Chooses one of the allowed tokens from logits, like [`Sampler::sample`]: bit i %
    /// 32 of word i / 32 of `allowed` allows token i; a token beyond the last word is
    /// not allowed.
    ///
    /// # Errors
    /// Those of [`Sampler::sample`]; no token is allowed.
    pub fn sample_among(
        &mut self,
        logits: &[f32],
        history: &[u32],
        allowed: Option<&[u32]>,
    ) -> Result<u32, ChoiceError> {
        let token = self.pick(logits, history, allowed)?;
        self.advance();
        Ok(token)
    }

    /// Returns the random number in [0, 1) that the sampler's next draw of a token uses.
    pub(super) fn uniform(&self) -> f64 {
        self.uniform.peek()
    }

    /// Draws the sampler's next random number if the last choice of a token used one,
    /// that is, if it was not greedy.
    pub(super) fn advance(&mut self) {
        if self.params.temperature != 0.0 {
            self.uniform.advance();
        }
    }

    /// Chooses a token like [`Sampler::sample_among`], but does not advance the random
    /// numbers.
    pub(super) fn pick(
        &mut self,
        logits: &[f32],
        history: &[u32],
        allowed: Option<&[u32]>,
    ) -> Result<u32, ChoiceError> {
        self.adjust(logits, history, allowed)?;
        let best = argmax(&self.adjusted).ok_or(ChoiceError::NothingLeft)?;
        if self.params.temperature == 0.0 {
            return Ok(best);
        }
        let max = self.adjusted[best as usize];
        Ok(self.draw(max))
    }

    /// Applies the mask of allowed tokens, bias and penalties to the logits and stores
    /// the result in `adjusted`.
    pub(super) fn adjust(
        &mut self,
        logits: &[f32],
        history: &[u32],
        allowed: Option<&[u32]>,
    ) -> Result<(), ChoiceError> {
        if let Some((token, found)) = first(logits, |l| !l.is_finite()) {
            return Err(ChoiceError::Logit { token, found });
        }
        self.adjusted.clear();
        // Adding zero turns a logit of -0 into +0: the two must tie.
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
        match first(&self.adjusted, |l| l.is_nan() || l == f32::INFINITY) {
            Some((token, found)) => Err(ChoiceError::Adjusted { token, found }),
            None => Ok(()),
        }
    }

    fn penalize(&mut self, history: &[u32]) {
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

    fn draw(&mut self, max: f32) -> u32 {
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

        let target = self.uniform.peek() * f64::from(mass);
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
        // Rounding can leave the sum of all weights short of the target; the last token
        // with a weight above zero is chosen then.
        chosen
    }

    /// Finds how many of the likeliest tokens top-p and min-p sampling keep. Returns
    /// their number and the sum of their weights.
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

/// Returns the first logit for which `wrong` is true, with its token.
///
/// Every logit is tested without an early exit, so that the loop over 200,000 of them
/// vectorises; the first wrong one is searched for only on failure.
fn first(logits: &[f32], wrong: impl Fn(f32) -> bool) -> Option<(usize, f32)> {
    if !logits.iter().fold(false, |any, &l| any | wrong(l)) {
        return None;
    }
    let mut all = logits.iter().copied().enumerate();
    all.find(|&(_, l)| wrong(l))
}

/// Returns the index of the largest logit, the lowest index on ties; `None` if
/// all are minus infinity.
fn argmax(logits: &[f32]) -> Option<u32> {
    const PARTIALS: usize = 16;
    let larger = |a: f32, b: f32| if b > a { b } else { a };
    let mut partials = [f32::NEG_INFINITY; PARTIALS];
    let (blocks, rest) = logits.as_chunks::<PARTIALS>();
    for block in blocks {
        for (partial, &l) in partials.iter_mut().zip(block) {
            *partial = larger(*partial, l);
        }
    }
    let all = partials.iter().chain(rest).copied();
    let max = all.fold(f32::NEG_INFINITY, larger);
    if max == f32::NEG_INFINITY {
        return None;
    }
    // The token's index fits in 32 bits, in which a vocabulary is counted.
    (0..)
        .zip(logits)
        .find(|&(_, &l)| l == max)
        .map(|(token, _)| token)
}
