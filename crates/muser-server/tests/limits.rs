//! What a request may take, and that others have their turn meanwhile.

#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]

mod common;

use common::{
    JSON, Reply, Running, chat, complete, connect, get, head, limits, post, raw, read, refused,
    send, start, start_with, user,
};
use muser_server::{JsonLimits, Limits};
use serde_json::{Value, json};
use std::io::{Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

fn still_works(s: &Running) {
    let one = complete(s.address, json!({"prompt": "Once", "max_tokens": 2})).ok();
    assert_eq!(one["usage"]["completion_tokens"], 2);
}

fn metric(s: &Running, name: &str) -> f64 {
    let text = get(s.address, "/metrics").body;
    let line = text.lines().find(|l| l.starts_with(&format!("{name} ")));
    line.unwrap_or_else(|| panic!("{name} in {text}"))
        .rsplit(' ')
        .next()
        .unwrap()
        .parse()
        .unwrap()
}

fn until(what: &str, mut is: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(60);
    while !is() {
        assert!(Instant::now() < end, "not yet: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn busy_slots(s: &Running) -> usize {
    let slots = get(s.address, "/slots").ok();
    let slots = slots.as_array().unwrap();
    slots.iter().filter(|s| s["is_processing"] == true).count()
}

/// A request that runs until the context is full, if nobody ends it.
fn endless(stream: bool) -> Value {
    json!({"prompt": "Once", "max_tokens": 100_000, "ignore_eos": true, "stream": stream})
}

fn open(s: &Running, body: &Value) -> TcpStream {
    let body = body.to_string();
    let mut stream = connect(s.address);
    let head = head("POST", "/v1/completions", JSON, body.len());
    stream
        .write_all(format!("{head}{body}").as_bytes())
        .unwrap();
    stream
}

/// [`open`], with next to no room for what is not read.
fn open_deaf(s: &Running, body: &Value) -> TcpStream {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .build();
    let stream = runtime.unwrap().block_on(async {
        let socket = tokio::net::TcpSocket::new_v4().unwrap();
        socket.set_recv_buffer_size(4096).unwrap();
        socket.connect(s.address).await.unwrap().into_std().unwrap()
    });
    stream.set_nonblocking(false).unwrap();
    stream
        .set_read_timeout(Some(Duration::from_secs(120)))
        .unwrap();
    let body = body.to_string();
    let head = head("POST", "/v1/completions", JSON, body.len());
    (&stream)
        .write_all(format!("{head}{body}").as_bytes())
        .unwrap();
    stream
}

/// Sends bytes as they are and reads to the end.
fn exchange(address: SocketAddr, bytes: &[u8]) -> Reply {
    send(address, bytes)
}

fn code(reply: &Reply) -> String {
    reply.json()["error"]["code"]
        .as_str()
        .unwrap_or("")
        .to_owned()
}

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
fn what_could_be_read_in_two_ways_is_refused_in_our_shape() {
    let s = start();
    let body = "{\"prompt\": \"x\", \"max_tokens\": 1}";
    let length = body.len();
    let post = |lines: &str| {
        format!("POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n{JSON}{lines}\r\n{body}")
    };
    for (request, status) in [
        (
            post(&format!(
                "Content-Length: {length}\r\nConnection: close\r\n"
            )),
            200,
        ),
        (
            post(&format!(
                "Content-Length: {length}\r\nTransfer-Encoding: chunked\r\n"
            )),
            400,
        ),
        (
            post(&format!(
                "Content-Length: {length}\r\nContent-Length: {length}\r\n"
            )),
            400,
        ),
        (post("Transfer-Encoding: gzip, chunked\r\n"), 400),
        (post("Content-Length: 1e3\r\n"), 400),
        ("GET /health HTTP/1.1\nHost: localhost\n\n".to_owned(), 400),
        ("GET /health HTTP/1.1\r\n\r\n".to_owned(), 400),
        (
            "GET /health HTTP/3.0\r\nHost: localhost\r\n\r\n".to_owned(),
            505,
        ),
        ("\u{0}\u{1}\u{2}\r\n\r\n".to_owned(), 400),
        (
            format!(
                "GET /{} HTTP/1.1\r\nHost: localhost\r\n\r\n",
                "x".repeat(10_000)
            ),
            414,
        ),
        (
            format!(
                "GET / HTTP/1.1\r\nHost: localhost\r\nA: {}\r\n\r\n",
                "b".repeat(70_000)
            ),
            431,
        ),
        (
            format!(
                "GET / HTTP/1.1\r\nHost: localhost\r\n{}\r\n",
                "A: b\r\n".repeat(100)
            ),
            431,
        ),
    ] {
        let reply = exchange(s.address, request.as_bytes());
        match status {
            200 => drop(reply.ok()),
            _ => drop(refused(&reply, status)),
        }
        assert!(reply.head.contains("connection: close"), "{}", reply.head);
    }
    // A head just within the bound is served.
    let rest = 65_536
        - "GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nA: \r\n\r\n".len();
    let full = format!(
        "GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nA: {}\r\n\r\n",
        "b".repeat(rest)
    );
    exchange(s.address, full.as_bytes()).ok();
    still_works(&s);
}

#[test]
fn requests_of_one_connection_are_answered_in_order() {
    let s = start();
    let body = "{\"prompt\": \"Once\", \"max_tokens\": 3, \"seed\": 1}";
    let one = format!(
        "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n{JSON}Content-Length: {}\r\n\r\n{body}",
        body.len()
    );
    let chunked = format!(
        "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n{JSON}Transfer-Encoding: chunked\r\n\r\n\
         {:x}\r\n{body}\r\n0\r\n\r\n",
        body.len()
    );
    let get = "GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n";
    let mut stream = connect(s.address);
    stream
        .write_all(format!("{one}{get}{one}{get}{chunked}").as_bytes())
        .unwrap();
    let mut all = String::new();
    stream.read_to_string(&mut all).unwrap();
    assert_eq!(all.matches("HTTP/1.1 200 OK").count(), 5, "{all}");
    assert_eq!(all.matches("\"status\":\"ok\"").count(), 2);
    assert_eq!(all.matches("text_completion").count(), 3);
    // What follows a refused head is not read as a request.
    let mut stream = connect(s.address);
    stream
        .write_all(format!("{get}GET / HTTP/1.1\n\n{get}").as_bytes())
        .unwrap();
    let mut all = String::new();
    stream.read_to_string(&mut all).unwrap();
    assert_eq!(all.matches("HTTP/1.1").count(), 2, "{all}");
    assert!(all.contains("HTTP/1.1 400"), "{all}");
}

#[test]
fn bodies_that_are_cut_off_too_long_or_coded_are_told_apart() {
    let s = start_with(
        1,
        Limits {
            body_bytes: 4096,
            ..limits()
        },
        &[],
    );
    let mut cut = connect(s.address);
    let start = head("POST", "/v1/completions", JSON, 100);
    cut.write_all(format!("{start}{{\"pro").as_bytes()).unwrap();
    cut.shutdown(Shutdown::Write).unwrap();
    refused(&read(cut), 400);
    let chunks = |body: &str| {
        format!(
            "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n{JSON}Transfer-Encoding: \
             chunked\r\n\r\n{body}"
        )
    };
    refused(&exchange(s.address, chunks("zz\r\n").as_bytes()), 400);
    let long = format!("1400\r\n{}\r\n0\r\n\r\n", " ".repeat(0x1400));
    refused(&exchange(s.address, chunks(&long).as_bytes()), 413);
    // Refused by what it declares, before any of it has come.
    let mut declared = connect(s.address);
    declared
        .write_all(head("POST", "/v1/completions", JSON, 100_000_000).as_bytes())
        .unwrap();
    let reply = read(declared);
    refused(&reply, 413);
    assert!(reply.body.contains("100000000"), "{}", reply.body);
    for coding in ["gzip", "br", "gzip, identity"] {
        let headers = format!("{JSON}Content-Encoding: {coding}\r\n");
        let request = head("POST", "/v1/completions", &headers, 2);
        refused(
            &exchange(s.address, format!("{request}{{}}").as_bytes()),
            415,
        );
    }
    assert_eq!(refused(&get(s.address, "/v1/models/%ff"), 404), "model");
    still_works(&s);
}

#[test]
fn names_of_other_machines_are_not_answered_without_keys() {
    let s = start();
    let ask = |address, host: &str, more: &str| {
        let request =
            format!("GET /health HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n{more}\r\n");
        exchange(address, request.as_bytes())
    };
    ask(
        s.address,
        "localhost:1",
        "Origin: http://127.0.0.1:8080\r\n",
    )
    .ok();
    for (host, more, option) in [
        ("evil.example", "", "--allow-host"),
        (
            "localhost",
            "Origin: https://evil.example\r\n",
            "--allow-origin",
        ),
        ("localhost", "Origin: null\r\n", "--allow-origin"),
    ] {
        let reply = ask(s.address, host, more);
        refused(&reply, 403);
        assert!(reply.body.contains(option), "{}", reply.body);
    }
    // With keys the key decides.
    let s = start_with(1, limits(), &["sixteen letters or more"]);
    ask(
        s.address,
        "muser.example",
        "Origin: https://evil.example\r\n",
    )
    .ok();
}

#[test]
fn head_needs_no_key_where_get_needs_none() {
    let s = start_with(1, limits(), &["sixteen letters or more"]);
    for (path, status) in [
        ("/", 200),
        ("/health", 200),
        ("/openapi.json", 200),
        ("/props", 401),
    ] {
        let request = head("HEAD", path, "", 0);
        let reply = exchange(s.address, request.as_bytes());
        assert_eq!((reply.status, reply.body.as_str()), (status, ""), "{path}");
    }
}

#[test]
fn keys_are_read_anew() {
    let (old, new) = ("the first of two keys", "the second of two keys");
    let s = start_with(1, limits(), &[old]);
    let status = |key: &str| {
        let request = head(
            "GET",
            "/v1/models",
            &format!("Authorization: Bearer {key}\r\n"),
            0,
        );
        exchange(s.address, request.as_bytes()).status
    };
    assert_eq!((status(old), status(new)), (200, 401));
    for bad in [vec![], vec!["short".to_owned()]] {
        s.server().reload(Some(bad)).unwrap_err();
        assert_eq!((status(old), status(new)), (200, 401));
    }
    s.server().reload(Some(vec![new.to_owned()])).unwrap();
    assert_eq!((status(old), status(new)), (401, 200));
}

#[test]
fn connections_that_wait_for_their_client_give_way() {
    let s = start_with(
        1,
        Limits {
            connections: 8,
            read_time: Duration::from_secs(60),
            ..limits()
        },
        &[],
    );
    let mut idle = Vec::new();
    for i in 0..40 {
        let mut stream = connect(s.address);
        let part: &[u8] = match i % 3 {
            0 => b"",
            1 => b"POST /v1/completions HTTP/1.1\r\nHo",
            _ => {
                b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: \
                  application/json\r\nContent-Length: 100\r\n\r\n{\"pro"
            }
        };
        // The earliest may have been closed already.
        let _ = stream.write_all(part);
        idle.push(stream);
    }
    for _ in 0..5 {
        still_works(&s);
        get(s.address, "/health").ok();
        assert_eq!(get(s.address, "/metrics").status, 200);
    }
}

#[test]
fn operators_are_answered_when_every_connection_is_busy() {
    let s = start_with(
        1,
        Limits {
            slots: 1,
            context: 2048,
            connections: 2,
            ..limits()
        },
        &[],
    );
    let held = [open(&s, &endless(true)), open(&s, &endless(true))];
    until("both are being answered", || {
        get(s.address, "/health").ok();
        metric(&s, "muser_running") == 1.0 && metric(&s, "muser_waiting") == 1.0
    });
    let reply = get(s.address, "/v1/models");
    refused(&reply, 429);
    assert_eq!(code(&reply), "connections_full");
    drop(held);
    until("there is room again", || {
        get(s.address, "/v1/models").status == 200
    });
}

#[test]
fn a_body_has_to_come_fast_enough() {
    let s = start_with(
        1,
        Limits {
            read_time: Duration::from_millis(300),
            body_rate: 1 << 20,
            ..limits()
        },
        &[],
    );
    let body = json!({"prompt": "Once", "max_tokens": 1, "stop": ["x".repeat(60)]}).to_string();
    let begin = |body: &str| {
        let mut stream = connect(s.address);
        let head = head("POST", "/v1/completions", JSON, body.len());
        stream.write_all(head.as_bytes()).unwrap();
        stream
    };
    // A byte now and then is not enough, however long it goes on.
    let mut slow = begin(&body);
    for byte in body.as_bytes().chunks(1) {
        if slow.write_all(byte).is_err() {
            break;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    let reply = read(slow);
    refused(&reply, 408);
    assert!(
        reply.body.contains("1048576 bytes a second"),
        "{}",
        reply.body
    );
    let mut quick = begin(&body);
    quick.write_all(body.as_bytes()).unwrap();
    read(quick).ok();
    let mut head = connect(s.address);
    head.write_all(b"POST /v1/completions HTTP/1.1\r\nHo")
        .unwrap();
    refused(&read(head), 408);
}

#[test]
fn the_time_of_a_request_includes_its_body() {
    let s = start_with(
        1,
        Limits {
            request_time: Duration::from_millis(400),
            ..limits()
        },
        &[],
    );
    let mut slow = connect(s.address);
    let head = head("POST", "/v1/completions", JSON, 1000);
    slow.write_all(head.as_bytes()).unwrap();
    refused(&read(slow), 504);
    still_works(&s);
}

#[test]
fn a_whole_answer_ends_with_its_client_whatever_was_sent_behind_it() {
    let s = start_with(
        1,
        Limits {
            slots: 1,
            context: 2048,
            ..limits()
        },
        &[],
    );
    let next = "GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n".to_owned();
    let much = "x".repeat(200_000);
    for more in ["", "x", "\r\n", &next, &much] {
        let before = metric(&s, "muser_cancelled_total");
        let mut body = endless(false);
        body["n"] = 20.into();
        let mut stream = open(&s, &body);
        let _ = stream.write_all(more.as_bytes());
        until("it runs", || busy_slots(&s) == 1);
        drop(stream);
        until("it is cancelled", || {
            metric(&s, "muser_cancelled_total") > before
        });
        until("its slot is free", || busy_slots(&s) == 0);
    }
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
    assert_eq!(metric(&s, "muser_running"), 2.0);
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
    body["max_tokens"] = 300.into();
    let deaf = open_deaf(&s, &body);
    // Behind four choices that nobody reads, for long enough.
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
