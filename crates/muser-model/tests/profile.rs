//! What a profiler counts of a forward pass: sets and dispatches as the
//! geometry has them, bytes and operations as the budget has them.
#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]

mod common;

use common::{bits, synthetic, tokens};
use muser_gguf::Gguf;
use muser_model::synth::{Geometry, Mix};
use muser_model::{Budget, Transformer, Want};
use muser_ops::Stage;
use muser_ops::oracle::Oracle;
use muser_ops::profiler::{Counts, Event, Op, Profiled};
use std::sync::Arc;

const LAYERS: usize = 3;

/// Two sliding layers and a full one, or the other way round: the last layer,
/// which is cut short, is of each kind once.
fn file(period: usize) -> Gguf {
    let geometry = Geometry {
        layers: LAYERS,
        period,
        window: 5,
        ..Geometry::named("glimmer-tiny").unwrap()
    };
    Gguf::from_vec(synthetic(&geometry, Mix::Q4KM)).unwrap()
}

fn profiled(gguf: &Gguf) -> Transformer<Profiled<Oracle>> {
    let backend = Profiled::new(Arc::new(Oracle));
    Transformer::load(gguf, Arc::new(backend)).unwrap()
}

fn sum<'a>(events: impl IntoIterator<Item = &'a Event>) -> Counts {
    let mut sum = Counts::default();
    events.into_iter().for_each(|e| sum += e.counts);
    sum
}

/// Calls of the given sizes, and what happened in the last one.
fn last_call(model: &Transformer<Profiled<Oracle>>, calls: &[usize], want: Want) -> Vec<Event> {
    let mut cache = model.cache(512);
    for &n in calls {
        model.backend().take();
        let ids = tokens(n, 256);
        model
            .forward(&mut cache, &ids, want, &mut |_, _| {})
            .unwrap();
    }
    model.backend().take()
}

#[test]
fn the_bits_are_those_of_the_backend_inside() {
    let gguf = file(3);
    let plain = common::load(&gguf).unwrap();
    let measured = profiled(&gguf);
    let ids = tokens(20, 256);
    let expected = bits(&plain, &mut plain.cache(64), &ids, &[7, 1]);
    assert_eq!(expected.len(), 20);
    assert_eq!(
        bits(&measured, &mut measured.cache(64), &ids, &[7, 1]),
        expected
    );
}

#[test]
fn a_token_has_four_sets_a_layer_and_eight_dispatches() {
    let model = profiled(&file(3));
    for want in [Want::Last, Want::All] {
        let events = last_call(&model, &[9, 1], want);
        let sets: Vec<&Event> = events.iter().filter(|e| e.op == Op::Project).collect();
        let total = sum(sets.iter().copied());
        // q k v gate, output, gate up, down; and the head.
        assert_eq!(total.sets, 4 * LAYERS as u64 + 1);
        assert_eq!(total.dispatches, 8 * LAYERS as u64 + 1);
        let of_layer = sets.iter().filter(|e| e.stage == Some(Stage::Attention(1)));
        let names: Vec<Vec<&str>> = of_layer
            .map(|e| e.matrices.iter().map(|n| &**n).collect())
            .collect();
        let set = ["attn_q", "attn_gate", "attn_k", "attn_v"].map(|n| format!("blk.1.{n}.weight"));
        assert_eq!(
            names,
            [set.to_vec(), vec!["blk.1.attn_output.weight".into()]]
        );
        // Everything else is one dispatch and no set; reading logits is none.
        let rest = sum(events.iter().filter(|e| e.op != Op::Project));
        assert_eq!((rest.sets, rest.dispatches), (0, rest.calls - 1));
        // Norm, two head norms, two rotations if sliding, attention, gate,
        // residual; norm, product, residual. Embedding and its norm;
        // last norm, cap, read.
        let sliding = 2;
        let others = LAYERS as u64 * 9 + 2 * sliding + 2 + 3;
        assert_eq!(rest.calls, others);
    }
}

#[test]
fn a_prompt_splits_the_set_of_the_last_layer() {
    let model = profiled(&file(3));
    let count = |want| {
        let events = last_call(&model, &[9, 6], want);
        let total = sum(events.iter().filter(|e| e.op == Op::Project));
        (total.sets, total.dispatches)
    };
    let layers = LAYERS as u64;
    assert_eq!(count(Want::All), (4 * layers + 1, 8 * layers + 1));
    // K and V for every row, Q and gate for the last one.
    assert_eq!(count(Want::Last), (4 * layers + 2, 8 * layers + 1));
    // K and V alone.
    assert_eq!(
        count(Want::Nothing),
        (4 * (layers - 1) + 1, 8 * (layers - 1) + 2)
    );
}

#[test]
fn bytes_and_operations_are_the_budget() {
    for period in [2, 3] {
        let gguf = file(period);
        let (model, budget) = (profiled(&gguf), Budget::of(&gguf).unwrap());
        for want in [Want::Nothing, Want::Last, Want::All] {
            for calls in [&[1][..], &[9], &[3, 1], &[9, 6], &[70, 66]] {
                let counted = sum(&last_call(&model, calls, want));
                let first = calls[..calls.len() - 1].iter().sum();
                let pass = budget.forward(first, calls[calls.len() - 1], want);
                let case = format!("{period} {want:?} {calls:?}");
                assert_eq!(counted.weight_bytes, pass.weight_bytes, "{case}");
                assert_eq!(counted.kv_read, pass.kv_read, "{case}");
                assert_eq!(counted.kv_written, pass.kv_written, "{case}");
                assert_eq!(counted.flops, pass.flops, "{case}");
            }
        }
        let one = sum(&last_call(&model, &[4, 1], Want::Last));
        assert_eq!(one.weight_bytes, model.bytes_per_token());
    }
    // Two micro-batches.
    let gguf = file(3);
    let counted = sum(&last_call(&profiled(&gguf), &[2, 300], Want::Last));
    let pass = Budget::of(&gguf).unwrap().forward(2, 300, Want::Last);
    assert_eq!(
        (counted.weight_bytes, counted.flops),
        (pass.weight_bytes, pass.flops)
    );
    assert_eq!(counted.kv_read, pass.kv_read);
}

#[test]
fn stages_come_in_order() {
    let model = profiled(&file(3));
    let mut stages: Vec<Stage> = last_call(&model, &[2], Want::Last)
        .iter()
        .map(|e| e.stage.unwrap())
        .collect();
    stages.dedup();
    let mut expected = vec![Stage::Embed];
    expected.extend((0..LAYERS).flat_map(|i| [Stage::Attention(i), Stage::Ffn(i)]));
    expected.push(Stage::Head);
    assert_eq!(stages, expected);
}
