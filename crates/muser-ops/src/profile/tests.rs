//! Counts to the last byte. That every bit is kept is a test of
//! `muser-conformance`.

use super::*;
use crate::oracle::Oracle;
use crate::{Attention, Backend as _, KvLayout, Weight};
use muser_quant::DType;

#[test]
fn a_set_of_four_is_one_set_and_four_dispatches() {
    let b = Profiled::new(Arc::new(Oracle));
    let weight = |name: &str, rows: usize| {
        let bytes = vec![0u8; rows * 8 * 4];
        b.bind(Weight::new(name, bytes, DType::F32, rows, 8).unwrap())
    };
    let set = [("q", 6), ("k", 2), ("v", 2), ("g", 6)].map(|(n, r)| weight(n, r).unwrap());
    let x = b.buffer(3, 8);
    let mut out = [6, 2, 2, 6].map(|width| b.buffer(3, width));
    b.mark(Stage::Attention(5));
    let [q, k, v, g] = &set;
    b.project(3, &[q, k, v, g], &x, &mut out.each_mut())
        .unwrap();
    b.mark(Stage::Head);
    b.soft_cap(2, &mut out[0], 1.0, None).unwrap();
    let events = b.take();
    assert!(b.take().is_empty());
    assert_eq!(events.len(), 2);
    let first = &events[0];
    assert_eq!(
        (first.stage, first.op),
        (Some(Stage::Attention(5)), Op::Project)
    );
    let names: Vec<&str> = first.matrices.iter().map(|n| &**n).collect();
    assert_eq!(names, ["q", "k", "v", "g"]);
    let expected = Counts {
        calls: 1,
        sets: 1,
        dispatches: 4,
        weight_bytes: 16 * 8 * 4,
        activation_bytes: 3 * (8 + 16) * 4,
        flops: 2 * 3 * 16 * 8,
        ..Counts::default()
    };
    assert_eq!(first.counts, expected);
    let second = &events[1];
    assert_eq!((second.stage, second.op), (Some(Stage::Head), Op::SoftCap));
    assert_eq!(second.counts, Counts::values(2 * 2 * 6));
    assert_eq!((second.counts.sets, second.counts.dispatches), (0, 1));
    assert!(first.start + first.time <= second.start);
}

#[test]
fn what_fails_is_not_counted() {
    let b = Profiled::new(Arc::new(Oracle));
    let mut out = b.buffer(1, 8);
    assert!(b.write(&mut out, &[0.0; 9]).is_err());
    assert!(b.take().is_empty());
    b.write(&mut out, &[0.0; 8]).unwrap();
    let event = &b.take()[0];
    assert_eq!((event.stage, event.counts.dispatches), (None, 0));
}

#[test]
fn attention_reads_what_is_visible_once() {
    let b = Profiled::new(Arc::new(Oracle));
    let layout = KvLayout {
        kv_heads: 1,
        head_dim: 4,
        window: Some(5),
        context: 64,
        max_batch: 8,
    };
    let (mut kv, k, q) = (b.kv(layout), b.buffer(8, 4), b.buffer(8, 8));
    let mut out = b.buffer(8, 8);
    b.kv_store(&mut kv, 0, 8, &k, &k).unwrap();
    let desc = Attention {
        heads: 2,
        kv_heads: 1,
        head_dim: 4,
        window: Some(5),
        scale: 1.0,
    };
    b.attention(&desc, 6, 2, &q, &kv, &mut out).unwrap();
    let events = b.take();
    assert_eq!(events[0].counts.kv_written, 8 * 2 * 4 * 2);
    // Positions 2 to 6 and 3 to 7: six of them, in ten pairs.
    assert_eq!(events[1].counts.kv_read, 6 * 2 * 4 * 2);
    assert_eq!(events[1].counts.flops, 10 * 4 * 8);
}
