//! Tests of the profiler's counts of bytes and operations. A test of `muser-conformance`
//! shows that the profiler changes no bit.

use super::*;
use crate::oracle::Oracle;
use crate::{Attention, Backend as _, KvLayout, Plan, Run, Subset, Weight};
use muser_quant::DType;

#[test]
fn a_set_of_four_is_one_set_and_four_dispatches() {
    let b = Profiled::new(Arc::new(Oracle));
    let weight = |name: &str, rows: usize| {
        let bytes = vec![0u8; rows * 8 * 4];
        Weight::new(name, bytes, DType::F32, rows, 8)
            .unwrap()
            .into()
    };
    let set = [("q", 6), ("k", 2), ("v", 2), ("g", 6)].map(|(n, r)| weight(n, r));
    let set = b.bind_set(set.into()).unwrap();
    let x = b.buffer(3, 8).unwrap();
    let mut out = [6, 2, 2, 6].map(|width| b.buffer(3, width).unwrap());
    b.mark(Stage::Attention(5));
    b.project(3, &set, 0..4, &x, &mut out.each_mut()).unwrap();
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
    // Two of the set's four matrices.
    let [_, k, v, _] = &mut out;
    b.project(1, &set, 1..3, &x, &mut [k, v]).unwrap();
    let part = &b.take()[0];
    assert_eq!(part.matrices[..], ["k".into(), "v".into()]);
    assert_eq!(
        (part.counts.dispatches, part.counts.weight_bytes),
        (2, 4 * 8 * 4)
    );
}

#[test]
fn a_failed_operation_is_not_counted() {
    let b = Profiled::new(Arc::new(Oracle));
    let mut out = b.buffer(1, 8).unwrap();
    assert!(b.write(&mut out, &[0.0; 9]).is_err());
    assert!(b.take().is_empty());
    b.write(&mut out, &[0.0; 8]).unwrap();
    let event = &b.take()[0];
    assert_eq!((event.stage, event.counts.dispatches), (None, 0));
}

#[test]
fn attention_reads_each_visible_position_once() {
    let b = Profiled::new(Arc::new(Oracle));
    let layout = KvLayout {
        kv_heads: 1,
        head_dim: 4,
        window: Some(5),
        context: 64,
        max_batch: 8,
    };
    let (k, q) = (b.buffer(8, 4).unwrap(), b.buffer(8, 8).unwrap());
    let mut out = b.buffer(8, 8).unwrap();
    let desc = Attention {
        heads: 2,
        kv_heads: 1,
        head_dim: 4,
        window: Some(5),
        scale: 1.0,
    };
    let mut kv = b.kv(&[layout]);
    let run = Run {
        first: 0,
        rows: 8,
        keep: 2,
    };
    let plan = Plan::new(vec![0; 8], vec![run]).unwrap();
    let mut batch = b.batch(plan, vec![&mut kv]).unwrap();
    let subset = Subset::Kept;
    b.attention(&mut batch, 0, &desc, subset, &q, &k, &k, &mut out)
        .unwrap();
    let counts = b.take()[0].counts;
    assert_eq!(counts.kv_written, 8 * 2 * 4 * 2);
    // The two rows see the positions 2 to 6 and 3 to 7: six positions, ten pairs.
    assert_eq!(counts.kv_read, 6 * 2 * 4 * 2);
    assert_eq!(counts.flops, 10 * 4 * 8);
}
