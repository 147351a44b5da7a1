//! Writes one round of the profiler as a Chrome trace: spans of forward passes, of the
//! stages in them, and of the operations in those, on one timeline.

use super::report::{label, part};
use muser_ops::Stage;
use muser_ops::profiler::Event;
use serde_json::{Value, json};
use std::io::Write;
use std::time::Duration;

/// Writes the operations that the profiler recorded in a prefill and in decoding as a
/// Chrome trace in JSON.
pub(super) fn write(
    out: &mut impl Write,
    prefill: &[Event],
    decode: &[Event],
) -> anyhow::Result<()> {
    let mut spans = vec![
        json!({ "ph": "M", "pid": 1, "tid": 1, "name": "thread_name",
                                 "args": { "name": "forward pass" } }),
    ];
    for (events, name) in [(prefill, "prefill"), (decode, "decode")] {
        for (i, pass) in passes(events).enumerate() {
            spans.push(enclosing(pass, "pass", format!("{name} {i}")));
            for stage in pass.chunk_by(|a, b| a.stage == b.stage) {
                let name = match stage[0].stage {
                    Some(Stage::Attention(layer) | Stage::Ffn(layer)) => {
                        format!("{} {layer}", part(stage[0].stage))
                    }
                    other => part(other).to_owned(),
                };
                spans.push(enclosing(stage, "stage", name));
                spans.extend(stage.iter().map(operation));
            }
        }
    }
    let trace = json!({ "traceEvents": spans, "displayTimeUnit": "ms" });
    serde_json::to_writer(&mut *out, &trace)?;
    Ok(writeln!(out)?)
}

/// Splits operations that the profiler recorded into micro-batches (batches that the
/// forward pass computes at once), each of which begins with the embedding.
fn passes(events: &[Event]) -> impl Iterator<Item = &[Event]> {
    events.chunk_by(|a, b| {
        let embeds = |e: &Event| e.stage == Some(Stage::Embed);
        embeds(a) || !embeds(b)
    })
}

fn micros(time: Duration) -> f64 {
    time.as_nanos() as f64 / 1e3
}

/// Makes the Chrome trace's span that encloses successive operations, of which there is
/// at least one.
fn enclosing(events: &[Event], category: &str, name: String) -> Value {
    let start = events.first().map_or(Duration::ZERO, |e| e.start);
    let end = events.last().map_or(start, |e| e.start + e.time);
    json!({ "ph": "X", "pid": 1, "tid": 1, "cat": category, "name": name,
            "ts": micros(start), "dur": micros(end.saturating_sub(start)) })
}

fn operation(event: &Event) -> Value {
    let c = &event.counts;
    let seconds = event.time.as_secs_f64();
    let rate = |n: u64| (seconds > 0.0).then(|| n as f64 / seconds / 1e9);
    json!({ "ph": "X", "pid": 1, "tid": 1, "cat": "operation", "name": label(event),
            "ts": micros(event.start), "dur": micros(event.time),
            "args": { "sets": c.sets, "dispatches": c.dispatches,
                      "weight_bytes": c.weight_bytes, "kv_bytes": c.kv_read + c.kv_written,
                      "activation_bytes": c.activation_bytes, "flops": c.flops,
                      "GB/s": rate(c.bytes()), "GFLOP/s": rate(c.flops) } })
}
