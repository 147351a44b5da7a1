//! What a request may take, and that others have their turn meanwhile.

#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]

mod common;

use common::{
    JSON, Reply, busy_slots, chat, code, complete, connect, endless, head, limits, load_as, metric,
    model, open, open_deaf, post, raw, read, refused, start, start_of, start_with, still_works,
    until, user,
};
use muser_cpu::CpuOptions;
use muser_server::{JsonLimits, Limits};
use serde_json::json;
use std::io::{Read as _, Write as _};
use std::time::Duration;

#[test]
fn a_body_over_a_bound_is_refused_with_place_bound_and_what_was_found() {
    let bounds = JsonLimits {
        depth: 8,
        nodes: 200,
        string_bytes: 1000,
        name_bytes: 32,
        messages: 3,
        tools: 2,
        ..JsonLimits::default()
    };
    let s = start_with(
        1,
        Limits {
            json: bounds,
            ..limits()
        },
        &[],
    );
    let mut deep = json!(1);
    for _ in 0..8 {
        deep = json!([deep]);
    }
    let message = json!({"role": "user", "content": "x"});
    let tool = |n: usize| json!({"type": "function", "function": {"name": format!("f{n}")}});
    for (body, param, says) in [
        (
            json!({"messages": user("x"), "chat_template_kwargs": {"a": deep}}),
            "chat_template_kwargs.a[0][0][0][0][0][0]",
            "8 levels of nesting, found 9",
        ),
        (
            json!({"messages": user("x"), "logit_bias": vec![0; 300]}),
            "logit_bias[192]",
            "200 values in the request, found 201",
        ),
        (
            json!({"messages": user(&"x".repeat(1001))}),
            "messages[0].content",
            "1000 bytes of a string, found 1001",
        ),
        (
            json!({"messages": vec![message; 4]}),
            "messages",
            "3 messages, found 4",
        ),
        (
            json!({"messages": user("x"), "tools": [tool(0), tool(1), tool(2)]}),
            "tools",
            "2 tools, found 3",
        ),
    ] {
        let reply = chat(s.address, body);
        let found = refused(&reply, 400);
        // The number of values counts names, whose order is the sender's.
        if !says.contains("values") {
            assert_eq!(found, param);
        }
        assert_eq!(code(&reply), "limit_exceeded");
        let message = reply.json()["error"]["message"].to_string();
        assert!(message.contains(says), "{message}");
    }
    still_works(&s);
}

#[test]
fn memory_is_counted_and_what_never_fits_is_413() {
    let s = start_with(
        1,
        Limits {
            memory_bytes: 8 << 20,
            ..limits()
        },
        &[],
    );
    // 400 KB of text, ten megabytes of values.
    let many = format!("{{\"prompt\": [{}[1]]}}", "[1],".repeat(100_000));
    let reply = raw(s.address, "/v1/completions", &many);
    refused(&reply, 413);
    assert_eq!(code(&reply), "memory_limit");
    let long = json!({"content": "x".repeat(5 << 20)});
    refused(&post(s.address, "/tokenize", &long), 413);
    // An answer that is kept until it is whole counts with all it may come to.
    let mut wide = json!({"prompt": "Once", "n": 100, "max_tokens": 400, "logprobs": 20});
    let reply = complete(s.address, wide.clone());
    refused(&reply, 413);
    let message = reply.json()["error"]["message"].to_string();
    assert!(message.contains("n, max_tokens and logprobs"), "{message}");
    // Streamed, it is not kept.
    wide["n"] = 2.into();
    wide["max_tokens"] = 3.into();
    wide["stream"] = true.into();
    assert_eq!(complete(s.address, wide).status, 200);
    until("all is given back", || {
        metric(&s, "muser_memory_bytes") == 0.0
    });
    still_works(&s);
}

#[test]
fn tokenizing_stops_at_the_context() {
    let s = start();
    let words = "once upon a time ".repeat(100_000);
    for (path, body) in [
        ("/tokenize", json!({"content": words})),
        ("/v1/completions", json!({"prompt": words})),
        ("/v1/embeddings", json!({"input": words})),
        ("/v1/chat/completions", json!({"messages": user(&words)})),
        (
            "/apply-template",
            json!({"messages": user(&"<|eot|>".repeat(100_000))}),
        ),
    ] {
        let reply = post(s.address, path, &body);
        refused(&reply, 400);
        assert_eq!(code(&reply), "context_length_exceeded", "{path}");
    }
    still_works(&s);
}

#[test]
fn control_tokens_in_a_long_text_are_letters_still() {
    let s = start();
    let reply = post(
        s.address,
        "/apply-template",
        &json!({"messages": user(&"<|eot|>".repeat(20))}),
    )
    .ok();
    let plain = post(
        s.address,
        "/tokenize",
        &json!({"content": "<|eot|>".repeat(20), "parse_special": false}),
    )
    .ok();
    let all = reply["tokens"].as_array().unwrap();
    let letters = plain["tokens"].as_array().unwrap();
    assert!(all.windows(letters.len()).any(|w| w == letters.as_slice()));
}

#[test]
fn many_choices_leave_others_their_turn() {
    let s = start_with(
        1,
        Limits {
            slots: 2,
            queue: 4,
            context: 256,
            ..limits()
        },
        &[],
    );
    let mut wide = endless(true);
    wide["n"] = 68.into();
    let mut first = open(&s, &wide);
    until("it has all slots", || busy_slots(&s) == 2);
    // Its own choices are many times what others have to wait for.
    std::thread::spawn(move || {
        let mut sink = [0; 65_536];
        while first.read(&mut sink).is_ok_and(|n| n > 0) {}
    });
    for _ in 0..3 {
        still_works(&s);
    }
    until("its choices have both slots again", || {
        metric(&s, "muser_running") == 2.0
    });
}

#[test]
fn a_stream_that_is_not_read_gives_its_slot_away_and_goes_on_with_the_same_bits() {
    let limits = Limits {
        slots: 1,
        context: 2048,
        ..limits()
    };
    let s = start_with(1, limits.clone(), &[]);
    let mut body = endless(true);
    body["n"] = 4.into();
    body["seed"] = 11.into();
    body["logprobs"] = 20.into();
    // All together are more than the buffers of the sockets hold.
    body["max_tokens"] = 800.into();
    let deaf = open_deaf(&s, &body);
    // Once the buffers are full, no more passes are made for it.
    let passes = || metric(&s, "muser_passes_total");
    until("nothing moves", || {
        let before = passes();
        std::thread::sleep(Duration::from_millis(400));
        before > 0.0 && passes() == before
    });
    assert_eq!(busy_slots(&s), 1, "a choice has the slot still");
    still_works(&s);
    assert!(metric(&s, "muser_parked_total") >= 1.0);
    still_works(&s);
    // Other prompts have gone through since; the answer is that of a server of
    // its own.
    let parts = |reply: &Reply| {
        let mut parts = vec![(String::new(), Vec::new()); 4];
        for event in reply.events() {
            let choice = &event["choices"][0];
            let part = &mut parts[choice["index"].as_u64().unwrap() as usize];
            part.0 += choice["text"].as_str().unwrap();
            part.1.push(choice["logprobs"]["token_logprobs"].clone());
        }
        parts
    };
    let parked = parts(&read(deaf));
    let alone = start_with(1, limits, &[]);
    let direct = parts(&complete(alone.address, body));
    assert_eq!(parked, direct);
}

#[test]
fn a_stream_that_is_never_read_ends() {
    let s = start_with(
        1,
        Limits {
            slots: 1,
            context: 2048,
            stall_time: Duration::from_millis(500),
            ..limits()
        },
        &[],
    );
    let mut body = endless(true);
    body["n"] = 8.into();
    body["logprobs"] = 20.into();
    let deaf = open_deaf(&s, &body);
    until("it is ended", || metric(&s, "muser_unread_total") >= 1.0);
    until("its slot is free", || busy_slots(&s) == 0);
    drop(deaf);
    still_works(&s);
}

#[test]
fn a_late_answer_counts_as_late_and_not_as_left() {
    let s = start_with(
        1,
        Limits {
            slots: 1,
            context: 2048,
            ..limits()
        },
        &[],
    );
    let mut body = endless(true);
    body["n"] = 40.into();
    body["timeout"] = 1.into();
    let reply = complete(s.address, body);
    assert!(reply.body.contains("deadline_exceeded"));
    until("it is counted", || {
        metric(&s, "muser_timed_out_total") == 1.0
    });
    assert_eq!(metric(&s, "muser_cancelled_total"), 0.0);
}

#[test]
fn at_the_end_of_the_grace_every_client_is_told() {
    let s = start_with(
        1,
        Limits {
            slots: 2,
            queue: 16,
            context: 2048,
            grace: Duration::from_secs(1),
            ..limits()
        },
        &[],
    );
    let mut long = endless(false);
    long["n"] = 30.into();
    let whole: Vec<_> = (0..4).map(|_| open(&s, &long)).collect();
    long["stream"] = true.into();
    let streams: Vec<_> = (0..4).map(|_| open(&s, &long)).collect();
    let mut reading = connect(s.address);
    let head = head("POST", "/v1/completions", JSON, 1000);
    reading.write_all(head.as_bytes()).unwrap();
    until("they run", || {
        busy_slots(&s) == 2 && metric(&s, "muser_waiting") >= 6.0
    });
    let readers: Vec<_> = whole
        .into_iter()
        .chain([reading])
        .map(|stream| (false, stream))
        .chain(streams.into_iter().map(|stream| (true, stream)))
        .map(|(streamed, stream)| std::thread::spawn(move || (streamed, read(stream))))
        .collect();
    drop(s);
    for reader in readers {
        let (streamed, reply) = reader.join().unwrap();
        if !streamed {
            refused(&reply, 503);
        }
        assert!(reply.body.contains("shutting_down"), "{}", reply.body);
    }
}

/// Room for nine pages of every layer: one answer that fills the context takes eight,
/// two do not fit.
#[test]
fn who_comes_last_is_refused_when_memory_for_k_and_v_runs_out() {
    let spec = model(1).spec().clone();
    let layouts = (0..spec.layers.len()).map(|i| spec.kv_layout(i, 512, 512));
    let page: usize = layouts.map(|layout| layout.chunk_bytes()).sum();
    let options = CpuOptions {
        threads: Some(1),
        kv_bytes: Some(9 * page as u64),
        ..CpuOptions::default()
    };
    let limits = Limits {
        slots: 2,
        ..limits()
    };
    let s = start_of(load_as(options), limits);
    let body = |n: u64, most: u64| json!({"prompt": "Once", "max_tokens": most, "ignore_eos": true, "seed": 3, "n": n});
    let long = complete(s.address, body(1, 500)).ok()["choices"][0]["text"].clone();
    let short = complete(s.address, body(1, 60)).ok()["choices"][0]["text"].clone();
    // The two of them need sixteen pages.
    let both = complete(s.address, body(2, 500));
    assert_eq!((both.status, code(&both)), (503, "kv_memory".to_owned()));
    // Who was there first goes on with the same bits, whatever comes.
    let address = s.address;
    let first = std::thread::spawn(move || complete(address, body(1, 500)).ok());
    for _ in 0..4 {
        let next = complete(s.address, body(1, 60));
        match next.status {
            200 => assert_eq!(next.json()["choices"][0]["text"], short),
            _ => assert_eq!(code(&next), "kv_memory"),
        }
    }
    assert_eq!(first.join().unwrap()["choices"][0]["text"], long);
    assert_eq!(
        complete(s.address, body(1, 60)).ok()["choices"][0]["text"],
        short
    );
}
