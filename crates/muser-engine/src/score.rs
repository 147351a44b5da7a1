//! Log-probabilities of tokens, computed from a model's logits.

use crate::Token;
use muser_ops::choose::Ranked;

/// Returns the natural logarithm of a token's probability, from the logits of the
/// position before it; `None` for a token outside the vocabulary.
///
/// ```text
/// m = max l_i;  s = Σ exp(l_i - m)      f64, i ascending
/// log p = (l_token - m) - ln s
/// ```
///
/// l_i is the logit of token i, p the token's probability. exp and ln are those of the
/// crate `libm`, so that perplexities have the same digits on every platform.
pub fn log_prob(logits: &[f32], token: Token) -> Option<f64> {
    LogProbs::new(logits).of(token)
}

/// The log-probabilities of all tokens after one position, equal to those of
/// [`log_prob`]. The sum of the exponentials is computed once for all tokens.
#[derive(Clone, Copy, Debug)]
pub struct LogProbs<'a> {
    logits: &'a [f32],
    max: f64,
    ln_sum: f64,
}

impl<'a> LogProbs<'a> {
    /// Computes what the log-probabilities from these logits share: the largest logit,
    /// and the logarithm of the sum of exponentials.
    pub fn new(logits: &'a [f32]) -> Self {
        let max = logits
            .iter()
            .fold(f32::NEG_INFINITY, |m, &l| if l > m { l } else { m });
        let max = f64::from(max);
        let sum = logits
            .iter()
            .fold(0.0, |s, &l| s + libm::exp(f64::from(l) - max));
        Self {
            logits,
            max,
            ln_sum: libm::log(sum),
        }
    }

    /// Returns the log-probability of one token; `None` for a token outside the
    /// vocabulary.
    pub fn of(&self, token: Token) -> Option<f64> {
        let logit = f64::from(*self.logits.get(token as usize)?);
        Some((logit - self.max) - self.ln_sum)
    }

    /// Returns the `k` likeliest tokens with their log-probabilities, the likeliest
    /// first, the lower id first on ties.
    pub fn top(&self, k: usize) -> Vec<(Token, f64)> {
        let mut ranked = Ranked::default();
        // Adding zero turns -0 into +0: the two must tie.
        let logits: Vec<f32> = self.logits.iter().map(|l| l + 0.0).collect();
        ranked.fill(&logits);
        let tokens = (0..k.min(logits.len())).map_while(|rank| ranked.get(rank));
        tokens
            .filter_map(|(token, _)| Some((token, self.of(token)?)))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_logits_share_equally() {
        assert_eq!(log_prob(&[3.0; 4], 2), Some(-libm::log(4.0)));
        assert_eq!(log_prob(&[3.0; 4], 4), None);
    }

    #[test]
    fn large_logits_do_not_overflow() {
        // Two logits that differ by one, shifted far from zero. The likelier token has
        // the probability 1 / (1 + e^-1).
        let want = -libm::log1p(libm::exp(-1.0));
        let got = log_prob(&[20_000.0, 20_001.0], 1).unwrap();
        assert!((got - want).abs() < 1e-15, "{got} {want}");
    }

    #[test]
    fn the_likeliest_come_first_and_ties_go_by_id() {
        let logits = [0.0, 2.0, -0.0, 5.0, 2.0];
        let all = LogProbs::new(&logits);
        let ids: Vec<Token> = all.top(9).iter().map(|t| t.0).collect();
        assert_eq!(ids, [3, 1, 4, 0, 2]);
        assert_eq!(all.top(2)[1], (1, log_prob(&logits, 1).unwrap()));
    }
}
