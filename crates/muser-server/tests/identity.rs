//! Every answer has the bits that it would have alone, whatever else runs.

#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]

mod common;

use common::{JSON, chat, complete, connect, head, limits, start_with, user};
use muser_server::Limits;
use serde_json::{Value, json};
use std::io::{Read as _, Write as _};
use std::net::SocketAddr;

/// One of the 64: its route and body, and whether the client goes away early.
#[derive(Clone)]
struct Case {
    chat: bool,
    body: Value,
    cancelled: bool,
}

/// Long and short, streamed and not, chats and texts, n = 2, prefixes that
/// others share, greedy and not, constrained, and some that are given up.
fn cases() -> Vec<Case> {
    let opening = "Once upon a time there was a small fox who lived by the river. ".repeat(4);
    (0..64u64)
        .map(|i| {
            let chat = i % 2 == 1;
            let text = match i % 5 {
                0 => format!("Story {i}"),
                1 => opening.clone(),
                2 => format!("{opening}Every day"),
                3 => format!("{opening}But then, number {i}"),
                _ => "The rain ".repeat(1 + (i as usize * 7) % 60),
            };
            let length = [3, 9, 21, 40][i as usize % 4];
            let temperature = [0.0, 0.7, 1.0][i as usize % 3];
            let mut body = json!({
                "seed": i / 3,
                "max_tokens": length,
                "temperature": temperature,
                "stream": i % 3 == 0,
            });
            let map = body.as_object_mut().unwrap();
            if chat {
                map.insert("messages".into(), user(&text));
                map.insert("logprobs".into(), true.into());
                map.insert("top_logprobs".into(), 2.into());
            } else {
                map.insert("prompt".into(), text.into());
                map.insert("logprobs".into(), 2.into());
            }
            if i % 7 == 3 {
                map.insert("n".into(), 2.into());
            }
            if i % 11 == 5 {
                map.insert("cache_prompt".into(), false.into());
            }
            if i % 13 == 6 {
                map.insert("frequency_penalty".into(), json!(0.5));
            }
            if chat && i % 16 == 9 {
                map.insert("response_format".into(), json!({"type": "json_object"}));
            }
            Case {
                chat,
                body,
                cancelled: i % 8 == 4,
            }
        })
        .collect()
}

/// What has to be equal: of each choice text, log-probabilities, finish reason.
fn answer(address: SocketAddr, case: &Case) -> Vec<Value> {
    let reply = match case.chat {
        true => chat(address, case.body.clone()),
        false => complete(address, case.body.clone()),
    };
    let choices = case.body["n"].as_u64().unwrap_or(1) as usize;
    let mut all = vec![json!({"text": "", "probs": [], "finish": null}); choices];
    let parts = match case.body["stream"] == true {
        true => reply.events(),
        false => vec![reply.ok()],
    };
    for choice in parts.iter().flat_map(|p| p["choices"].as_array().unwrap()) {
        let one = &mut all[choice["index"].as_u64().unwrap() as usize];
        let content = &choice["delta"]["content"];
        let content = content.as_str().or(choice["message"]["content"].as_str());
        let piece = choice["text"].as_str().or(content).unwrap_or_default();
        one["text"] = (one["text"].as_str().unwrap().to_owned() + piece).into();
        let probs = &choice["logprobs"];
        let more = match case.chat {
            true => probs["content"].as_array().cloned().unwrap_or_default(),
            false => {
                let list = |key: &str| probs[key].as_array().cloned().unwrap_or_default();
                let rest = list("token_logprobs").into_iter().zip(list("top_logprobs"));
                let each = list("tokens").into_iter().zip(rest);
                each.map(|(t, (p, top))| json!([t, p, top])).collect()
            }
        };
        one["probs"].as_array_mut().unwrap().extend(more);
        if !choice["finish_reason"].is_null() {
            one["finish"] = choice["finish_reason"].clone();
        }
    }
    all
}

/// Sends the request and goes away before the answer, or in its middle.
fn give_up(address: SocketAddr, case: &Case, i: usize) {
    let body = case.body.to_string();
    let path = match case.chat {
        true => "/v1/chat/completions",
        false => "/v1/completions",
    };
    let mut stream = connect(address);
    let head = head("POST", path, JSON, body.len());
    stream
        .write_all(format!("{head}{body}").as_bytes())
        .unwrap();
    if i.is_multiple_of(16) {
        let _ = stream.read(&mut [0; 40]);
    }
}

fn alone(case: &Case) -> Vec<Value> {
    // A server of its own: nothing before it, nothing beside it.
    let one = Limits {
        slots: 1,
        ..limits()
    };
    answer(start_with(1, one, &[]).address, case)
}

#[test]
fn sixty_four_at_once_are_each_as_alone() {
    let cases = cases();
    let expected: Vec<Option<Vec<Value>>> = cases
        .iter()
        .map(|c| (!c.cancelled).then(|| alone(c)))
        .collect();
    // Different answers, or equality says little.
    let mut distinct: Vec<String> = expected
        .iter()
        .flatten()
        .map(|e| json!(e).to_string())
        .collect();
    distinct.sort();
    distinct.dedup();
    assert!(distinct.len() > 45, "{}", distinct.len());
    for threads in [1, 2] {
        for slots in [1, 3, 8] {
            let limits = Limits {
                slots,
                queue: 256,
                ..limits()
            };
            let server = start_with(threads, limits, &[]);
            std::thread::scope(|scope| {
                for (i, case) in cases.iter().enumerate() {
                    let (address, expected) = (server.address, &expected[i]);
                    scope.spawn(move || match expected {
                        None => give_up(address, case, i),
                        Some(expected) => {
                            let got = answer(address, case);
                            assert!(got == *expected, "{i} of {slots} slots, {threads} threads");
                        }
                    });
                }
            });
        }
    }
}
