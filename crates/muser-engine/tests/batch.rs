//! Sessions advanced together have the logits that each has alone.

#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]

mod common;

use common::{VOCAB, model, tokens};
use muser_engine::{Advance, Batch, Draw, Error, Sampler, SamplingParams, Session, Want};
use muser_ops::oracle::Oracle;

fn step<'a>(
    session: &'a mut Session<Oracle>,
    tokens: &'a [u32],
    want: Want,
) -> Advance<'a, Oracle> {
    Advance {
        session,
        tokens,
        want,
        draw: None,
    }
}

fn bits(s: &Session<Oracle>) -> Vec<u32> {
    s.logits().unwrap().iter().map(|l| l.to_bits()).collect()
}

#[test]
fn together_is_alone_and_a_clone_goes_its_own_way() {
    let model = model(false);
    let fresh = |tokens: &[u32]| {
        let mut s = Session::new(model.clone(), None).unwrap();
        s.sync(tokens).unwrap();
        bits(&s)
    };
    let (a, b) = (tokens(90), tokens(20));
    let mut batch = Batch::new(&model);
    let mut first = Session::new(model.clone(), None).unwrap();
    let mut second = Session::new(model.clone(), None).unwrap();
    batch
        .run(&mut [
            step(&mut first, &a[..80], Want::Nothing),
            step(&mut second, &b, Want::Last),
        ])
        .unwrap();
    assert_eq!(bits(&second), fresh(&b));
    assert!(matches!(first.logits(), Err(Error::NoLogits)));
    let mut clone = first.clone();
    batch
        .run(&mut [
            step(&mut second, &[7], Want::Last),
            step(&mut first, &a[80..], Want::Last),
            step(&mut clone, &[1, 2], Want::Last),
        ])
        .unwrap();
    assert_eq!(bits(&first), fresh(&a));
    assert_eq!(bits(&second), fresh(&[&b[..], &[7]].concat()));
    assert_eq!(bits(&clone), fresh(&[&a[..80], &[1, 2]].concat()));
    assert_eq!(first.tokens(), a);
    assert_eq!(clone.keep_prefix(&a), 80);
    batch
        .run(&mut [step(&mut clone, &a[80..], Want::Last)])
        .unwrap();
    assert_eq!(bits(&clone), fresh(&a));
}

#[test]
fn the_state_is_what_the_head_reads() {
    let model = model(false);
    let mut batch = Batch::new(&model);
    let mut s = Session::new(model.clone(), None).unwrap();
    let all = tokens(9);
    let mut advance = [Advance {
        session: &mut s,
        tokens: &all,
        want: Want::State,
        draw: None,
    }];
    batch.run(&mut advance).unwrap();
    assert_eq!(s.logits().unwrap().len(), model.spec().hidden);
    // A normed state: the mean of its squares is one, for this model's norm
    // weights are.
    let squares: f32 = s.logits().unwrap().iter().map(|v| v * v).sum();
    assert!((squares / model.spec().hidden as f32 - 1.0).abs() < 1e-3);
}

#[test]
fn a_refusal_names_the_session_and_spares_the_others() {
    let model = model(false);
    let mut batch = Batch::new(&model);
    let mut good = Session::new(model.clone(), None).unwrap();
    let mut small = Session::new(model.clone(), Some(4)).unwrap();
    for bad in [&[1; 5][..], &[VOCAB as u32]] {
        let mut both = [
            Advance {
                session: &mut good,
                tokens: &[1, 2],
                want: Want::Last,
                draw: None,
            },
            Advance {
                session: &mut small,
                tokens: bad,
                want: Want::Last,
                draw: None,
            },
        ];
        assert_eq!(batch.run(&mut both).unwrap_err().index, Some(1));
        assert!(good.tokens().is_empty());
    }
}

#[test]
fn a_pass_chooses_the_tokens_that_its_logits_give() {
    let model = model(false);
    let sampler = |seed| {
        let params = SamplingParams {
            seed,
            repeat_penalty: 1.2,
            ..SamplingParams::default()
        };
        Sampler::new(params, VOCAB).unwrap()
    };
    // Even tokens alone, for the second.
    let even = [0x5555_5555u32];
    let alone = |seed, prompt: &[u32], allowed: Option<&[u32]>| {
        let (mut s, mut sampler) = (Session::new(model.clone(), None).unwrap(), sampler(seed));
        s.sync(prompt).unwrap();
        for _ in 0..12 {
            let (logits, history) = (s.logits().unwrap(), s.tokens());
            let token = sampler.sample_among(logits, history, allowed).unwrap();
            s.push(token).unwrap();
        }
        s.tokens().to_vec()
    };
    let (a, b) = (tokens(90), tokens(20));
    let mut batch = Batch::new(&model);
    let mut sessions = [(); 2].map(|()| Session::new(model.clone(), None).unwrap());
    let (mut one, mut two) = (sampler(1), sampler(2));
    let mut next = [a.clone(), b.clone()];
    for _ in 0..12 {
        let [first, second] = &mut sessions;
        let mut advances = [
            step(first, &next[0], Want::Last),
            step(second, &next[1], Want::Last),
        ];
        advances[0].draw = Some(Draw {
            sampler: &mut one,
            allowed: None,
        });
        advances[1].draw = Some(Draw {
            sampler: &mut two,
            allowed: Some(&even),
        });
        let drawn = batch.run(&mut advances).unwrap();
        next = [0, 1].map(|i| vec![*drawn[i].as_ref().unwrap().as_ref().unwrap()]);
        // The logits stayed with the backend.
        assert!(matches!(sessions[0].logits(), Err(Error::NoLogits)));
    }
    for (i, (session, want)) in sessions
        .iter()
        .zip([alone(1, &a, None), alone(2, &b, Some(&even))])
        .enumerate()
    {
        assert_eq!([session.tokens(), &next[i]].concat(), want);
    }
}

/// A pass that is refused, and a choice that is, have drawn no random number.
#[test]
fn what_is_refused_draws_nothing() {
    let model = model(false);
    let mut batch = Batch::new(&model);
    let mut good = Session::new(model.clone(), None).unwrap();
    let mut small = Session::new(model.clone(), Some(1)).unwrap();
    let plain = || Sampler::new(SamplingParams::default(), VOCAB).unwrap();
    let (mut sampler, mut other) = (plain(), plain());
    let mut run = |tokens: [&[u32]; 2], allowed: Option<&[u32]>| {
        let mut both = [
            step(&mut good, tokens[0], Want::Last),
            step(&mut small, tokens[1], Want::Last),
        ];
        let samplers = [(&mut sampler, None), (&mut other, allowed)];
        for (advance, (sampler, allowed)) in both.iter_mut().zip(samplers) {
            advance.draw = Some(Draw { sampler, allowed });
        }
        let drawn = batch.run(&mut both);
        (drawn, good.tokens().to_vec(), small.tokens().to_vec())
    };
    assert_eq!(run([&[1, 2], &[1, 2]], None).0.unwrap_err().index, Some(1));
    // No token is allowed for the second one: it fails alone.
    let (drawn, first, second) = run([&[1, 2], &[1]], Some(&[0]));
    assert_eq!((first, second), (vec![1, 2], vec![1]));
    let [first, second] = &drawn.unwrap()[..] else {
        panic!("one entry a session");
    };
    assert!(matches!(second, Some(Err(Error::NothingToSample))));
    let mut s = Session::new(model.clone(), None).unwrap();
    s.sync(&[1, 2]).unwrap();
    let want = plain().sample(s.logits().unwrap(), s.tokens()).unwrap();
    assert!(matches!(first, Some(Ok(token)) if *token == want));
    s.clear();
    s.sync(&[1]).unwrap();
    let logits = s.logits().unwrap();
    assert_eq!(
        other.sample(logits, &[1]).unwrap(),
        plain().sample(logits, &[1]).unwrap()
    );
}
