//! Ids against other implementations, special tokens, round trips, streams.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

mod common;

use std::sync::LazyLock;

use common::nano;
use muser_text::{
    EncodeOptions, Error, Special, StreamDecoder, TokenKind, Tokenizer, TokenizerSpec,
};
use proptest::prelude::*;

static NANO: LazyLock<Tokenizer> = LazyLock::new(nano);

const PLAIN: EncodeOptions = EncodeOptions {
    special: Special::Plain,
    add_bos: false,
};
const PARSE: EncodeOptions = EncodeOptions {
    special: Special::Parse,
    add_bos: false,
};

/// `nano-400.ids` are llama.cpp's: bos and the first 399 tokens of the text.
#[test]
fn equals_llama_cpp_on_a_story() {
    let text = include_str!("fixtures/nano-400.txt");
    let expected: Vec<u32> = include_str!("fixtures/nano-400.ids")
        .trim()
        .split(',')
        .map(|id| id.parse().unwrap())
        .collect();
    let options = EncodeOptions {
        add_bos: NANO.add_bos(),
        ..PLAIN
    };
    let ids = NANO.encode(text, options).unwrap();
    assert_eq!(expected.len(), 400);
    assert_eq!(ids[..400], expected);
    assert_eq!(ids.len(), 633);
    assert_eq!(NANO.decode(&ids, false).unwrap(), text);
}

/// `tokenizer-cases.json`: `[text, ids with special tokens plain, parsed]`, made
/// with the Python package `tokenizers` 0.23.3 (whose regular expressions are
/// Oniguruma's): BPE over the same vocabulary and merges; Split by the pattern
/// of o200k, isolated; ByteLevel without prefix space and without its own
/// pattern; for the third column the control tokens added as special tokens,
/// not normalised.
#[test]
fn equals_hugging_face_on_awkward_texts() {
    let cases: Vec<(String, Vec<u32>, Vec<u32>)> =
        serde_json::from_str(include_str!("fixtures/tokenizer-cases.json")).unwrap();
    assert!(cases.len() > 80);
    for (text, plain, parsed) in cases {
        assert_eq!(NANO.encode(&text, PLAIN).unwrap(), plain, "{text:?}");
        assert_eq!(NANO.encode(&text, PARSE).unwrap(), parsed, "{text:?}");
        assert_eq!(NANO.decode(&plain, false).unwrap(), text);
        assert_eq!(NANO.decode(&parsed, true).unwrap(), text);
    }
}

#[test]
fn control_tokens_only_where_the_caller_says_so() {
    let text = "a<|eot|>b";
    let eot = NANO.eot().unwrap();
    let parsed = NANO.encode(text, PARSE).unwrap();
    assert_eq!(parsed.iter().filter(|&&id| id == eot).count(), 1);
    let plain = NANO.encode(text, PLAIN).unwrap();
    assert!(plain.len() > 5 && plain.iter().all(|&id| !NANO.is_control(id)));
    assert_eq!(NANO.decode(&parsed, false).unwrap(), "ab");
    assert_eq!(NANO.decode(&parsed, true).unwrap(), text);
}

/// A vocabulary of single bytes, `ab`, and one token of each special type.
fn small() -> TokenizerSpec {
    let mut tokens: Vec<String> = (b'!'..=b'~')
        .map(|byte| char::from(byte).to_string())
        .collect();
    let mut types = vec![1; tokens.len()];
    for (text, kind) in [
        ("Ġ", 1),
        ("ab", 1),
        ("<eot>", 3),
        ("<unk>", 2),
        ("<user>", 4),
        ("<user><", 4),
        ("unused", 5),
        ("<0xFF>", 6),
        ("", 5),
    ] {
        tokens.push(text.into());
        types.push(kind);
    }
    TokenizerSpec {
        model: "gpt2".into(),
        pre: Some("gpt-4o".into()),
        tokens,
        token_types: Some(types),
        merges: vec!["a b".into()],
        ..TokenizerSpec::default()
    }
}

#[test]
fn each_type_of_token() {
    let tokenizer = Tokenizer::new(small()).unwrap();
    let id = |text: &str| tokenizer.id_of(text).unwrap();
    let text = "ab<eot><unk><user><user><eot>";
    // The longer user token takes `<` from `<eot>`, and so it is in llama.cpp.
    let parsed = tokenizer.encode(text, PARSE).unwrap();
    assert_eq!(
        parsed[..4],
        [id("ab"), id("<eot>"), id("<unk>"), id("<user><")]
    );
    assert_eq!(tokenizer.decode(&parsed, true).unwrap(), text);
    let plain = tokenizer.encode(text, PLAIN).unwrap();
    let letters = plain.iter().filter(|&&token| token != id("<user><"));
    assert_eq!((letters.count(), plain.len()), (21, 22));
    assert!(!plain.contains(&id("<eot>")) && !plain.contains(&id("<unk>")));
    assert_eq!(tokenizer.decode(&plain, false).unwrap(), text);
    assert_eq!(
        tokenizer
            .decode(&[id("<eot>"), id("<unk>"), id("<user>")], false)
            .unwrap(),
        "<user>"
    );
    assert_eq!(tokenizer.token_bytes(id("<0xFF>")).unwrap(), [0xFF]);
    assert_eq!(
        tokenizer.decode(&[id("<0xFF>")], false).unwrap(),
        "\u{fffd}"
    );
    assert_eq!(tokenizer.token_kind(id("unused")), Some(TokenKind::Unused));
}

#[test]
fn lookups() {
    assert_eq!(NANO.vocab_size(), 4096);
    for id in 0..4096 {
        assert_eq!(NANO.id_of(NANO.token_text(id).unwrap()), Some(id));
    }
    assert_eq!(
        NANO.token_bytes(NANO.id_of("ĠLand").unwrap()).unwrap(),
        b" Land"
    );
    assert_eq!(NANO.token_bytes(4088).unwrap(), b"<|begin_of_text|>");
    assert_eq!(
        (
            NANO.token_bytes(4096),
            NANO.token_text(4096),
            NANO.id_of("")
        ),
        (None, None, None)
    );
    assert_eq!(
        (NANO.bos(), NANO.eos(), NANO.eot()),
        (Some(4088), Some(4089), Some(4093))
    );
    assert_eq!(
        (NANO.eom(), NANO.unknown(), NANO.padding()),
        (None, None, Some(4095))
    );
    assert!(NANO.add_bos() && !NANO.add_eos());
}

#[test]
fn end_of_generation_is_a_set() {
    assert_eq!(NANO.eog().iter().collect::<Vec<_>>(), [4089, 4093]);
    let spec = TokenizerSpec {
        eos: Some(5),
        eom: Some(3),
        extra_eog: vec![5, 0],
        ..small()
    };
    let tokenizer = Tokenizer::new(spec).unwrap();
    assert_eq!(tokenizer.eog().iter().collect::<Vec<_>>(), [0, 3, 5]);
    assert!(tokenizer.eog().contains(3) && !tokenizer.eog().contains(4));
}

#[test]
fn what_cannot_be_encoded_or_decoded_is_named() {
    let tokenizer = Tokenizer::new(small()).unwrap();
    let error = tokenizer.encode("a<user>é", PLAIN).unwrap_err();
    let missing = Error::MissingByteToken {
        byte: 0xC3,
        offset: 7,
    };
    assert_eq!(error, missing);
    let options = EncodeOptions {
        add_bos: true,
        ..PLAIN
    };
    assert_eq!(tokenizer.encode("a", options), Err(Error::NoBos));
    let beyond = Error::IdOutOfRange {
        id: 4096,
        vocab_size: 4096,
    };
    assert_eq!(NANO.decode(&[1, 4096], false), Err(beyond.clone()));
    let mut stream = StreamDecoder::new(&NANO, false);
    assert_eq!(stream.push(4096), Err(beyond));
    assert_eq!(stream.finish(), "");
}

#[test]
fn contradictory_vocabularies_are_refused() {
    type Change = fn(&mut TokenizerSpec);
    let cases: [(Change, &str); 17] = [
        (
            |spec| spec.model = "llama".into(),
            "tokenizer model \"llama\" is not supported",
        ),
        (
            |spec| spec.pre = None,
            "tokenizer.ggml.pre is missing; known split rules: gpt-4o, llama4",
        ),
        (
            |spec| spec.pre = Some("qwen2".into()),
            "tokenizer.ggml.pre is \"qwen2\"",
        ),
        (|spec| spec.tokens.clear(), "the vocabulary is empty"),
        (
            |spec| spec.tokens.push("x1".into()),
            "token_type has 103 entries, the vocabulary 104",
        ),
        (
            |spec| spec.token_types.as_mut().unwrap()[7] = 9,
            "token 7 has type 9",
        ),
        (
            |spec| spec.tokens[3] = "!".into(),
            "token \"!\" is in the vocabulary twice, as 0 and 3",
        ),
        (
            |spec| spec.tokens[101] = "<0xF>".into(),
            "token 101 is of type byte, but its text is \"<0xF>\"",
        ),
        (
            |spec| spec.bos = Some(103),
            "bos_token_id is 103, the vocabulary has 103 tokens",
        ),
        (
            |spec| spec.extra_eog = vec![u32::MAX],
            "end-of-generation id is 4294967295",
        ),
        (
            |spec| spec.merges.push("ab".into()),
            "merge 1 (\"ab\"): expected two tokens",
        ),
        (
            |spec| spec.merges.push(" b".into()),
            "merge 1 (\" b\"): expected two tokens",
        ),
        (
            |spec| spec.merges.push("a zz".into()),
            "merge 1 (\"a zz\"): \"zz\" is not among",
        ),
        (
            |spec| spec.merges.push("b a".into()),
            "merge 1 (\"b a\"): \"ba\" is not among",
        ),
        (
            |spec| spec.merges.push("a b c".into()),
            "merge 1 (\"a b c\"): \"b c\" is not among",
        ),
        (
            |spec| spec.merges.push("a b".into()),
            "merge 1 (\"a b\"): the same as merge 0",
        ),
        // A merge that would make a control token from letters.
        (
            |spec| {
                spec.tokens[94] = "cd".into();
                spec.token_types.as_mut().unwrap()[94] = 3;
                spec.merges.push("c d".into());
            },
            "merge 1 (\"c d\"): \"cd\" is not among",
        ),
    ];
    for (change, expected) in cases {
        let mut spec = small();
        change(&mut spec);
        let error = Tokenizer::new(spec).expect_err(expected).to_string();
        assert!(error.contains(expected), "expected {expected}: {error}");
    }
}

/// A control token that is one letter: the letter has no token then.
#[test]
fn a_control_token_of_one_byte_is_not_made_from_text() {
    let mut spec = small();
    spec.token_types.as_mut().unwrap()[usize::from(b'z' - b'!')] = 3;
    let tokenizer = Tokenizer::new(spec).unwrap();
    let error = tokenizer.encode("az", PLAIN).unwrap_err();
    assert_eq!(
        error,
        Error::MissingByteToken {
            byte: b'z',
            offset: 1
        }
    );
    assert_eq!(tokenizer.encode("az", PARSE).unwrap().len(), 2);
}

/// Long runs, which a backtracking or quadratic encoder does not survive.
#[test]
fn long_texts_of_one_kind() {
    for unit in [
        "A", "a", " ", "\n", "漢", "!", "\u{301}", "9", " \n", "aB", "<|eot|>", "<|eot",
    ] {
        let text = unit.repeat(300_000 / unit.len());
        let ids = NANO.encode(&text, PLAIN).unwrap();
        assert_eq!(NANO.decode(&ids, false).unwrap(), text);
    }
}

#[test]
fn a_stream_gives_whole_characters_only() {
    let ids = NANO.encode("é😀!", PLAIN).unwrap();
    let mut stream = StreamDecoder::new(&NANO, false);
    let parts: Vec<String> = ids.iter().map(|&id| stream.push(id).unwrap()).collect();
    assert!(parts.contains(&String::new()));
    assert_eq!(parts.concat(), "é😀!");
    assert_eq!(stream.finish(), "");

    // The first byte of a character, then one that cannot follow it.
    let lead = NANO.id_of("Ã").unwrap();
    assert_eq!(NANO.token_bytes(lead).unwrap(), [0xC3]);
    assert_eq!(stream.push(lead).unwrap(), "");
    assert_eq!(stream.push(NANO.id_of("a").unwrap()).unwrap(), "\u{fffd}a");
    assert_eq!(stream.push(lead).unwrap(), "");
    assert_eq!(stream.finish(), "\u{fffd}");
    assert_eq!(stream.finish(), "");
}

fn stream(ids: &[u32], show_special: bool) -> String {
    let mut stream = StreamDecoder::new(&NANO, show_special);
    let mut text: String = ids.iter().map(|&id| stream.push(id).unwrap()).collect();
    text.push_str(&stream.finish());
    text
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    #[test]
    fn plain_text_comes_back(text in any::<String>()) {
        let ids = NANO.encode(&text, PLAIN).unwrap();
        prop_assert!(ids.iter().all(|&id| !NANO.is_control(id)));
        prop_assert_eq!(NANO.decode(&ids, false).unwrap(), text);
    }

    #[test]
    fn text_with_special_tokens_comes_back(text in "(<\\|eot\\|>|<\\|start\\|>|<|\\||[ a-zé\n]{0,4}){0,12}") {
        let plain = NANO.encode(&text, PLAIN).unwrap();
        prop_assert!(plain.iter().all(|&id| !NANO.is_control(id)));
        prop_assert_eq!(NANO.decode(&plain, false).unwrap(), text.as_str());
        let parsed = NANO.encode(&text, PARSE).unwrap();
        prop_assert_eq!(NANO.decode(&parsed, true).unwrap(), text);
    }

    /// Any ids, above all those of single bytes, which make broken UTF-8.
    #[test]
    fn a_stream_equals_the_whole(
        ids in prop::collection::vec(prop_oneof![0_u32..256, 0_u32..4096, 4088_u32..4096], 0..40),
        show_special: bool,
    ) {
        prop_assert_eq!(stream(&ids, show_special), NANO.decode(&ids, show_special).unwrap());
    }
}
