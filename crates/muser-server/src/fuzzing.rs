//! Ways into the parts that read what a client or a model wrote, for the fuzz
//! targets. No part of the crate's interface: only with the feature `fuzzing`.

use crate::Server;
use crate::api;
use crate::atem::{Mark, Reader};
use crate::fields::Fields;
use crate::grammar::Types;
use crate::limits::json;
use crate::limits::work::Work;
use crate::options::UnknownFields;
use crate::scheduler::Delta;
use serde_json::{Value, json};
use std::collections::HashMap;

/// Bytes of a header that is short enough however it comes in pieces.
const SHORT_HEADER: usize = 31;

/// Reads a body as each of the routes would, up to the request that would be
/// queued; whether any of them takes it.
pub fn request(server: &Server, body: &[u8]) -> bool {
    let app = &server.app;
    let work = Work::unbounded();
    let read = |unknown| {
        json::check(body, &app.limits.json, &work)?;
        Fields::body(body, unknown)
    };
    let mut taken = false;
    for unknown in [UnknownFields::Refuse, UnknownFields::Ignore] {
        taken |= read(unknown).is_ok_and(|f| api::chat::parse(app, &work, f).is_ok());
        taken |= read(unknown).is_ok_and(|f| api::completions::parse(app, &work, f).is_ok());
        taken |= read(unknown).is_ok_and(|f| api::embeddings::parse(app, &work, f).is_ok());
    }
    taken
}

/// Reads a request whose answer has to fit this schema, and one whose call has
/// to, and compiles their grammars in this process; whether either is taken.
///
/// # Panics
/// No runtime can be made.
pub fn schema(server: &Server, schema: &[u8]) -> bool {
    let Ok(schema) = serde_json::from_slice::<Value>(schema) else {
        return false;
    };
    let messages = json!([{"role": "user", "content": "x"}]);
    let form = json!({"messages": messages, "response_format":
        {"type": "json_schema", "json_schema": {"schema": schema}}});
    let tool = json!({"type": "function", "function": {"name": "f", "parameters": schema}});
    let call = json!({"messages": messages, "tools": [tool], "tool_choice": "required"});
    let form = compiled(server, &form);
    compiled(server, &call) || form
}

fn compiled(server: &Server, request: &Value) -> bool {
    let (app, work, body) = (&server.app, Work::unbounded(), request.to_string());
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let runtime = runtime.expect("a runtime of this thread alone");
    let fields = json::check(body.as_bytes(), &app.limits.json, &work)
        .and_then(|_| Fields::body(body.as_bytes(), UnknownFields::Refuse));
    let parsed = fields.and_then(|f| api::chat::parse(app, &work, f));
    let done = parsed.map(|p| runtime.block_on(api::chat::compiled(app, &work, p)));
    done.is_ok_and(|compiled| compiled.is_ok())
}

/// Reads an answer in which `<|start|>`, `<|message|>` and `<|eom|>` are control
/// tokens, its texts in pieces of these sizes, again and again.
///
/// # Panics
/// A complete answer whose calls depend on the pieces, or whose arguments are no
/// JSON objects; text of a call that is cut off which is no beginning of it.
pub fn answer(text: &str, sizes: &[u8]) {
    let whole = read(text, &[u8::MAX], false);
    let pieces = read(text, sizes, false);
    // A header may have so many tokens, whatever their length.
    let mut messages = text.split("<|eom|>").flat_map(|m| m.split("<|start|>"));
    let header = |m: &str| m.split("<|message|>").next().map_or(0, str::len);
    if messages.any(|m| header(m) > SHORT_HEADER) {
        return;
    }
    assert_eq!(calls(&whole), calls(&pieces), "calls depend on the pieces");
    for (name, arguments) in calls(&whole) {
        let parsed = serde_json::from_str::<Value>(&arguments);
        assert!(parsed.is_ok_and(|v| v.is_object()), "{name}: {arguments}");
    }
    let cut = read(text, sizes, true);
    for ((name, full), (begun, open)) in calls(&whole).iter().zip(&calls(&cut)) {
        assert_eq!(name, begun);
        assert!(!open.is_empty() && !full.is_empty());
    }
}

/// (name, arguments) of each call.
fn calls(out: &Delta) -> Vec<(String, String)> {
    let mut calls: Vec<(String, String)> = Vec::new();
    for part in &out.calls {
        if let Some(name) = &part.name {
            assert_eq!(part.index, calls.len(), "calls come in their order");
            calls.push((name.clone(), String::new()));
        }
        let last = calls.get_mut(part.index);
        last.expect("a call begins with its name").1 += &part.arguments;
    }
    calls
}

fn read(text: &str, sizes: &[u8], cut: bool) -> Delta {
    let types = [("s", Types::STRING), ("n", Types::INTEGER)];
    let types = types.map(|(name, types)| (name.to_owned(), types)).into();
    let mut reader = Reader::new(true, HashMap::from([("f".to_owned(), types)]));
    let mut out = Delta::default();
    let mut sizes = sizes.iter().map(|&n| usize::from(n.max(1))).cycle();
    let mut rest = text;
    while !rest.is_empty() {
        let mark = ["<|start|>", "<|message|>", "<|eom|>"]
            .into_iter()
            .filter_map(|m| Some((rest.find(m)?, m)))
            .min();
        let (plain, after) = match mark {
            Some((at, mark)) => (&rest[..at], Some((&rest[at + mark.len()..], mark))),
            None => (rest, None),
        };
        let mut left = plain;
        while !left.is_empty() {
            let size = sizes.next().unwrap_or(1).min(left.len());
            let end = (size..=left.len()).find(|&n| left.is_char_boundary(n));
            let (piece, more) = left.split_at(end.unwrap_or(left.len()));
            reader.text(piece, &mut out);
            left = more;
        }
        rest = match after {
            Some((after, mark)) => {
                if let Some(mark) = Mark::of(mark) {
                    reader.mark(mark, &mut out);
                }
                after
            }
            None => "",
        };
    }
    reader.finish(cut, &mut out);
    out
}
