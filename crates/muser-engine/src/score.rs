//! How likely a token was.

use crate::Token;

/// The natural logarithm of a token's probability, from the logits before it;
/// `None` if there is no such token.
///
/// ```text
/// m = max l_i;  s = Σ exp(l_i - m)      f64, i ascending
/// log p = (l_token - m) - ln s
/// ```
///
/// exp and ln are the `libm` crate's, so that perplexities have the same digits
/// everywhere.
pub fn log_prob(logits: &[f32], token: Token) -> Option<f64> {
    let chosen = f64::from(*logits.get(token as usize)?);
    let max = logits
        .iter()
        .fold(f32::NEG_INFINITY, |m, &l| if l > m { l } else { m });
    let max = f64::from(max);
    let sum = logits
        .iter()
        .fold(0.0, |s, &l| s + libm::exp(f64::from(l) - max));
    Some((chosen - max) - libm::log(sum))
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
        // 1 / (1 + e^-1) of two, shifted far.
        let want = -libm::log1p(libm::exp(-1.0));
        let got = log_prob(&[20_000.0, 20_001.0], 1).unwrap();
        assert!((got - want).abs() < 1e-15, "{got} {want}");
    }
}
