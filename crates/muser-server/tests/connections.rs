//! Connections: their heads and bodies, names, places and times.

#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]

mod common;

use common::{
    JSON, busy_slots, code, connect, endless, get, head, limits, metric, open, read, refused, send,
    start, start_with, still_works, until,
};
use muser_server::Limits;
use serde_json::json;
use std::io::{Read as _, Write as _};
use std::net::Shutdown;
use std::time::Duration;

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
        let reply = send(s.address, request.as_bytes());
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
    send(s.address, full.as_bytes()).ok();
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
    refused(&send(s.address, chunks("zz\r\n").as_bytes()), 400);
    let long = format!("1400\r\n{}\r\n0\r\n\r\n", " ".repeat(0x1400));
    refused(&send(s.address, chunks(&long).as_bytes()), 413);
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
        refused(&send(s.address, format!("{request}{{}}").as_bytes()), 415);
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
        send(address, request.as_bytes())
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
        let reply = send(s.address, request.as_bytes());
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
        send(s.address, request.as_bytes()).status
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
