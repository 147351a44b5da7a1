//! The routes that OpenAI's clients use: shapes, parameters, streams.

#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]

mod common;

use common::{chat, complete, get, post, start, user};
use serde_json::{Value, json};

#[test]
fn models_are_listed_and_found() {
    let s = start();
    let list = get(s.address, "/v1/models").ok();
    assert_eq!(list["object"], "list");
    assert_eq!(list["data"][0]["id"], "nano");
    assert_eq!(get(s.address, "/v1/models/nano").ok()["object"], "model");
    let other = get(s.address, "/v1/models/other");
    assert_eq!(other.status, 404);
    assert_eq!(other.json()["error"]["code"], "model_not_found");
}

/// The text of a streamed choice, its finish reason, and its log-probabilities.
fn joined(events: &[Value], choice: usize) -> (String, Value, Vec<Value>) {
    let (mut text, mut finish, mut probs) = (String::new(), Value::Null, Vec::new());
    for e in events {
        for c in e["choices"].as_array().unwrap() {
            if c["index"] != choice {
                continue;
            }
            assert!(finish.is_null(), "something follows the end");
            let piece = c["text"].as_str().or(c["delta"]["content"].as_str());
            text += piece.unwrap_or_default();
            probs.extend(
                c["logprobs"]["content"]
                    .as_array()
                    .cloned()
                    .unwrap_or_default(),
            );
            finish = c["finish_reason"].clone();
        }
    }
    (text, finish, probs)
}

#[test]
fn a_completion_whole_and_in_a_stream_is_the_same() {
    let s = start();
    let body = json!({"model": "nano", "prompt": "Once upon a time", "max_tokens": 24,
        "temperature": 0.8, "seed": 5, "logprobs": 2});
    let whole = complete(s.address, body.clone()).ok();
    assert_eq!(whole["object"], "text_completion");
    assert!(whole["id"].as_str().unwrap().starts_with("cmpl-"));
    let choice = &whole["choices"][0];
    assert_eq!(choice["finish_reason"], "length");
    let text = choice["text"].as_str().unwrap();
    assert!(text.len() > 20, "{text:?}");
    let probs = &choice["logprobs"];
    for key in ["tokens", "token_logprobs", "top_logprobs", "text_offset"] {
        assert_eq!(probs[key].as_array().unwrap().len(), 24, "{key}");
    }
    let tokens: String = probs["tokens"]
        .as_array()
        .unwrap()
        .iter()
        .map(|t| t.as_str().unwrap())
        .collect();
    assert_eq!(tokens, text);
    let usage = &whole["usage"];
    assert_eq!(usage["completion_tokens"], 24);
    let prompt = usage["prompt_tokens"].as_u64().unwrap();
    assert_eq!(usage["total_tokens"], prompt + 24);

    let mut streamed = body.clone();
    streamed["stream"] = true.into();
    streamed["stream_options"] = json!({"include_usage": true});
    let mut events = complete(s.address, streamed).events();
    let last = events.pop().unwrap();
    assert_eq!(last["choices"], json!([]));
    assert_eq!(last["usage"]["completion_tokens"], 24);
    assert!(
        events
            .iter()
            .all(|e| e["usage"].is_null() && e.get("usage").is_some())
    );
    let (streamed_text, finish, _) = joined(&events, 0);
    assert_eq!((streamed_text.as_str(), finish), (text, "length".into()));
    let pieces = events.iter().flat_map(|e| {
        e["choices"][0]["logprobs"]["token_logprobs"]
            .as_array()
            .cloned()
            .unwrap_or_default()
    });
    assert_eq!(
        Value::from(pieces.collect::<Vec<_>>()),
        probs["token_logprobs"]
    );
    let offsets = events.iter().flat_map(|e| {
        e["choices"][0]["logprobs"]["text_offset"]
            .as_array()
            .cloned()
            .unwrap_or_default()
    });
    assert_eq!(
        Value::from(offsets.collect::<Vec<_>>()),
        probs["text_offset"]
    );
}

#[test]
fn a_chat_whole_and_in_a_stream_is_the_same() {
    let s = start();
    let body = json!({"messages": user("Tell me a story about a brave little rabbit."),
        "max_completion_tokens": 40, "seed": 1, "logprobs": true, "top_logprobs": 3});
    let whole = chat(s.address, body.clone()).ok();
    assert_eq!(whole["object"], "chat.completion");
    let choice = &whole["choices"][0];
    assert_eq!(choice["message"]["role"], "assistant");
    let text = choice["message"]["content"].as_str().unwrap();
    assert!(text.len() > 30, "{text:?}");
    assert!(
        !text.contains("to=user"),
        "the header is no part of it: {text:?}"
    );
    let probs = choice["logprobs"]["content"].as_array().unwrap();
    // The header's tokens are counted, but no part of the answer.
    let counted = whole["usage"]["completion_tokens"].as_u64().unwrap() as usize;
    assert!(probs.len() < counted && probs.len() + 8 > counted);
    for p in probs {
        assert!(p["logprob"].as_f64().unwrap() <= 0.0);
        let bytes: Vec<u8> = serde_json::from_value(p["bytes"].clone()).unwrap();
        assert_eq!(
            String::from_utf8_lossy(&bytes),
            p["token"].as_str().unwrap()
        );
        let top = p["top_logprobs"].as_array().unwrap();
        assert_eq!(top.len(), 3);
        assert!(top[0]["logprob"].as_f64() >= top[1]["logprob"].as_f64());
        assert!(top[0]["logprob"].as_f64() >= p["logprob"].as_f64());
    }
    let mut streamed = body;
    streamed["stream"] = true.into();
    let events = chat(s.address, streamed).events();
    assert_eq!(events[0]["choices"][0]["delta"]["role"], "assistant");
    assert!(
        events
            .iter()
            .all(|e| e["object"] == "chat.completion.chunk")
    );
    assert!(events.iter().all(|e| e.get("usage").is_none()));
    let (streamed_text, finish, streamed_probs) = joined(&events, 0);
    assert_eq!(streamed_text, text);
    assert_eq!(finish, choice["finish_reason"]);
    assert_eq!(&streamed_probs, probs);
}

#[test]
fn a_stop_string_ends_the_answer_and_is_no_part_of_it() {
    let s = start();
    let body = json!({"prompt": "Once upon a time", "max_tokens": 60, "temperature": 0});
    let free = complete(s.address, body.clone()).ok();
    let text = free["choices"][0]["text"].as_str().unwrap().to_owned();
    let word = text.split(' ').nth(6).unwrap();
    let before = &text[..text.find(word).unwrap()];
    let mut stopped = body;
    stopped["stop"] = json!([word, "never written"]);
    let whole = complete(s.address, stopped.clone()).ok();
    assert_eq!(whole["choices"][0]["text"], before);
    assert_eq!(whole["choices"][0]["finish_reason"], "stop");
    assert!(
        whole["usage"]["completion_tokens"].as_u64() < free["usage"]["completion_tokens"].as_u64()
    );
    stopped["stream"] = true.into();
    stopped["stop"] = word.into();
    let (streamed, finish, _) = joined(&complete(s.address, stopped).events(), 0);
    assert_eq!((streamed.as_str(), finish), (before, "stop".into()));
}

#[test]
fn several_choices_and_prompts_each_have_their_index_and_seed() {
    let s = start();
    let body = json!({"prompt": ["Once", "The fox"], "n": 2, "seed": 7, "max_tokens": 8});
    let whole = complete(s.address, body.clone()).ok();
    let texts: Vec<&str> = (0..4)
        .map(|i| {
            assert_eq!(whole["choices"][i]["index"], i);
            whole["choices"][i]["text"].as_str().unwrap()
        })
        .collect();
    assert_eq!(whole["usage"]["completion_tokens"], 32);
    assert_ne!(texts[0], texts[1]);
    // Choice i of a prompt is what seed + i gives.
    for (i, (prompt, seed)) in [("Once", 7), ("Once", 8), ("The fox", 7), ("The fox", 8)]
        .into_iter()
        .enumerate()
    {
        let one = complete(
            s.address,
            json!({"prompt": prompt, "seed": seed, "max_tokens": 8}),
        )
        .ok();
        assert_eq!(one["choices"][0]["text"], texts[i], "{i}");
    }
    let mut streamed = body;
    streamed["stream"] = true.into();
    let events = complete(s.address, streamed).events();
    for (i, text) in texts.iter().enumerate() {
        assert_eq!(joined(&events, i).0, *text);
    }
}

#[test]
fn parameters_do_what_they_say() {
    let s = start();
    let text = |extra: Value| {
        let mut body = json!({"prompt": "Once upon a time", "max_tokens": 12, "seed": 3});
        body.as_object_mut()
            .unwrap()
            .extend(extra.as_object().unwrap().clone());
        complete(s.address, body).ok()["choices"][0]["text"]
            .as_str()
            .unwrap()
            .to_owned()
    };
    let greedy = text(json!({"temperature": 0}));
    assert_eq!(text(json!({"top_k": 1})), greedy);
    assert_eq!(text(json!({"top_p": 1e-6})), greedy);
    assert_eq!(text(json!({"min_p": 1})), greedy);
    assert_eq!(
        text(json!({"temperature": 0, "cache_prompt": false})),
        greedy
    );
    assert_ne!(text(json!({"temperature": 1.5})), greedy);
    assert_eq!(text(json!({})), text(json!({"seed": 3})));
    assert_ne!(text(json!({})), text(json!({"seed": -4})));
    let content =
        |text: &str| post(s.address, "/tokenize", &json!({"content": text})).ok()["tokens"].clone();
    let first = content(&greedy)[0].to_string();
    assert_ne!(
        text(json!({"temperature": 0, "logit_bias": {first.clone(): -100}})),
        greedy
    );
    let only = content(" the")[0].to_string();
    assert_eq!(
        text(json!({"temperature": 0, "logit_bias": {only: 100}, "max_tokens": 3})),
        " the the the"
    );
    assert_ne!(
        text(json!({"temperature": 0, "frequency_penalty": 2.0, "presence_penalty": 2.0})),
        greedy
    );
    assert_ne!(
        text(json!({"temperature": 0, "repeat_penalty": 50, "repeat_last_n": 1000})),
        greedy
    );
    assert!(text(json!({"echo": true, "max_tokens": 1})).starts_with("Once upon a time"));
    assert_eq!(text(json!({"max_tokens": 0})), "");
    // Token ids are a prompt as well as their text.
    let ids = post(
        s.address,
        "/tokenize",
        &json!({"content": "Once upon a time", "add_special": true}),
    )
    .ok();
    assert_eq!(
        text(json!({"prompt": ids["tokens"], "temperature": 0})),
        greedy
    );
}

#[test]
fn an_answer_may_fill_the_context_and_no_more() {
    let s = start();
    let whole = complete(
        s.address,
        json!({"prompt": "Once", "max_tokens": 5000, "ignore_eos": true}),
    )
    .ok();
    let usage = &whole["usage"];
    // The last token needs no position: nothing is evaluated after it.
    assert_eq!(usage["total_tokens"], 513);
    assert_eq!(whole["choices"][0]["finish_reason"], "length");
    let long = "word ".repeat(600);
    for reply in [
        complete(s.address, json!({"prompt": long})),
        chat(s.address, json!({"messages": user(&long)})),
    ] {
        assert_eq!(reply.status, 400);
        assert_eq!(reply.json()["error"]["code"], "context_length_exceeded");
    }
}

#[test]
fn embeddings_have_length_one_and_differ() {
    let s = start();
    let body = json!({"input": ["a small fox", "a small fox", "rain"], "model": "nano"});
    let whole = post(s.address, "/v1/embeddings", &body).ok();
    let vector = |i: usize| -> Vec<f64> {
        serde_json::from_value(whole["data"][i]["embedding"].clone()).unwrap()
    };
    let (a, b, c) = (vector(0), vector(1), vector(2));
    assert_eq!(a.len(), 512);
    assert_eq!(a, b);
    let dot = |x: &[f64], y: &[f64]| x.iter().zip(y).map(|(x, y)| x * y).sum::<f64>();
    assert!((dot(&a, &a) - 1.0).abs() < 1e-5);
    assert!(dot(&a, &c) < 0.999);
    assert!(whole["usage"]["prompt_tokens"].as_u64().unwrap() > 4);
    let encoded = post(
        s.address,
        "/v1/embeddings",
        &json!({"input": "a small fox", "encoding_format": "base64"}),
    )
    .ok();
    use base64::Engine as _;
    let bytes = base64::prelude::BASE64_STANDARD
        .decode(encoded["data"][0]["embedding"].as_str().unwrap())
        .unwrap();
    let floats: Vec<f64> = bytes
        .as_chunks::<4>()
        .0
        .iter()
        .map(|b| f64::from(f32::from_le_bytes(*b)))
        .collect();
    assert!(floats.iter().zip(&a).all(|(x, y)| *x as f32 == *y as f32));
}
