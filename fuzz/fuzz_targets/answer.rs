//! Any answer of a model is read, and what its calls are does not depend on how
//! its text comes in pieces.
//!
//! The first byte is the number of sizes; then these; the rest is the text.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Some((&count, rest)) = data.split_first() else {
        return;
    };
    let (sizes, text) = rest.split_at(usize::from(count % 8).min(rest.len()));
    let text = String::from_utf8_lossy(text);
    muser_server::fuzzing::answer(&text, if sizes.is_empty() { &[1] } else { sizes });
});
