//! The settings of a sampler of tokens (temperature, top-k, penalties, …) and their
//! ranges.

use super::ChoiceError;

/// The settings by which a [`Sampler`](super::Sampler) chooses tokens. The default is
/// plain sampling from the model's distribution with seed 0.
#[derive(Clone, Debug, PartialEq)]
pub struct SamplingParams {
    /// The temperature, from 0 to 100, which divides the logits; 0 always chooses the
    /// largest logit.
    pub temperature: f32,
    /// The number k of most likely tokens that top-k sampling keeps; 0 keeps all.
    pub top_k: usize,
    /// The share of the probability up to which top-p sampling keeps the most likely
    /// tokens, the token that reaches it included. Above 0, at most 1 (keeps all).
    pub top_p: f32,
    /// The share of the likeliest token's probability below which min-p sampling drops
    /// tokens. 0 to 1.
    pub min_p: f32,
    /// The repeat penalty: divides positive and multiplies negative logits of tokens in
    /// the penalty window (the last tokens). 0.01 to 100; 1 does nothing.
    pub repeat_penalty: f32,
    /// The frequency penalty: subtracted from a token's logit once for each time that
    /// the token is in the penalty window (the last tokens). -100 to 100.
    pub frequency_penalty: f32,
    /// The presence penalty: subtracted from a token's logit once if the token is in the
    /// penalty window (the last tokens). -100 to 100.
    pub presence_penalty: f32,
    /// The number of tokens in the penalty window: the last tokens of the history, the
    /// prompt included.
    pub penalty_window: usize,
    /// The biases added to the logits of these tokens: -1000 to 1000, or minus infinity,
    /// which rules a token out. The biases of a token named twice add up.
    pub logit_bias: Vec<(u32, f32)>,
    /// The seed of the random numbers that sampling draws.
    pub seed: u64,
}

impl Default for SamplingParams {
    fn default() -> Self {
        Self {
            temperature: 1.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            repeat_penalty: 1.0,
            frequency_penalty: 0.0,
            presence_penalty: 0.0,
            penalty_window: 64,
            logit_bias: Vec::new(),
            seed: 0,
        }
    }
}

impl SamplingParams {
    /// Returns settings of greedy sampling, which always chooses the token with the
    /// largest logit.
    pub fn greedy() -> Self {
        Self {
            temperature: 0.0,
            ..Self::default()
        }
    }

    /// Checks every sampling parameter against its range; `vocab` bounds the tokens of
    /// the bias.
    ///
    /// # Errors
    /// [`ChoiceError::Parameter`] for the first one out of its range.
    pub fn validate(&self, vocab: usize) -> Result<(), ChoiceError> {
        let ranges = [
            ("temperature", self.temperature, 0.0, 100.0, "0 to 100"),
            ("min_p", self.min_p, 0.0, 1.0, "0 to 1"),
            (
                "repeat_penalty",
                self.repeat_penalty,
                0.01,
                100.0,
                "0.01 to 100",
            ),
            (
                "frequency_penalty",
                self.frequency_penalty,
                -100.0,
                100.0,
                "-100 to 100",
            ),
            (
                "presence_penalty",
                self.presence_penalty,
                -100.0,
                100.0,
                "-100 to 100",
            ),
        ];
        for (name, found, low, high, expected) in ranges {
            check(name, (low..=high).contains(&found), expected, found)?;
        }
        check(
            "top_p",
            self.top_p > 0.0 && self.top_p <= 1.0,
            "above 0 and at most 1",
            self.top_p,
        )?;
        for &(token, bias) in &self.logit_bias {
            if token as usize >= vocab {
                return Err(ChoiceError::Parameter {
                    name: "logit_bias",
                    expected: format!("a token below the vocabulary's {vocab}"),
                    found: format!("token {token}"),
                });
            }
            check(
                "logit_bias",
                bias == f32::NEG_INFINITY || bias.abs() <= 1000.0,
                "-1000 to 1000, or -inf",
                bias,
            )?;
        }
        Ok(())
    }
}

fn check(name: &'static str, ok: bool, expected: &str, found: f32) -> Result<(), ChoiceError> {
    if ok {
        return Ok(());
    }
    Err(ChoiceError::Parameter {
        name,
        expected: expected.to_owned(),
        found: found.to_string(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_range_names_its_parameter_and_the_value() {
        let d = SamplingParams::default;
        let bad = [
            (
                SamplingParams {
                    temperature: -0.5,
                    ..d()
                },
                "temperature: expected 0 to 100, found -0.5",
            ),
            (
                SamplingParams {
                    temperature: f32::NAN,
                    ..d()
                },
                "temperature: expected 0 to 100, found NaN",
            ),
            (
                SamplingParams { top_p: 0.0, ..d() },
                "top_p: expected above 0 and at most 1, found 0",
            ),
            (
                SamplingParams { top_p: 1.5, ..d() },
                "top_p: expected above 0 and at most 1, found 1.5",
            ),
            (
                SamplingParams { min_p: 2.0, ..d() },
                "min_p: expected 0 to 1, found 2",
            ),
            (
                SamplingParams {
                    repeat_penalty: 0.0,
                    ..d()
                },
                "repeat_penalty: expected 0.01 to 100, found 0",
            ),
            (
                SamplingParams {
                    frequency_penalty: f32::INFINITY,
                    ..d()
                },
                "frequency_penalty: expected -100 to 100, found inf",
            ),
            (
                SamplingParams {
                    presence_penalty: -101.0,
                    ..d()
                },
                "presence_penalty: expected -100 to 100, found -101",
            ),
            (
                SamplingParams {
                    logit_bias: vec![(1, f32::INFINITY)],
                    ..d()
                },
                "logit_bias: expected -1000 to 1000, or -inf, found inf",
            ),
            (
                SamplingParams {
                    logit_bias: vec![(8, 1.0)],
                    ..d()
                },
                "logit_bias: expected a token below the vocabulary's 8, found token 8",
            ),
        ];
        for (params, message) in bad {
            assert_eq!(params.validate(8).unwrap_err().to_string(), message);
        }
        let good = SamplingParams {
            logit_bias: vec![(7, f32::NEG_INFINITY)],
            ..d()
        };
        good.validate(8).unwrap();
    }
}
