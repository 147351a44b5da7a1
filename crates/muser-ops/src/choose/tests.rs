//! Tests of the sampler: the steps of a choice one by one with values computed by hand,
//! then against a plain form of its definition.

use super::rng::Uniform;
use super::*;
use crate::{math, reduce};
use proptest::prelude::*;

fn sampler(params: SamplingParams, vocab: usize) -> Sampler {
    Sampler::new(params, vocab).unwrap()
}

fn params(edit: impl FnOnce(&mut SamplingParams)) -> SamplingParams {
    let mut params = SamplingParams::default();
    edit(&mut params);
    params
}

fn draws(params: SamplingParams, logits: &[f32], n: usize) -> Vec<u32> {
    let mut s = sampler(params, logits.len());
    (0..n).map(|_| s.sample(logits, &[]).unwrap()).collect()
}

#[test]
fn greedy_takes_the_lowest_index_on_ties() {
    let greedy = |logits: &[f32]| draws(SamplingParams::greedy(), logits, 1)[0];
    assert_eq!(greedy(&[1.0, 3.0, 2.0, 3.0]), 1);
    assert_eq!(greedy(&[-0.0, 0.0]), 0);
    assert_eq!(greedy(&[-1.0, -0.0, 0.0]), 1);
}

/// Draws from four tokens of equal weight: the token is ⌊4u⌋, with u the random number.
/// The first four numbers of ChaCha8's zero key are 0.8369…, 0.6314…, 0.2324…, 0.1175….
#[test]
fn equal_weights_follow_the_random_numbers() {
    assert_eq!(draws(SamplingParams::default(), &[0.5; 4], 4), [3, 2, 0, 0]);
}

/// Checks that tokens are drawn in the order of logits, not of ids: the likeliest token
/// is the last, and small random numbers u choose it. The weights are 1, 1/e² and 1/e²:
/// the first of them owns u < 1 / (1 + 2 · 0.1353) = 0.787.
#[test]
fn the_draw_walks_from_the_likeliest() {
    assert_eq!(
        draws(SamplingParams::default(), &[0.0, 0.0, 2.0], 4),
        [0, 2, 2, 2]
    );
}

#[test]
fn temperature_divides() {
    // At temperature 100 the weights are all but equal: u chooses ⌊3u⌋ of [2, 0, 1].
    let hot = params(|p| p.temperature = 100.0);
    assert_eq!(draws(hot, &[0.0, 0.0, 2.0], 4), [1, 0, 2, 2]);
    // The smallest temperature is nearly greedy, without a division by zero.
    let cold = params(|p| p.temperature = f32::from_bits(1));
    assert_eq!(draws(cold, &[0.0, 0.0, 2.0], 4), [2; 4]);
}

#[test]
fn top_k_cuts_ties_by_index() {
    let top2 = params(|p| p.top_k = 2);
    // Top-k keeps tokens 0 and 1 of four equal ones: u chooses ⌊2u⌋.
    assert_eq!(draws(top2, &[1.0; 4], 4), [1, 1, 0, 0]);
}

#[test]
fn top_p_keeps_the_token_that_reaches_it() {
    // Four equal weights: p = 0.5 is reached by the second, 0.51 by the third.
    let half = params(|p| p.top_p = 0.5);
    assert_eq!(draws(half, &[1.0; 4], 4), [1, 1, 0, 0]);
    let more = params(|p| p.top_p = 0.51);
    assert_eq!(draws(more, &[1.0; 4], 4), [2, 1, 0, 0]);
    // Top-p counts what top-k left: half of two tokens is one.
    let both = params(|p| (p.top_k, p.top_p) = (2, 0.5));
    assert_eq!(draws(both, &[1.0; 4], 4), [0; 4]);
}

#[test]
fn min_p_is_a_share_of_the_likeliest() {
    // The weight exp(-1) = 0.3679 is kept at min-p 0.36, dropped at 0.37.
    let logits = [0.0, 1.0];
    let kept = params(|p| p.min_p = 0.36);
    assert_eq!(
        draws(kept, &logits, 2),
        [0, 1],
        "1 / 1.3679 = 0.731 < 0.8369"
    );
    let dropped = params(|p| p.min_p = 0.37);
    assert_eq!(draws(dropped, &logits, 2), [1, 1]);
    // At min-p 1 only tokens as likely as the likeliest stay.
    let ties = params(|p| p.min_p = 1.0);
    assert_eq!(draws(ties, &[1.0, 0.9, 1.0], 4), [2, 2, 0, 0]);
}

#[test]
fn penalties_as_written() {
    let adjusted = |edit: fn(&mut SamplingParams), history: &[u32]| {
        let mut s = sampler(params(edit), 3);
        s.adjust(&[4.0, -4.0, 1.0], history, None).unwrap();
        s.adjusted
    };
    let repeat: fn(&mut SamplingParams) = |p| p.repeat_penalty = 2.0;
    assert_eq!(adjusted(repeat, &[0, 1, 1]), [2.0, -8.0, 1.0]);
    let both: fn(&mut SamplingParams) = |p| (p.frequency_penalty, p.presence_penalty) = (0.5, 0.25);
    assert_eq!(adjusted(both, &[0, 1, 1]), [3.25, -5.25, 1.0]);
    let window: fn(&mut SamplingParams) = |p| (p.presence_penalty, p.penalty_window) = (1.0, 2);
    assert_eq!(adjusted(window, &[0, 1, 1]), [4.0, -5.0, 1.0]);
    let off: fn(&mut SamplingParams) = |p| (p.presence_penalty, p.penalty_window) = (1.0, 0);
    assert_eq!(adjusted(off, &[0, 1, 1]), [4.0, -4.0, 1.0]);
    // A token beyond the logits changes nothing.
    assert_eq!(adjusted(repeat, &[9]), [4.0, -4.0, 1.0]);
}

#[test]
fn bias_moves_and_rules_out() {
    let greedy = |bias: Vec<(u32, f32)>| {
        let p = SamplingParams {
            logit_bias: bias,
            ..SamplingParams::greedy()
        };
        sampler(p, 3).sample(&[1.0, 2.0, 3.0], &[])
    };
    assert_eq!(greedy(vec![(0, 2.5)]).unwrap(), 0);
    assert_eq!(greedy(vec![(0, 1.25), (0, 1.25)]).unwrap(), 0);
    let never = f32::NEG_INFINITY;
    assert_eq!(greedy(vec![(2, never)]).unwrap(), 1);
    assert!(matches!(
        greedy(vec![(0, never), (1, never), (2, never)]),
        Err(ChoiceError::NothingLeft)
    ));
    // A ruled-out token is not drawn either.
    let p = params(|p| p.logit_bias = vec![(0, never), (3, never)]);
    assert!(
        draws(p, &[9.0, 0.0, 0.0, 9.0], 50)
            .iter()
            .all(|t| [1, 2].contains(t))
    );
}

#[test]
fn what_is_not_finite_is_an_error() {
    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        let e = sampler(SamplingParams::greedy(), 2).sample(&[0.0, bad], &[]);
        assert_eq!(
            e.unwrap_err().to_string(),
            format!("the logit of token 1 is {bad}")
        );
    }
    let p = params(|p| p.repeat_penalty = 0.01);
    let e = sampler(p, 1).sample(&[f32::MAX], &[0]);
    assert_eq!(e.unwrap_err().to_string(), "the logit of token 0 is inf");
}

#[test]
fn seeds_matter_and_repeat() {
    let seeded = |seed| draws(params(|p| p.seed = seed), &[0.0; 100], 8);
    assert_eq!(seeded(1), seeded(1));
    assert_ne!(seeded(1), seeded(2));
    assert_ne!(
        seeded(1),
        seeded(1 << 63 | 1),
        "all 64 bits of the seed count"
    );
}

fn logits() -> impl Strategy<Value = Vec<f32>> {
    prop::collection::vec((-40i8..40).prop_map(|x| f32::from(x) / 8.0), 1..600)
}

/// Chooses a token by the definition of sampling, without lazy sorting or running sums;
/// tests compare the sampler with it.
fn plain(p: &SamplingParams, logits: &[f32]) -> u32 {
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let weight = |l: f32| math::exp((l - max) / p.temperature);
    let reduced = |w: &[f32]| reduce::dot(w, &vec![1.0; w.len()]);
    let by_token: Vec<f32> = logits.iter().map(|&l| weight(l)).collect();
    let mut order: Vec<usize> = (0..logits.len()).collect();
    order.sort_by(|&a, &b| logits[b].total_cmp(&logits[a]).then(a.cmp(&b)));
    let cut = p.top_k > 0 && p.top_k < order.len();
    if cut {
        order.truncate(p.top_k);
    }
    let by_rank: Vec<f32> = order.iter().map(|&i| by_token[i]).collect();
    // The sum of the weights of the first n ranks.
    let first = |n: usize| f64::from(reduced(&by_rank[..n]));
    let total = if cut {
        first(order.len())
    } else {
        f64::from(reduced(&by_token))
    };
    let (mut kept, mut mass) = (order.len(), total);
    if p.top_p < 1.0 || p.min_p > 0.0 {
        let limit = if p.top_p < 1.0 {
            f64::from(p.top_p) * total
        } else {
            f64::INFINITY
        };
        let likely = |&n: &usize| n > 0 && by_rank[n] < p.min_p;
        let unlikely = (0..order.len()).find(likely).unwrap_or(order.len());
        kept = (1..=unlikely)
            .find(|&n| first(n) >= limit)
            .unwrap_or(unlikely);
        mass = first(kept);
    }
    let target = Uniform::new(p.seed).peek() * mass;
    let passed = (0..kept).find(|&rank| first(rank + 1) > target);
    order[passed.unwrap_or(kept - 1)] as u32
}

proptest! {
    #[test]
    fn top_k_1_is_greedy(logits in logits(), seed: u64, temperature in 0.01f32..10.0) {
        let one = params(|p| (p.top_k, p.seed, p.temperature) = (1, seed, temperature));
        prop_assert_eq!(draws(one, &logits, 1), draws(SamplingParams::greedy(), &logits, 1));
    }

    #[test]
    fn the_sampler_equals_its_definition(
        logits in logits(),
        seed: u64,
        temperature in 0.05f32..5.0,
        top_k in 0usize..700,
        top_p in prop_oneof![Just(1.0f32), 0.01f32..1.0],
        min_p in prop_oneof![Just(0.0f32), 0.0f32..1.0],
    ) {
        let p = SamplingParams { seed, temperature, top_k, top_p, min_p, ..Default::default() };
        let want = plain(&p, &logits);
        prop_assert_eq!(draws(p, &logits, 1)[0], want);
    }

    #[test]
    fn a_top_k_of_the_whole_vocabulary_is_none(logits in logits(), seed: u64) {
        let all = params(|p| (p.top_k, p.seed) = (logits.len(), seed));
        let none = params(|p| p.seed = seed);
        prop_assert_eq!(draws(all, &logits, 3), draws(none, &logits, 3));
    }
}

#[test]
fn only_what_is_allowed_is_sampled() {
    let logits: Vec<f32> = (0..70).map(|i| i as f32 / 10.0).collect();
    // The mask allows the tokens 3 and 40.
    let words = [1 << 3, 1 << 8];
    for temperature in [0.0, 1.0] {
        let params = SamplingParams {
            temperature,
            ..SamplingParams::default()
        };
        let mut s = Sampler::new(params, 70).unwrap();
        for _ in 0..50 {
            let token = s.sample_among(&logits, &[], Some(&words)).unwrap();
            assert!(token == 40 || (token == 3 && temperature > 0.0), "{token}");
        }
        let none = s.sample_among(&logits, &[], Some(&[])).unwrap_err();
        assert!(matches!(none, ChoiceError::NothingLeft));
    }
}

/// Shows that a choice of a token that is dropped, or refused, has drawn no random
/// number.
#[test]
fn random_numbers_advance_when_a_token_is_taken() {
    let (logits, plain) = ([0.5; 4], SamplingParams::default);
    let mut s = sampler(plain(), 4);
    let mut got = Vec::new();
    for n in 0..8 {
        let mut choice = Choice::new(&mut s, &[], None);
        assert!(choice.outcome().is_none() && choice.take().is_none());
        if n % 2 == 0 {
            choice.choose(&logits);
            assert!(matches!(choice.outcome(), Some(Ok(_))));
            continue;
        }
        choice.set(Err(ChoiceError::NothingLeft));
        assert_eq!(choice.take(), Some(Err(ChoiceError::NothingLeft)));
        choice.choose(&logits);
        got.push(choice.take().unwrap().unwrap());
    }
    assert_eq!(got, draws(plain(), &logits, 4));
    // A token that a device chose uses the number as well.
    let u = Choice::new(&mut s, &[], None).uniform();
    let mut choice = Choice::new(&mut s, &[], None);
    choice.set(Ok(2));
    assert_eq!((choice.uniform(), choice.take()), (u, Some(Ok(2))));
    assert_ne!(choice.uniform(), u);
    // A greedy choice uses no random number.
    let mut greedy = sampler(SamplingParams::greedy(), 4);
    let mut choice = Choice::new(&mut greedy, &[], None);
    let u = choice.uniform();
    choice.choose(&logits);
    assert_eq!((choice.take(), choice.uniform()), (Some(Ok(0)), u));
}
