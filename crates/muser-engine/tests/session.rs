//! A session gives the same bits whatever way it came to its tokens.

#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]

mod common;

use common::{CONTEXT, model, tokens};
use muser_engine::{Error, Session, SyncReport};
use muser_ops::oracle::Oracle;

fn session() -> Session<Oracle> {
    Session::new(model(false), None).unwrap()
}

fn bits(logits: &[f32]) -> Vec<u32> {
    logits.iter().map(|l| l.to_bits()).collect()
}

fn fresh(tokens: &[u32]) -> Vec<u32> {
    let mut s = session();
    s.sync(tokens).unwrap();
    bits(s.logits().unwrap())
}

fn report(reused: usize, evaluated: usize) -> SyncReport {
    SyncReport { reused, evaluated }
}

#[test]
fn extended_cut_back_and_extended_again() {
    let all = tokens(100);
    let mut other = all.clone();
    other[60] = 27;
    let mut s = session();
    assert_eq!(s.sync(&all[..30]).unwrap(), report(0, 30));
    assert_eq!(bits(s.logits().unwrap()), fresh(&all[..30]));
    assert_eq!(s.sync(&all).unwrap(), report(30, 70));
    assert_eq!(bits(s.logits().unwrap()), fresh(&all));
    assert_eq!(s.sync(&other).unwrap(), report(60, 40));
    assert_eq!(bits(s.logits().unwrap()), fresh(&other));
    assert_eq!(
        s.sync(&all[..50]).unwrap(),
        report(49, 1),
        "the last token again"
    );
    assert_eq!(bits(s.logits().unwrap()), fresh(&all[..50]));
    assert_eq!(s.sync(&all).unwrap(), report(50, 50));
    assert_eq!(bits(s.logits().unwrap()), fresh(&all));
    assert_eq!(s.sync(&all).unwrap(), report(100, 0), "nothing to do");
    s.push(5).unwrap();
    assert_eq!(s.tokens().len(), 101);
    assert_eq!(bits(s.logits().unwrap()), fresh(s.tokens()));
    assert_ne!(fresh(&all), fresh(&other), "the tokens matter at all");
}

#[test]
fn what_the_ring_forgot_is_evaluated_again() {
    let all = tokens(800);
    let mut s = session();
    s.sync(&all).unwrap();
    assert_eq!(s.sync(&all[..100]).unwrap(), report(0, 100));
    assert_eq!(bits(s.logits().unwrap()), fresh(&all[..100]));
}

#[test]
fn score_gives_every_position_in_any_cut() {
    let all = tokens(90);
    let rows = |sizes: &[usize]| {
        let (mut s, mut rows, mut at) = (session(), Vec::new(), 0);
        for &n in sizes {
            s.score(&all[at..at + n], &mut |position, row| {
                assert_eq!(position, rows.len());
                rows.push(bits(row));
            })
            .unwrap();
            at += n;
        }
        assert_eq!(&bits(s.logits().unwrap()), rows.last().unwrap());
        rows
    };
    let whole = rows(&[90]);
    assert_eq!(whole.len(), 90);
    assert_eq!(rows(&[1; 90]), whole);
    assert_eq!(rows(&[7, 9, 16, 33, 25]), whole);
    assert_eq!(whole[9], fresh(&all[..10]));
    // A prompt longer than one step of `sync`.
    let long = tokens(700);
    let mut s = session();
    s.score(&long, &mut |_, _| ()).unwrap();
    assert_eq!(bits(s.logits().unwrap()), fresh(&long));
}

#[test]
fn refusals_leave_the_session_as_it_was() {
    let mut s = Session::new(model(false), Some(8)).unwrap();
    assert!(matches!(s.logits(), Err(Error::NoLogits)));
    assert!(matches!(s.sync(&[]), Err(Error::EmptyPrompt)));
    s.sync(&tokens(8)).unwrap();
    let kept = bits(s.logits().unwrap());
    let messages = [
        s.sync(&tokens(9)).unwrap_err(),
        s.push(1).unwrap_err(),
        s.score(&[1, 2], &mut |_, _| ()).unwrap_err(),
        s.sync(&[1, 2, 32]).unwrap_err(),
    ]
    .map(|e| e.to_string());
    let full =
        |n| format!("the context is full: {n} tokens need as many positions, the session has 8");
    assert_eq!(messages[..3], [full(9), full(9), full(10)]);
    assert_eq!(
        messages[3],
        "token 32 at position 2 is not in the vocabulary of 32"
    );
    assert_eq!(s.tokens(), tokens(8));
    assert_eq!(bits(s.logits().unwrap()), kept);
}

#[test]
fn the_context_is_within_the_models() {
    for found in [0, CONTEXT + 1] {
        let e = Session::new(model(false), Some(found)).unwrap_err();
        let message = format!("context: expected 1 to the model's 1024 positions, found {found}");
        assert_eq!(e.to_string(), message);
    }
}
