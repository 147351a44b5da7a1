//! `muser serve` as a process: its log, its signals, its options.
#![cfg(unix)]
#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]

mod common;

use common::muser;
use std::fs::File;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

/// A server that is killed if the test fails.
struct Served {
    child: Child,
    address: SocketAddr,
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn command(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_muser"));
    command
        .args(["serve", "--ctx", "256", "--threads", "1"])
        .args(args)
        .env_remove("MUSER_MODEL")
        .env_remove("MUSER_LOG")
        .stdin(Stdio::null());
    command
}

fn serve(args: &[&str], stderr: Stdio) -> Served {
    let mut command = command(&[&["--port", "0"], args].concat());
    let mut child = command
        .stdout(Stdio::piped())
        .stderr(stderr)
        .spawn()
        .unwrap();
    let mut line = String::new();
    let out = child.stdout.take().unwrap();
    BufReader::new(out).read_line(&mut line).unwrap();
    let address = line.trim().rsplit('/').next().unwrap().parse().unwrap();
    Served { child, address }
}

fn signal(child: &Child, name: &str) {
    let pid = child.id().to_string();
    let done = Command::new("kill").args([name, &pid]).status().unwrap();
    assert!(done.success());
}

impl Served {
    /// The answer to a request, whole.
    fn get(&self, path: &str, headers: &str) -> String {
        let mut stream = TcpStream::connect(self.address).unwrap();
        stream
            .set_read_timeout(Some(Duration::from_secs(60)))
            .unwrap();
        let request =
            format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{headers}\r\n");
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }

    fn terminate(&mut self) -> ExitStatus {
        signal(&self.child, "-TERM");
        self.child.wait().unwrap()
    }
}

fn lost(answer: &str) -> u64 {
    let lines = answer.lines();
    let mut lost = lines.filter_map(|l| l.strip_prefix("muser_log_lines_lost_total "));
    lost.next().unwrap().trim().parse().unwrap()
}

#[test]
fn a_full_or_closed_log_costs_lines_and_nothing_else() {
    let full = File::options().write(true).open("/dev/full").unwrap();
    let (reader, closed) = std::io::pipe().unwrap();
    drop(reader);
    for stderr in [full.into(), closed.into()] {
        let mut served = serve(&[], stderr);
        for _ in 0..5 {
            let answer = served.get("/health", "");
            assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        }
        // The thread that writes may be behind.
        while lost(&served.get("/metrics", "")) < 5 {}
        assert_eq!(served.terminate().code(), Some(0));
    }
}

#[test]
fn a_log_that_is_not_read_holds_up_neither_requests_nor_the_end() {
    // More lines than the pipe and the channel hold.
    let (reader, stalled) = std::io::pipe().unwrap();
    let mut served = serve(&[], stalled.into());
    for _ in 0..6000 {
        let answer = served.get("/health", "");
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    }
    assert!(lost(&served.get("/metrics", "")) > 0);
    assert_eq!(served.terminate().code(), Some(0));
    drop(reader);
}

#[test]
fn a_closed_standard_output_is_no_reason_to_end() {
    let free = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = free.local_addr().unwrap();
    drop(free);
    let (reader, closed) = std::io::pipe().unwrap();
    drop(reader);
    let port = address.port().to_string();
    let mut command = command(&["--quiet", "--port", &port]);
    let child = command
        .stdout(closed)
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut served = Served { child, address };
    while TcpStream::connect(address).is_err() {
        assert!(served.child.try_wait().unwrap().is_none(), "it has ended");
        std::thread::yield_now();
    }
    assert!(served.get("/health", "").starts_with("HTTP/1.1 200"));
    assert_eq!(served.terminate().code(), Some(0));
}

#[test]
fn hanging_up_reads_the_keys_anew() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("keys");
    std::fs::write(&path, "\u{feff}the first of the keys\r\n# a comment\r\n").unwrap();
    let mut served = serve(
        &["--quiet", "--api-key-file", path.to_str().unwrap()],
        Stdio::null(),
    );
    let opens = |served: &Served, key: &str| {
        let header = format!("Authorization: Bearer {key}\r\n");
        let answer = served.get("/v1/models", &header);
        answer.starts_with("HTTP/1.1 200")
    };
    assert!(opens(&served, "the first of the keys"));
    assert!(!opens(&served, "# a comment"));
    // What cannot be used changes nothing: told by what comes after it.
    std::fs::write(&path, "short\n").unwrap();
    signal(&served.child, "-HUP");
    assert!(opens(&served, "the first of the keys"));
    std::fs::write(&path, "the second of the keys\n").unwrap();
    signal(&served.child, "-HUP");
    while !opens(&served, "the second of the keys") {}
    assert!(!opens(&served, "the first of the keys"));
    assert_eq!(served.terminate().code(), Some(0));
}

#[test]
fn the_end_comes_with_the_grace_and_clients_are_told() {
    let mut served = serve(&["--quiet", "--grace", "1"], Stdio::null());
    let mut stream = TcpStream::connect(served.address).unwrap();
    let body =
        r#"{"prompt": "Once", "n": 100, "max_tokens": 250, "ignore_eos": true, "stream": true}"#;
    let head = format!(
        "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
         Content-Length: {}\r\n\r\n",
        body.len()
    );
    stream
        .write_all(format!("{head}{body}").as_bytes())
        .unwrap();
    let mut first = [0; 200];
    stream.read_exact(&mut first).unwrap();
    let reader = std::thread::spawn(move || {
        let mut rest = String::new();
        stream.read_to_string(&mut rest).unwrap();
        rest
    });
    assert_eq!(served.terminate().code(), Some(0));
    let rest = reader.join().unwrap();
    assert!(rest.contains("shutting_down"), "{rest}");
}

#[test]
fn durations_out_of_range_are_a_wrong_command_line() {
    let most = u64::MAX.to_string();
    for option in [
        "--timeout",
        "--grace",
        "--read-timeout",
        "--idle-timeout",
        "--unread-timeout",
    ] {
        for value in ["0", "86401", &most, "-1", "x"] {
            let told = muser(&["serve", &format!("{option}={value}")]).fails(2);
            assert!(told.contains(option), "{told}");
        }
    }
    for args in [
        ["serve", "--allow-origin", "*"],
        ["serve", "--allow-origin", "app.example"],
        ["serve", "--allow-host", "a:80"],
        ["serve", "--max-json-depth", "1000"],
        ["serve", "--memory-mib", "0"],
    ] {
        muser(&args).fails(2);
    }
}

#[test]
fn keys_that_no_header_carries_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("keys");
    for (text, says) in [
        ("# nothing\n\n", "expected a key, found none"),
        ("ein schlüssel mit umlaut\n", "U+00FC in key 1"),
        ("the first of the keys\nshort\n", "5 in key 2"),
    ] {
        std::fs::write(&path, text).unwrap();
        let told = muser(&["serve", "--api-key-file", path.to_str().unwrap()]).fails(2);
        assert!(told.contains(says), "{told}");
    }
}
