//! Any answer in the Glimmer format is read, and its calls do not depend on how its
//! text comes in pieces.
//!
//! The first byte is the number of sizes; then these; the rest is the text.
#![no_main]

use libfuzzer_sys::fuzz_target;
use muser_text::chat::{Delta, Format, Reader, Types};
use serde_json::Value;
use std::collections::HashMap;

const MARKS: [&str; 3] = ["<|start|>", "<|message|>", "<|eom|>"];

/// Bytes of a header that is short enough in any pieces.
const SHORT_HEADER: usize = 31;

fuzz_target!(|data: &[u8]| {
    let Some((&count, rest)) = data.split_first() else {
        return;
    };
    let (sizes, text) = rest.split_at(usize::from(count % 8).min(rest.len()));
    let text = String::from_utf8_lossy(text);
    answer(&text, if sizes.is_empty() { &[1] } else { sizes });
});

/// Reads an answer in which `<|start|>`, `<|message|>` and `<|eom|>` are control
/// tokens. Its texts come in pieces of these sizes, again and again.
///
/// # Panics
/// The calls of a complete answer depend on the pieces, or their arguments are no
/// JSON objects; a call of an answer that is cut off is not the same one.
fn answer(text: &str, sizes: &[u8]) {
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

/// Returns the name and the arguments of each call.
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
    let tools = HashMap::from([("f".to_owned(), types)]);
    let mut reader = Reader::new(Format::Glimmer, Some(tools));
    let mut out = Delta::default();
    let mut sizes = sizes.iter().map(|&n| usize::from(n.max(1))).cycle();
    let mut rest = text;
    while !rest.is_empty() {
        let mark = MARKS
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
                reader.mark(mark, &mut out);
                after
            }
            None => "",
        };
    }
    reader.finish(cut, &mut out);
    out
}
