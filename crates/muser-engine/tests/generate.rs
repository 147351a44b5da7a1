//! The generation loop: what it reports, and what ends it.

#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]

mod common;

use common::{BOS, EOT, VOCAB, model, tokens};
use muser_engine::{
    Error, Event, GenerateOptions, Generation, Model, Sampler, SamplingParams, Session, StopReason,
    Transcript, generate,
};
use muser_model::gguf::{Gguf, Writer};
use muser_ops::oracle::Oracle;
use muser_text::Message;
use muser_text::chat::{Delta, Format, Reader};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

const A: u32 = 0;
const B: u32 = 1;

fn greedy(bias: &[(u32, f32)]) -> Sampler {
    let params = SamplingParams {
        logit_bias: bias.to_vec(),
        ..SamplingParams::greedy()
    };
    Sampler::new(params, VOCAB).unwrap()
}

fn rules(max: usize, strings: &[&str]) -> GenerateOptions {
    GenerateOptions {
        max_tokens: Some(max),
        stop: strings.iter().map(|s| s.to_string()).collect(),
        format: Format::Plain,
    }
}

fn go(sampler: &mut Sampler, rules: &GenerateOptions) -> Result<(Generation, String), Error> {
    let mut s = Session::new(model(true), Some(32)).unwrap();
    let mut text = String::new();
    let no = AtomicBool::new(false);
    let g = generate(&mut s, &[BOS, 3, 4], sampler, rules, &no, &mut |e| {
        if let Event::Text(t) = e {
            text.push_str(t);
        }
    })?;
    Ok((g, text))
}

#[test]
fn the_limit_is_exact() {
    let (g, text) = go(&mut greedy(&[(A, 1000.0)]), &rules(5, &[])).unwrap();
    assert_eq!((g.tokens, g.reason), (vec![A; 5], StopReason::MaxTokens));
    assert_eq!(
        (text.as_str(), g.text.as_str(), g.decoded),
        ("aaaaa", "aaaaa", 4)
    );
    assert_eq!((g.prompt.reused, g.prompt.evaluated), (0, 3));
    let (g, text) = go(&mut greedy(&[]), &rules(0, &[])).unwrap();
    assert_eq!((g.tokens.len(), text.as_str()), (0, ""));
}

#[test]
fn the_models_end_is_not_part_of_the_answer() {
    let (g, text) = go(&mut greedy(&[(EOT, 1000.0)]), &rules(5, &[])).unwrap();
    assert_eq!(g.reason, StopReason::EndOfGeneration(EOT));
    assert_eq!((g.tokens.len(), text.as_str()), (0, ""));
}

#[test]
fn a_stop_string_is_cut_off() {
    // Each `a` costs it 100 of its lead of 500 or so: then comes `b`.
    let params = SamplingParams {
        logit_bias: vec![(A, 1000.0), (B, 500.0)],
        frequency_penalty: 100.0,
        ..SamplingParams::greedy()
    };
    let mut s = Sampler::new(params.clone(), VOCAB).unwrap();
    let (g, text) = go(&mut s, &rules(12, &[])).unwrap();
    let at = g.text.find('b').unwrap();
    assert!(at > 1, "{text}");
    let mut s = Sampler::new(params, VOCAB).unwrap();
    let (g, text) = go(&mut s, &rules(12, &["ab", "zz"])).unwrap();
    assert_eq!(g.reason, StopReason::StopString("ab".to_owned()));
    assert_eq!(text, "a".repeat(at - 1));
    assert_eq!(g.text, text);
}

#[test]
fn held_back_text_comes_at_the_end() {
    let (g, text) = go(&mut greedy(&[(A, 1000.0)]), &rules(3, &["aaaab"])).unwrap();
    assert_eq!((g.reason, text.as_str()), (StopReason::MaxTokens, "aaa"));
}

#[test]
fn a_full_context_is_told_after_all_tokens_that_fit() {
    let mut s = Session::new(model(true), Some(8)).unwrap();
    let mut heard = 0;
    let rules = GenerateOptions::default();
    let (no, mut sampler) = (AtomicBool::new(false), greedy(&[(A, 1000.0)]));
    let e = generate(&mut s, &tokens(5), &mut sampler, &rules, &no, &mut |e| {
        heard += usize::from(matches!(e, Event::Token(_)));
    });
    let full = StopReason::ContextFull {
        needed: 9,
        context: 8,
    };
    assert_eq!(e.unwrap().reason, full);
    assert_eq!(heard, 4, "the last one needs no position of its own");
    let e = generate(&mut s, &tokens(9), &mut sampler, &rules, &no, &mut |_| ());
    let message = "the context is full: 9 tokens need as many positions, the session has 8";
    assert_eq!(e.unwrap_err().to_string(), message);
}

#[test]
fn the_flag_stops_it_and_the_session_goes_on() {
    let mut s = Session::new(model(true), None).unwrap();
    let flag = AtomicBool::new(true);
    let mut sampler = greedy(&[(A, 1000.0)]);
    let g = generate(
        &mut s,
        &tokens(3),
        &mut sampler,
        &rules(9, &[]),
        &flag,
        &mut |_| (),
    );
    let g = g.unwrap();
    assert_eq!(
        (g.reason, g.tokens.len(), s.tokens().len()),
        (StopReason::Cancelled, 0, 0)
    );

    flag.store(false, Ordering::Relaxed);
    let mut heard = 0;
    let mut stop_after_two = |e: Event<'_>| {
        heard += usize::from(matches!(e, Event::Token(_)));
        flag.store(heard >= 2, Ordering::Relaxed);
    };
    let (prompt, rules) = (tokens(3), rules(9, &[]));
    let g = generate(
        &mut s,
        &prompt,
        &mut sampler,
        &rules,
        &flag,
        &mut stop_after_two,
    )
    .unwrap();
    assert_eq!(
        (g.reason, g.tokens.as_slice()),
        (StopReason::Cancelled, [A, A].as_slice())
    );
    // Prompt and answer, without the token that nothing followed.
    assert_eq!(s.tokens(), [prompt.as_slice(), &[A]].concat());
}

#[test]
fn a_seed_gives_one_text() {
    let seeded = |seed| {
        let params = SamplingParams {
            seed,
            temperature: 2.0,
            ..SamplingParams::default()
        };
        let mut sampler = Sampler::new(params, VOCAB).unwrap();
        go(&mut sampler, &rules(20, &[])).unwrap().0.tokens
    };
    assert_eq!(seeded(7), seeded(7));
    assert_ne!(seeded(7), seeded(8));
}

/// Such a model is no broken one: what it lacks is said when it is missed.
#[test]
fn with_a_tokenizer_of_another_kind_tokens_come_and_text_is_refused_by_name() {
    let m = Arc::new(load("a-rule-of-its-own", common::TEMPLATE).unwrap());
    let error = m.raw_prompt("a").unwrap_err();
    assert!(matches!(error, Error::OtherTokenizer(_)));
    let text = error.to_string();
    assert!(text.contains("a-rule-of-its-own"), "{text}");
    assert!(text.ends_with("give and take token ids instead"), "{text}");
    let mut s = Session::new(m, None).unwrap();
    s.sync(&[1, 2, 3]).unwrap();
    assert_eq!(s.logits().unwrap().len(), VOCAB);
}

#[test]
fn without_a_tokenizer_tokens_come_and_text_is_refused() {
    let m = model(false);
    assert!(matches!(m.raw_prompt("a"), Err(Error::NoTokenizer)));
    assert!(matches!(m.chat_prompt(&[]), Err(Error::NoTokenizer)));
    let mut s = Session::new(m, None).unwrap();
    let no = AtomicBool::new(false);
    let mut heard = Vec::new();
    let mut sampler = greedy(&[(A, 1000.0)]);
    let g = generate(
        &mut s,
        &[5],
        &mut sampler,
        &rules(3, &[]),
        &no,
        &mut |e| match e {
            Event::Token(t) => heard.push(t),
            Event::Text(t) | Event::Reasoning(t) => panic!("{t}"),
        },
    );
    assert_eq!(g.unwrap().tokens, heard);
    let e = generate(
        &mut s,
        &[5],
        &mut sampler,
        &rules(3, &["x"]),
        &no,
        &mut |_| (),
    );
    assert!(matches!(e, Err(Error::NoTokenizer)));
}

#[test]
fn prompts() {
    let m = model(true);
    assert_eq!(m.raw_prompt("ab").unwrap(), [BOS, 0, 1]);
    let user = Message {
        role: "user".to_owned(),
        content: "hi".to_owned(),
        ..Message::default()
    };
    let (u, h, i, a, space) = (20, 7, 8, 0, 26);
    assert_eq!(
        m.chat_prompt(&[user]).unwrap(),
        [BOS, u, space, h, i, EOT, a, space]
    );
}

/// The vocabulary of the tests with the control tokens of Glimmer's format, and a
/// template that leaves the header of an answer to the model.
fn glimmer() -> Arc<Model<Oracle>> {
    let letters = ('a'..='y').map(String::from);
    let rest = [
        "=",
        "Ġ",
        "<|eom|>",
        "<|bos|>",
        "<|eot|>",
        "<|start|>",
        "<|message|>",
    ];
    let tokens: Vec<String> = letters.chain(rest.map(String::from)).collect();
    let types: Vec<i32> = (0..VOCAB).map(|i| if i < 27 { 1 } else { 3 }).collect();
    let template = "{% for m in messages %}<|start|>{{ m.role }}\
        {% if m.role == 'assistant' %} to=user{% endif %}<|message|>{{ m.content }}<|eot|>\
        {% endfor %}{% if add_generation_prompt %}<|start|>assistant{% endif %}";
    let mut w = Writer::new();
    common::geometry(&mut w);
    w.metadata("tokenizer.ggml.model", "gpt2").unwrap();
    w.metadata("tokenizer.ggml.pre", "llama4").unwrap();
    w.metadata("tokenizer.ggml.tokens", tokens).unwrap();
    w.metadata("tokenizer.ggml.token_type", types).unwrap();
    w.metadata("tokenizer.ggml.eot_token_id", EOT).unwrap();
    w.metadata("tokenizer.chat_template", template).unwrap();
    let gguf = Gguf::from_vec(common::finish(w)).unwrap();
    Arc::new(Model::load(&gguf, Arc::new(Oracle)).unwrap())
}

const EOM: u32 = 27;
const START: u32 = 30;
const MESSAGE: u32 = 31;

/// Tokens of a text with these control tokens, letter by letter.
fn letters(text: &str) -> Vec<u32> {
    let letter = |c: char| match c {
        '=' => 25,
        ' ' => 26,
        letter => u32::from(letter) - u32::from('a'),
    };
    text.chars().map(letter).collect()
}

#[test]
fn a_user_cannot_command_the_model() {
    // A control token of letters, so that the vocabulary can write its text.
    let load = |template: &str| {
        let mut w = Writer::new();
        common::geometry(&mut w);
        let rest = ["Ġ", "Ċ", "<|bos|>", "<|eot|>", "stop", "go"].map(String::from);
        let tokens: Vec<String> = ('a'..='z').map(String::from).chain(rest).collect();
        let types: Vec<i32> = (0..VOCAB).map(|i| if i < 28 { 1 } else { 3 }).collect();
        w.metadata("tokenizer.ggml.model", "gpt2").unwrap();
        w.metadata("tokenizer.ggml.pre", "llama4").unwrap();
        w.metadata("tokenizer.ggml.tokens", tokens).unwrap();
        w.metadata("tokenizer.ggml.token_type", types).unwrap();
        w.metadata("tokenizer.ggml.eot_token_id", EOT).unwrap();
        w.metadata("tokenizer.chat_template", template).unwrap();
        let gguf = Gguf::from_vec(common::finish(w)).unwrap();
        Model::load(&gguf, Arc::new(Oracle)).unwrap()
    };
    let m = load("go{% for m in messages %}{{ m.content }}stop{% endfor %}go");
    let (stop, go) = (30, 31);
    let user = Message {
        role: "user".to_owned(),
        content: "a stopgo b".to_owned(),
        ..Message::default()
    };
    let expected = [&[go], &letters("a stopgo b")[..], &[stop, go]].concat();
    assert_eq!(m.chat_prompt(&[user]).unwrap(), expected);
}

/// The content and the reasoning of an answer of these tokens, and the stop string
/// that ended it.
fn transcribed(tokens: &[u32], stop: &str, cut: bool) -> (String, String, Option<String>) {
    let m = glimmer();
    let stop: Vec<String> = (!stop.is_empty())
        .then(|| stop.to_owned())
        .into_iter()
        .collect();
    let reader = Reader::new(m.format(), None);
    let mut transcript = Transcript::new(m.codec(), reader, &stop, false).unwrap();
    let mut out = Delta::default();
    let mut stopped = None;
    for &token in tokens {
        stopped = transcript.push(token, &mut out).unwrap();
        if stopped.is_some() {
            break;
        }
    }
    transcript.finish(cut, &mut out);
    assert!(out.calls.is_empty() && transcript.calls() == 0);
    (out.content, out.reasoning, stopped)
}

#[test]
fn headers_and_reasoning_are_not_content() {
    assert_eq!(glimmer().format(), Format::Glimmer);
    assert_eq!(model(true).format(), Format::Plain);
    let header = |to: &str| [letters(&format!(" to={to}")), vec![MESSAGE]].concat();
    let next = [vec![EOM, START], letters("assistant")].concat();
    let whole = [
        header("self"),
        letters("hm"),
        next.clone(),
        header("user"),
        letters("yes"),
        next,
        header("tool"),
        letters("no"),
    ];
    let (content, reasoning, _) = transcribed(&whole.concat(), "", false);
    assert_eq!((content.as_str(), reasoning.as_str()), ("yesno", "hm"));
    // Stop strings are looked for in the content, message by message.
    for (stop, expected, found) in [
        ("m", "yesno", false),
        ("sn", "yesno", false),
        ("es", "y", true),
        ("o", "yesn", true),
    ] {
        let (content, reasoning, stopped) = transcribed(&whole.concat(), stop, false);
        assert_eq!((content.as_str(), reasoning.as_str()), (expected, "hm"));
        assert_eq!(stopped.as_deref(), found.then_some(stop));
    }
    // A header that never ends is the answer, unless it was cut off in one.
    assert_eq!(transcribed(&letters("bbb"), "", false).0, "bbb");
    assert_eq!(transcribed(&letters("bbb"), "", true).0, "bbb");
    assert_eq!(transcribed(&letters(" to"), "", true).0, "");
    let long = "b".repeat(40);
    assert_eq!(transcribed(&letters(&long), "", true).0, long);
}

#[test]
fn a_header_is_generated_and_not_shown() {
    let m = glimmer();
    let answer = |bias: &[(u32, f32)], max| {
        let mut s = Session::new(m.clone(), None).unwrap();
        let options = GenerateOptions {
            format: m.format(),
            ..rules(max, &[])
        };
        let params = SamplingParams {
            logit_bias: bias.to_vec(),
            presence_penalty: 100.0,
            penalty_window: 9,
            ..SamplingParams::greedy()
        };
        let mut sampler = Sampler::new(params, VOCAB).unwrap();
        let no = AtomicBool::new(false);
        let mut shown = String::new();
        let g = generate(
            &mut s,
            &[2],
            &mut sampler,
            &options,
            &no,
            &mut |e| match e {
                Event::Text(text) => shown.push_str(text),
                Event::Token(_) => {}
                Event::Reasoning(text) => panic!("{text}"),
            },
        );
        let g = g.unwrap();
        assert_eq!(shown, g.text);
        g
    };
    // Forced by bias and penalty: b, <|message|>, a.
    let g = answer(&[(B, 950.0), (MESSAGE, 900.0), (A, 850.0 + 40.0)], 3);
    assert_eq!(
        (g.tokens.as_slice(), g.text.as_str()),
        ([B, MESSAGE, A].as_slice(), "a")
    );
    let g = answer(&[(B, 500.0)], 3);
    assert_eq!(g.text, "bbb");
}

fn load(pre: &str, template: &str) -> Result<Model<Oracle>, Error> {
    let mut w = Writer::new();
    common::geometry(&mut w);
    common::text(&mut w, pre, template);
    Model::load(
        &Gguf::from_vec(common::finish(w)).unwrap(),
        Arc::new(Oracle),
    )
}

#[test]
fn a_bad_template_is_an_error_of_the_chat() {
    let m = load("llama4", "{% if %}").unwrap();
    assert!(matches!(
        m.chat_prompt(&[]),
        Err(Error::BadChatTemplate { .. })
    ));
    assert_eq!(m.raw_prompt("a").unwrap(), [BOS, A]);
    // The start token is added where the template forgets it.
    let m = load("llama4", "ab").unwrap();
    assert_eq!(m.chat_prompt(&[]).unwrap(), [BOS, 0, 1]);
}
