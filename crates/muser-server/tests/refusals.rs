//! What is refused, how, and that the server goes on.

#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]

mod common;

use common::{
    JSON, Running, chat, complete, connect, get, head, limits, post, raw, read, refused, send,
    start, start_with, user,
};
use muser_server::Limits;
use serde_json::{Value, json};
use std::io::{Read as _, Write as _};
use std::time::{Duration, Instant};

#[test]
fn a_field_that_is_wrong_is_named() {
    let s = start();
    let cases = [
        (json!({"temperature": -1}), "temperature"),
        (json!({"temperature": "warm"}), "temperature"),
        (json!({"temperature": [1]}), "temperature"),
        (json!({"top_p": -0.5}), "top_p"),
        (json!({"top_p": 1.5}), "top_p"),
        (json!({"min_p": -0.1}), "min_p"),
        (json!({"top_k": -2}), "top_k"),
        (json!({"top_k": 1.5}), "top_k"),
        (json!({"n": 0}), "n"),
        (json!({"n": -3}), "n"),
        (json!({"max_tokens": -2}), "max_tokens"),
        (json!({"n_predict": 0.5}), "n_predict"),
        (json!({"max_tokens": 1e300}), "max_tokens"),
        (json!({"seed": 0.5}), "seed"),
        (json!({"stop": [""]}), "stop"),
        (json!({"stop": [1]}), "stop[0]"),
        (json!({"stop": 5}), "stop"),
        (json!({"stream": "yes"}), "stream"),
        (
            json!({"stream": true, "stream_options": {"x": 1}}),
            "stream_options.x",
        ),
        (json!({"logit_bias": {"999999": 1}}), "logit_bias"),
        (json!({"logit_bias": {"x": 1}}), "logit_bias"),
        (json!({"logit_bias": {"1": 200}}), "logit_bias.1"),
        (json!({"presence_penalty": 101}), "presence_penalty"),
        (json!({"repeat_penalty": 0}), "repeat_penalty"),
        (json!({"timeout": -1}), "timeout"),
        (json!({"store": "yes"}), "store"),
        (json!({"colour": "red"}), "colour"),
    ];
    for (extra, param) in &cases {
        for (base, post) in [
            (json!({"prompt": "x"}), complete as fn(_, _) -> _),
            (json!({"messages": user("x")}), chat as fn(_, _) -> _),
        ] {
            let mut body = base;
            body.as_object_mut()
                .unwrap()
                .extend(extra.as_object().unwrap().clone());
            assert_eq!(refused(&post(s.address, body), 400), *param, "{extra}");
        }
    }
    let tool = |t: Value| json!({"messages": user("x"), "tools": [t]});
    let function = json!({"type": "function", "function": {"name": "f"}});
    for (body, param) in [
        (json!({}), "messages"),
        (json!({"messages": []}), "messages"),
        (json!({"messages": "hi"}), "messages"),
        (
            json!({"messages": [{"role": "robot", "content": "x"}]}),
            "messages[0].role",
        ),
        (
            json!({"messages": [{"role": "user"}]}),
            "messages[0].content",
        ),
        (
            json!({"messages": [{"role": "user", "content": 1}]}),
            "messages[0].content",
        ),
        (
            json!({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}),
            "messages[0].content[0].type",
        ),
        (
            json!({"messages": [{"role": "user", "content": "x", "mood": 1}]}),
            "messages[0].mood",
        ),
        (
            json!({"messages": user("x"), "top_logprobs": 2}),
            "top_logprobs",
        ),
        (
            json!({"messages": user("x"), "logprobs": true, "top_logprobs": 21}),
            "top_logprobs",
        ),
        (
            json!({"messages": user("x"), "tool_choice": "required"}),
            "tool_choice",
        ),
        (tool(json!({"type": "x"})), "tools[0].type"),
        (
            tool(json!({"type": "function", "function": {"name": "a b"}})),
            "tools[0].function.name",
        ),
        (
            json!({"messages": user("x"), "tools": [function],
                "tool_choice": {"type": "function", "function": {"name": "g"}}}),
            "tool_choice.function.name",
        ),
        (
            json!({"messages": user("x"), "response_format": {"type": "xml"}}),
            "response_format.type",
        ),
        (
            json!({"messages": user("x"), "response_format":
                {"type": "json_schema", "json_schema": {"schema": {"type": "no such type"}}}}),
            "response_format.json_schema.schema.type",
        ),
    ] {
        assert_eq!(
            refused(&chat(s.address, body.clone()), 400),
            param,
            "{body}"
        );
    }
    for (body, param) in [
        (json!({}), "prompt"),
        (json!({"prompt": []}), "prompt"),
        (json!({"prompt": [1, -2]}), "prompt[1]"),
        (json!({"prompt": [1, 4096]}), "prompt[1]"),
        (json!({"prompt": ["x", 5]}), "prompt[1]"),
        (json!({"prompt": {"a": 1}}), "prompt"),
        (json!({"prompt": "x", "suffix": "y"}), "suffix"),
        (json!({"prompt": "x", "best_of": 3}), "best_of"),
        (json!({"prompt": "x", "logprobs": true}), "logprobs"),
    ] {
        assert_eq!(
            refused(&complete(s.address, body.clone()), 400),
            param,
            "{body}"
        );
    }
    for (body, param) in [
        (json!({"input": "x", "dimensions": 513}), "dimensions"),
        (json!({"input": "x", "dimensions": 0}), "dimensions"),
        (
            json!({"input": "x", "encoding_format": "hex"}),
            "encoding_format",
        ),
        (json!({"input": 3}), "input"),
    ] {
        assert_eq!(
            refused(&post(s.address, "/v1/embeddings", &body), 400),
            param
        );
    }
    still_works(&s);
}

fn still_works(s: &Running) {
    let one = complete(s.address, json!({"prompt": "Once", "max_tokens": 2})).ok();
    assert_eq!(one["usage"]["completion_tokens"], 2);
}

#[test]
fn what_is_no_request_is_refused() {
    let s = start_with(
        1,
        Limits {
            body_bytes: 4096,
            ..limits()
        },
        &[],
    );
    for body in [
        "",
        "{",
        "[]",
        "null",
        "{\"prompt\": \"\u{0}\"",
        "\u{feff}{}",
    ] {
        refused(&raw(s.address, "/v1/completions", body), 400);
    }
    let nested = format!("{{\"prompt\": {}", "[".repeat(3000));
    refused(&raw(s.address, "/v1/completions", &nested), 400);
    let long = json!({"prompt": "x".repeat(5000)});
    refused(&complete(s.address, long), 413);
    let kind = head("POST", "/v1/completions", "Content-Type: text/plain\r\n", 2);
    refused(&send(s.address, format!("{kind}{{}}").as_bytes()), 415);
    refused(&get(s.address, "/v1/completions"), 405);
    refused(&get(s.address, "/v1/files/../../etc/passwd"), 404);
    refused(&post(s.address, "/nothing", &json!({})), 404);
    // No HTTP at all, and heads without measure.
    let many = format!("GET / HTTP/1.1\r\n{}\r\n", "A: b\r\n".repeat(1000));
    let long = format!("GET / HTTP/1.1\r\nA: {}\r\n\r\n", "b".repeat(1 << 20));
    for garbage in ["\u{0}\u{1}\u{2}\r\n\r\n", &many, &long] {
        let mut stream = connect(s.address);
        let _ = stream.write_all(garbage.as_bytes());
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        assert!(
            answer.is_empty() || answer.starts_with(b"HTTP/1.1 4"),
            "{answer:?}"
        );
    }
    still_works(&s);
}

#[test]
fn a_key_opens_and_nothing_else_does() {
    let key = "sixteen letters or more";
    let s = start_with(1, limits(), &[key]);
    for path in ["/", "/health", "/openapi.json"] {
        assert_eq!(get(s.address, path).status, 200, "{path}");
    }
    for path in ["/v1/models", "/metrics", "/props", "/slots", "/nothing"] {
        let reply = get(s.address, path);
        refused(&reply, 401);
        assert!(reply.head.contains("www-authenticate: bearer"));
    }
    refused(&complete(s.address, json!({"prompt": "x"})), 401);
    let authorized = format!("Authorization: Bearer {key}\r\n");
    let request = head("GET", "/v1/models", &authorized, 0);
    send(s.address, request.as_bytes()).ok();
    let wrong = head("GET", "/v1/models", "Authorization: Bearer sixteen\r\n", 0);
    refused(&send(s.address, wrong.as_bytes()), 401);
}

/// A request that runs until the context is full, if nobody ends it.
fn endless(stream: bool) -> Value {
    json!({"prompt": "Once", "max_tokens": 100_000, "ignore_eos": true, "stream": stream})
}

fn long_context() -> Limits {
    Limits {
        slots: 1,
        context: 2048,
        ..limits()
    }
}

fn open(s: &Running, body: &Value) -> std::net::TcpStream {
    let body = body.to_string();
    let mut stream = connect(s.address);
    let head = head("POST", "/v1/completions", JSON, body.len());
    stream
        .write_all(format!("{head}{body}").as_bytes())
        .unwrap();
    stream
}

/// Waits for this many busy slots; none is the end of an answer.
fn until_busy(s: &Running, slots: usize) {
    let until = Instant::now() + Duration::from_secs(20);
    loop {
        let all = get(s.address, "/slots").ok();
        let all = all.as_array().unwrap().clone();
        if all.iter().filter(|s| s["is_processing"] == true).count() == slots {
            return;
        }
        assert!(Instant::now() < until, "still not {slots} busy: {all:?}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn a_full_queue_says_when_to_come_again_and_a_gone_client_makes_room() {
    let limits = Limits {
        queue: 1,
        ..long_context()
    };
    let s = start_with(1, limits, &[]);
    let running = open(&s, &endless(true));
    until_busy(&s, 1);
    let waiting = open(&s, &endless(false));
    // The second is in the queue as soon as a third is refused.
    let until = Instant::now() + Duration::from_secs(20);
    let reply = loop {
        let reply = complete(s.address, json!({"prompt": "x", "max_tokens": 1}));
        if reply.status == 429 {
            break reply;
        }
        assert!(Instant::now() < until);
    };
    refused(&reply, 429);
    assert_eq!(reply.json()["error"]["code"], "queue_full");
    let after = reply
        .head
        .lines()
        .find_map(|l| l.strip_prefix("retry-after: "));
    assert!((1..=60).contains(&after.unwrap().parse::<u64>().unwrap()));
    drop(waiting);
    drop(running);
    until_busy(&s, 0);
    // Choices wait in their request's place.
    complete(s.address, json!({"prompt": "x", "max_tokens": 1, "n": 9})).ok();
    let all: Vec<_> = (0..50).map(|_| "x").collect();
    let n = complete(s.address, json!({"prompt": all, "n": 100}));
    assert_eq!(refused(&n, 400), "n");
    still_works(&s);
}

#[test]
fn a_client_that_does_not_read_holds_up_nobody_else() {
    let s = start_with(
        1,
        Limits {
            slots: 2,
            ..long_context()
        },
        &[],
    );
    let mut body = endless(true);
    body["logprobs"] = 20.into();
    let deaf = open(&s, &body);
    until_busy(&s, 1);
    for _ in 0..3 {
        still_works(&s);
    }
    drop(deaf);
    until_busy(&s, 0);
}

#[test]
fn a_request_has_its_time() {
    let s = start_with(1, long_context(), &[]);
    let mut body = endless(false);
    body["timeout"] = 1.into();
    // One after the other: many times what fits in a second.
    body["n"] = 40.into();
    let reply = complete(s.address, body.clone());
    refused(&reply, 504);
    assert_eq!(reply.json()["error"]["code"], "deadline_exceeded");
    // Within a stream the status is sent already: the error is its last event.
    body["stream"] = true.into();
    let reply = complete(s.address, body);
    assert_eq!(reply.status, 200);
    assert!(!reply.body.contains("[DONE]"));
    assert!(
        reply
            .body
            .trim_end()
            .lines()
            .last()
            .unwrap()
            .contains("deadline_exceeded")
    );
    still_works(&s);
}

#[test]
fn a_slow_head_and_a_slow_body_are_given_up() {
    let limits = Limits {
        read_time: Duration::from_millis(300),
        ..limits()
    };
    let s = start_with(1, limits, &[]);
    let mut slow_head = connect(s.address);
    slow_head
        .write_all(b"POST /v1/completions HTTP/1.1\r\nHo")
        .unwrap();
    let mut answer = Vec::new();
    let _ = slow_head.read_to_end(&mut answer);
    let mut slow_body = connect(s.address);
    let head = head("POST", "/v1/completions", JSON, 100);
    slow_body
        .write_all(format!("{head}{{\"pro").as_bytes())
        .unwrap();
    refused(&read(slow_body), 408);
    still_works(&s);
}

#[test]
fn a_shutdown_lets_answers_end_and_takes_no_more() {
    let s = start_with(
        1,
        Limits {
            slots: 1,
            ..limits()
        },
        &[],
    );
    let address = s.address;
    let body = json!({"prompt": "Once", "max_tokens": 300, "ignore_eos": true, "stream": true});
    let running = open(&s, &body);
    until_busy(&s, 1);
    let ending = std::thread::spawn(move || drop(s));
    let whole = read(running);
    let events = whole.events();
    assert_eq!(
        events.last().unwrap()["choices"][0]["finish_reason"],
        "length"
    );
    ending.join().unwrap();
    assert!(std::net::TcpStream::connect(address).is_err());
}

#[test]
fn the_grace_period_has_an_end() {
    let limits = Limits {
        grace: Duration::from_millis(200),
        ..long_context()
    };
    let s = start_with(1, limits, &[]);
    let running = open(&s, &endless(false));
    until_busy(&s, 1);
    drop(s);
    let mut answer = String::new();
    let _ = { running }.read_to_string(&mut answer);
    assert!(
        answer.is_empty() || answer.starts_with("HTTP/1.1 503"),
        "{answer}"
    );
}
