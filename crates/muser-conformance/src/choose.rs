//! Conformance cases of choosing tokens from rows of logits: ties, sampling settings of
//! every kind, token masks, and rows that no token can be chosen from.

use super::compare::{POISON, Seen};
use super::fill;
use super::rig::{Case, Guarded, Suite};
use super::rng::Rng;
use muser_ops::{Backend, Choice, ChoiceError, OpError, Sampler, SamplingParams};

/// One token to choose in a conformance case: the row of logits, the sampling settings,
/// the tokens so far, and the mask of allowed tokens.
struct One {
    row: usize,
    params: SamplingParams,
    history: Vec<u32>,
    allowed: Option<Vec<u32>>,
}

struct Choose {
    width: usize,
    logits: Vec<f32>,
    choices: Vec<One>,
}

/// The number of f32 values that encode the outcome of choosing one token.
const OUTCOME: usize = 3;

/// Encodes the outcome of choosing a token as three f32 values, which are compared like
/// a buffer's: success or the error's number, the token, and the logit that an error
/// names.
fn values(outcome: Option<Result<u32, ChoiceError>>) -> [f32; OUTCOME] {
    match outcome {
        None => [POISON; OUTCOME],
        Some(Ok(token)) => [0.0, token as f32, 0.0],
        Some(Err(ChoiceError::Logit { token, found })) => [1.0, token as f32, found],
        Some(Err(ChoiceError::Adjusted { token, found })) => [2.0, token as f32, found],
        Some(Err(ChoiceError::NothingLeft)) => [3.0, 0.0, 0.0],
        Some(Err(ChoiceError::Parameter { .. })) => [4.0, 0.0, 0.0],
    }
}

impl Case for Choose {
    fn name(&self) -> String {
        let rows: Vec<usize> = self.choices.iter().map(|c| c.row).collect();
        let first = self.choices.first().map(|c| &c.params);
        format!("rows {rows:?} of {} logits, {first:?}", self.width)
    }

    fn run<B: Backend>(&self, b: &B) -> Result<Vec<Seen>, OpError> {
        let logits = Guarded::input(b, "logits", self.width, &self.logits)?;
        let of = |c: &One| Sampler::new(c.params.clone(), self.width).expect("a test: in range");
        let mut samplers: Vec<Sampler> = self.choices.iter().map(of).collect();
        let mut choices: Vec<Choice<'_>> = samplers
            .iter_mut()
            .zip(&self.choices)
            .map(|(sampler, c)| Choice::new(sampler, &c.history, c.allowed.as_deref()))
            .collect();
        let rows = self.choices.iter().map(|c| c.row);
        b.choose(
            &logits.buffer,
            &mut rows.zip(choices.iter_mut()).collect::<Vec<_>>(),
        )?;
        let after: Vec<f32> = choices.iter_mut().flat_map(|c| values(c.take())).collect();
        let outcomes = Seen {
            label: "outcomes",
            before: vec![POISON; after.len()],
            written: after.len(),
            after,
        };
        Ok(vec![logits.see(b)?, outcomes])
    }
}

/// Returns sampling settings for a test; `kind` modulo 12 picks them: greedy,
/// temperature, `top_k`, `top_p`, `min_p`, penalties, biases, …
fn settings(rng: &mut Rng, kind: usize, width: usize) -> SamplingParams {
    let mut p = SamplingParams {
        seed: rng.bits(),
        ..SamplingParams::default()
    };
    match kind % 12 {
        0 => p.temperature = 0.0,
        1 => p.temperature = 0.7,
        2 => p.top_k = 1 + rng.below(width),
        3 => p.top_p = rng.pick(&[0.9, 0.5, 0.01]),
        4 => p.min_p = rng.pick(&[0.05, 0.5, 1.0]),
        5 => (p.temperature, p.top_k, p.top_p) = (1.3, 40, 0.95),
        6 => (p.temperature, p.repeat_penalty) = (0.0, 1.5),
        7 => (p.frequency_penalty, p.presence_penalty) = (0.5, -0.25),
        8 => (p.repeat_penalty, p.penalty_window) = (0.01, 3),
        9 => (p.temperature, p.logit_bias) = (0.0, bias(rng, width)),
        10 => p.logit_bias = bias(rng, width),
        _ => {}
    }
    p
}

/// Returns logit biases for random tokens; about half of them rule their token out.
fn bias(rng: &mut Rng, width: usize) -> Vec<(u32, f32)> {
    let of = |rng: &mut Rng| {
        let bias = rng.pick(&[2.5, -2.5, f32::NEG_INFINITY, f32::NEG_INFINITY]);
        (rng.below(width) as u32, bias)
    };
    (0..1 + width / 4).map(|_| of(rng)).collect()
}

/// Returns a token mask for a test; `kind` picks it: no mask (all tokens are allowed),
/// about half of the tokens, one token, no token, or a mask with too few words for all
/// tokens.
fn mask(rng: &mut Rng, kind: usize, width: usize) -> Option<Vec<u32>> {
    let mut words = vec![0u32; width.div_ceil(32)];
    match kind % 7 {
        3 => words.iter_mut().for_each(|w| *w = rng.bits() as u32),
        4 => {
            let token = rng.below(width);
            words[token / 32] = 1 << (token % 32);
        }
        5 if rng.below(3) == 0 => {}
        5 | 6 => {
            words.fill(u32::MAX);
            words.truncate(words.len() / 2);
        }
        _ => return None,
    }
    Some(words)
}

/// Returns one row of test logits; `turn` picks them: few distinct values, so that most
/// are ties; test activations, some with a value that is not finite; or nearly equal
/// values, where the rounding of sums decides the token.
fn logits(rng: &mut Rng, turn: usize, width: usize) -> Vec<f32> {
    match turn % 3 {
        0 => {
            let values = [1.0, -0.0, 0.0, 2.0, -1.5];
            (0..width).map(|_| rng.pick(&values)).collect()
        }
        1 => fill::activations(rng, turn / 3, width),
        _ => {
            let level = rng.signed();
            (0..width).map(|_| level + rng.signed() / 256.0).collect()
        }
    }
}

pub(super) fn choose<B: Backend>(suite: &mut Suite<'_, B>) {
    let mut turn = 0;
    for width in [1, 2, 31, 33, 257, 1000, 4099] {
        for rows in [1, 2, 3, 9, 9, 17] {
            if suite.full() {
                return;
            }
            let rng = &mut suite.rng;
            let mut values = Vec::new();
            let mut choices = Vec::new();
            for row in 0..rows {
                turn += 1;
                values.extend(logits(rng, turn, width));
                let length = rng.below(100);
                choices.push(One {
                    row,
                    params: settings(rng, turn / 3, width),
                    history: (0..length).map(|_| rng.below(width) as u32).collect(),
                    allowed: mask(rng, turn / 2, width),
                });
            }
            // The choices come in descending order of rows; where there are many, some
            // rows have none.
            choices.reverse();
            if rows > 9 {
                choices.retain(|c| c.row % 4 != 3);
            }
            suite.case(&Choose {
                width,
                logits: values,
                choices,
            });
        }
    }
}
