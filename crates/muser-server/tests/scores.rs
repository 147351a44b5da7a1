//! Log-probabilities: of prompts, of parts of characters, and where tokens are.

#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]

mod common;

use common::{complete, model, start};
use muser_engine::{LogProbs, Session};
use serde_json::{Value, json};

/// What the engine gives for each token after the first: its log-probability,
/// and the likeliest token's.
fn scored(tokens: &[u32]) -> Vec<(f64, f64)> {
    let mut session = Session::new(model(1), None).unwrap();
    let mut all = Vec::new();
    let mut each = |at: usize, row: &[f32]| {
        if let Some(&next) = tokens.get(at + 1) {
            let probs = LogProbs::new(row);
            all.push((probs.of(next).unwrap(), probs.top(1)[0].1));
        }
    };
    session.score(tokens, &mut each).unwrap();
    all
}

/// The list as JSON, to the last digit: null for the first, and more to come.
fn written(scored: &[(f64, f64)]) -> String {
    let each = scored
        .iter()
        .map(|(p, _)| serde_json::to_string(p).unwrap());
    let each: Vec<String> = each.collect();
    format!("\"token_logprobs\":[null,{},", each.join(","))
}

/// What lm-eval sends for a likelihood, and how it reads the answer.
#[test]
fn a_prompts_log_probabilities_are_the_engines() {
    let s = start();
    let prompts = [
        vec![5u32, 6, 7],
        vec![4088, 377, 274, 256, 482, 301, 820, 13],
    ];
    let body = json!({"prompt": prompts, "max_tokens": 1, "logprobs": 1, "echo": true,
        "temperature": 0, "seed": 1234});
    let reply = complete(s.address, body.clone());
    for prompt in &prompts {
        let list = written(&scored(prompt));
        assert!(reply.body.contains(&list), "{list}: {}", reply.body);
    }
    let whole = reply.ok();
    for (prompt, choice) in prompts.iter().zip(whole["choices"].as_array().unwrap()) {
        let probs = &choice["logprobs"];
        let all = probs["token_logprobs"].as_array().unwrap();
        assert_eq!(
            all.len(),
            prompt.len() + 1,
            "the prompt and one token, or the end"
        );
        assert!(all[0].is_null() && probs["top_logprobs"][0].is_null());
        let expected = scored(prompt);
        for (i, e) in expected.iter().enumerate() {
            let top = probs["top_logprobs"][i + 1].as_object().unwrap();
            let likeliest = top
                .values()
                .filter_map(Value::as_f64)
                .fold(f64::MIN, f64::max);
            assert!(
                (likeliest - e.1).abs() < 1e-12,
                "as the parser here reads it"
            );
            assert!(
                (1..=2).contains(&top.len()),
                "the likeliest, and the token itself"
            );
        }
    }
    // The same alone, cached or not, in a stream, and with several choices.
    let alone =
        json!({"prompt": prompts[1], "max_tokens": 0, "logprobs": 1, "echo": true, "seed": 7});
    let reply = complete(s.address, alone.clone());
    // Without a token behind it the list ends there.
    let list = written(&scored(&prompts[1]))
        .trim_end_matches(',')
        .to_owned()
        + "]";
    assert!(reply.body.contains(&list), "{list}: {}", reply.body);
    let zero = reply.ok()["choices"][0]["logprobs"].clone();
    let again = complete(s.address, alone.clone()).ok()["choices"][0]["logprobs"].clone();
    assert_eq!(again, zero);
    let mut several = alone.clone();
    several["n"] = 3.into();
    several["max_tokens"] = 4.into();
    let several = complete(s.address, several).ok();
    for choice in several["choices"].as_array().unwrap() {
        let tokens = choice["logprobs"]["token_logprobs"].as_array().unwrap();
        assert_eq!(Value::from(tokens[..8].to_vec()), zero["token_logprobs"]);
    }
    let mut streamed = alone;
    streamed["stream"] = true.into();
    streamed["max_tokens"] = 3.into();
    let whole = complete(s.address, {
        let mut body = streamed.clone();
        body["stream"] = false.into();
        body
    });
    let whole = whole.ok()["choices"][0].clone();
    let events = complete(s.address, streamed).events();
    for key in ["tokens", "token_logprobs", "top_logprobs", "text_offset"] {
        let lists = events.iter().map(|e| &e["choices"][0]["logprobs"][key]);
        let joined: Vec<Value> = lists
            .filter_map(Value::as_array)
            .flatten()
            .cloned()
            .collect();
        assert_eq!(Value::from(joined), whole["logprobs"][key], "{key}");
    }
    let text: String = events
        .iter()
        .filter_map(|e| e["choices"][0]["text"].as_str())
        .collect();
    assert_eq!(text, whole["text"].as_str().unwrap());
}

#[test]
fn an_echoed_text_has_its_tokens_at_their_offsets() {
    let s = start();
    let prompt = "Once upon a time, na\u{ef}ve \u{1f98a}!";
    let body = json!({"prompt": prompt, "max_tokens": 5, "logprobs": 0, "echo": true, "seed": 2});
    let choice = complete(s.address, body).ok()["choices"][0].clone();
    let text: Vec<char> = choice["text"].as_str().unwrap().chars().collect();
    assert!(text.iter().collect::<String>().starts_with(prompt));
    let probs = &choice["logprobs"];
    let tokens = probs["tokens"].as_array().unwrap();
    for (token, at) in tokens.iter().zip(probs["text_offset"].as_array().unwrap()) {
        let (token, at) = (token.as_str().unwrap(), at.as_u64().unwrap() as usize);
        if token.starts_with("<|") || token.starts_with("bytes:") {
            continue;
        }
        let there: String = text[at..].iter().take(token.chars().count()).collect();
        assert_eq!(there, token);
    }
    assert!(
        tokens
            .iter()
            .any(|t| t.as_str().unwrap().starts_with("bytes:\\x"))
    );
}

#[test]
fn parts_of_characters_have_keys_and_offsets_of_their_own() {
    let s = start();
    // Tokens that are the bytes of a character, whatever the model would say.
    let body = json!({"prompt": "Once upon", "max_tokens": 8, "temperature": 0, "logprobs": 3,
        "frequency_penalty": 20, "logit_bias": {"162": 100, "245": 99, "98": 98}});
    let choice = complete(s.address, body).ok()["choices"][0].clone();
    let probs = &choice["logprobs"];
    assert_eq!(probs["text_offset"], json!([0, 0, 0, 1, 1, 1, 2, 2]));
    for token in probs["tokens"].as_array().unwrap() {
        assert!(token.as_str().unwrap().starts_with("bytes:\\x"), "{token}");
    }
    assert_eq!(choice["text"].as_str().unwrap().chars().count(), 3);
    let body = json!({"prompt": "Once upon", "max_tokens": 8, "temperature": 0, "logprobs": 20,
        "frequency_penalty": 20, "logit_bias": {"162": 100, "245": 99, "98": 98}});
    let choice = complete(s.address, body).ok()["choices"][0].clone();
    for top in choice["logprobs"]["top_logprobs"].as_array().unwrap() {
        // Twenty, and the token itself where it is none of them.
        assert!((20..=21).contains(&top.as_object().unwrap().len()), "{top}");
    }
}

/// The tokens of a stop string were sampled: they are counted and have their
/// log-probabilities, though their text is not shown.
#[test]
fn tokens_of_a_stop_string_have_theirs() {
    let s = start();
    let body = json!({"prompt": "Once upon a time", "max_tokens": 40, "temperature": 0,
        "logprobs": 0});
    let free = complete(s.address, body.clone()).ok()["choices"][0].clone();
    let text = free["text"].as_str().unwrap();
    let stop: String = text.chars().skip(20).take(9).collect();
    let mut stopped = body;
    stopped["stop"] = stop.as_str().into();
    let whole = complete(s.address, stopped).ok();
    let choice = &whole["choices"][0];
    assert_eq!(
        choice["text"].as_str().unwrap(),
        &text[..text.find(&stop).unwrap()]
    );
    let tokens = choice["logprobs"]["tokens"].as_array().unwrap();
    assert_eq!(
        whole["usage"]["completion_tokens"].as_u64(),
        Some(tokens.len() as u64)
    );
    let sampled: String = tokens.iter().map(|t| t.as_str().unwrap()).collect();
    assert!(sampled.contains(&stop) && text.starts_with(&sampled));
}
