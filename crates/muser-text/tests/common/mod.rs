//! The vocabulary of the embedded model, as plain data.

use muser_text::{Tokenizer, TokenizerSpec};

/// `nano-vocab.json`: the `tokenizer.ggml.*` keys of a byte-level BPE vocabulary of
/// 4,096 tokens with a gpt-4o split rule.
pub(crate) fn nano_spec() -> TokenizerSpec {
    let file: serde_json::Value =
        serde_json::from_str(include_str!("../fixtures/nano-vocab.json")).unwrap();
    let strings = |key: &str| serde_json::from_value::<Vec<String>>(file[key].clone()).unwrap();
    let id = |key: &str| file[key].as_u64().map(|id| u32::try_from(id).unwrap());
    TokenizerSpec {
        model: "gpt2".into(),
        pre: file["pre"].as_str().map(String::from),
        tokens: strings("tokens"),
        token_types: serde_json::from_value(file["token_types"].clone()).unwrap(),
        merges: strings("merges"),
        bos: id("bos"),
        eos: id("eos"),
        eot: id("eot"),
        padding: id("padding"),
        add_bos: file["add_bos"].as_bool().unwrap(),
        ..TokenizerSpec::default()
    }
}

pub(crate) fn nano() -> Tokenizer {
    Tokenizer::new(nano_spec()).unwrap()
}
