//! Any text becomes tokens and the same text again, whole and as a stream; any
//! tokens become a text, in a stream the same.
#![no_main]

#[path = "../common/mod.rs"]
mod common;

use libfuzzer_sys::fuzz_target;
use muser_engine::gguf::Gguf;
use muser_text::{EncodeOptions, Special, StreamDecoder, Tokenizer};
use std::sync::LazyLock;

static TOKENIZER: LazyLock<Tokenizer> = LazyLock::new(|| {
    let gguf = Gguf::from_static(common::NANO).expect("the file is the project's own");
    let spec = muser_engine::tokenizer_spec(&gguf).expect("its keys have their types");
    Tokenizer::new(spec.expect("it has a tokenizer")).expect("which can be built")
});

fn streamed(ids: &[u32], show_special: bool) -> String {
    let mut decoder = StreamDecoder::new(&TOKENIZER, show_special);
    let mut text = String::new();
    for &id in ids {
        text += &decoder.push(id).expect("the id is in the vocabulary");
    }
    text + &decoder.finish()
}

fuzz_target!(|data: &[u8]| {
    let text = String::from_utf8_lossy(data);
    for special in [Special::Plain, Special::Parse] {
        let options = EncodeOptions {
            special,
            add_bos: false,
        };
        let ids = TOKENIZER
            .encode(&text, options)
            .expect("all bytes have tokens");
        assert_eq!(TOKENIZER.decode(&ids, true).expect("its own ids"), text);
        assert_eq!(streamed(&ids, true), text);
    }
    let size = TOKENIZER.vocab_size() as u32;
    let pairs = data
        .chunks_exact(2)
        .map(|b| u32::from(u16::from_le_bytes([b[0], b[1]])));
    let ids: Vec<u32> = pairs.map(|id| id % size).collect();
    for show_special in [false, true] {
        let whole = TOKENIZER
            .decode(&ids, show_special)
            .expect("ids below the size");
        assert_eq!(streamed(&ids, show_special), whole);
    }
});
