//! Ctrl-C, as the signal it is.
#![cfg(unix)]
#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::process::{Child, Command, Stdio};

fn start(args: &[&str]) -> Child {
    Command::new(env!("CARGO_BIN_EXE_muser"))
        .args(args)
        .env_remove("MUSER_MODEL")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

/// Waits for the first byte of an answer, then sends the signal.
fn interrupt(child: &mut Child) {
    let mut first = [0];
    child
        .stdout
        .as_mut()
        .unwrap()
        .read_exact(&mut first)
        .unwrap();
    let pid = child.id().to_string();
    assert!(
        Command::new("kill")
            .args(["-INT", &pid])
            .status()
            .unwrap()
            .success()
    );
}

#[test]
fn run_ends_with_what_it_has() {
    let args = [
        "run",
        "--tokens",
        "4088",
        "--ids",
        "-n",
        "2000",
        "--ignore-eos",
    ];
    let mut child = start(&args);
    interrupt(&mut child);
    let out = child.wait_with_output().unwrap();
    assert_eq!(out.status.code(), Some(130));
    let ids = String::from_utf8(out.stdout).unwrap();
    assert!(
        ids.ends_with('\n') && ids.split(',').count() < 2000,
        "{ids}"
    );
    let told = String::from_utf8(out.stderr).unwrap();
    assert!(told.contains("decode") && !told.contains("error"), "{told}");
}

#[test]
fn chat_stops_the_answer_and_goes_on() {
    let mut child = start(&["chat", "--no-history", "--ignore-eos", "-q"]);
    let mut input = child.stdin.take().unwrap();
    writeln!(input, "Tell me a story.").unwrap();
    interrupt(&mut child);
    let mut told = BufReader::new(child.stderr.take().unwrap());
    let mut line = String::new();
    told.read_line(&mut line).unwrap();
    assert_eq!(line, "(stopped)\n");
    writeln!(input, "/help").unwrap();
    drop(input);
    let out = child.wait_with_output().unwrap();
    assert!(out.status.success(), "{}", out.status);
    assert!(String::from_utf8(out.stdout).unwrap().contains("/reset"));
}

/// Where nothing can stop half-way, the signal is the end, and the unfinished
/// file goes too.
#[test]
fn an_unfinished_file_is_removed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("big.gguf");
    // 4 GB, of which the first part will be written.
    let args = [
        "synth",
        "--geometry",
        "glimmer-30b",
        "--layers",
        "8",
        path.to_str().unwrap(),
    ];
    let child = start(&args);
    while folder.path().read_dir().unwrap().next().is_none() {
        std::thread::yield_now();
    }
    let pid = child.id().to_string();
    assert!(
        Command::new("kill")
            .args(["-INT", &pid])
            .status()
            .unwrap()
            .success()
    );
    assert_eq!(child.wait_with_output().unwrap().status.code(), Some(130));
    assert_eq!(folder.path().read_dir().unwrap().count(), 0);
}
