//! Sessions advanced together have the logits that each has alone.

#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]

mod common;

use common::{VOCAB, model, tokens};
use muser_engine::{Advance, Batch, Error, Session, Want};
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
    }];
    batch.run(&mut advance).unwrap();
    assert_eq!(s.logits().unwrap().len(), model.config().hidden);
    // A normed state: the mean of its squares is one, for this model's norm
    // weights are.
    let squares: f32 = s.logits().unwrap().iter().map(|v| v * v).sum();
    assert!((squares / model.config().hidden as f32 - 1.0).abs() < 1e-3);
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
            },
            Advance {
                session: &mut small,
                tokens: bad,
                want: Want::Last,
            },
        ];
        assert_eq!(batch.run(&mut both).unwrap_err().index, Some(1));
        assert!(good.tokens().is_empty());
    }
}
