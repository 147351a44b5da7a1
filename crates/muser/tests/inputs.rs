//! What texts come from files, standard input and options, and how a command
//! ends that is cut off.
#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]

mod common;

use common::{muser, text};
use muser_gguf::{Gguf, Value, Writer};
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use tempfile::TempDir;

const GREEDY: [&str; 4] = ["-n", "8", "-q", "-t=0"];

fn run(args: &[&str], stdin: &str) -> String {
    text(&muser(&[&["run"], args, &GREEDY].concat()).stdin(stdin).ok())
}

fn file(folder: &TempDir, name: &str, bytes: &[u8]) -> String {
    let path = folder.path().join(name);
    std::fs::write(&path, bytes).unwrap();
    path.to_str().unwrap().to_owned()
}

#[test]
fn marks_and_line_ends_are_no_part_of_a_text() {
    let folder = tempfile::tempdir().unwrap();
    let argument = run(&["Tell me a story."], "");
    for input in [
        "Tell me a story.\r\n",
        "Tell me a story.\n",
        "\u{feff}Tell me a story.",
        "\u{feff}Tell me a story.\r\n",
    ] {
        assert_eq!(run(&["-"], input), argument, "{input:?}");
        assert_eq!(run(&[], input), argument, "{input:?}");
        let path = file(&folder, "prompt.txt", input.as_bytes());
        assert_eq!(run(&["--file", &path], ""), argument, "{input:?}");
    }
    let hash = |tokens: &str| {
        let args = ["logits", "--sha256", "--tokens", tokens];
        text(&muser(&args).ok())
    };
    let list = file(&folder, "ids", "\u{feff}4088,377\r\n274\r\n".as_bytes());
    assert_eq!(hash(&format!("@{list}")), hash("4088,377,274"));
    let ids = muser(&["detokenize"]).stdin("\u{feff}4088,377\r\n").ok();
    assert_eq!(text(&ids), text(&muser(&["detokenize", "4088,377"]).ok()));
    let tokens = |path: &str| text(&muser(&["tokenize", "--file", path]).ok());
    let (plain, marked) = (
        file(&folder, "a", b"a b"),
        file(&folder, "b", "\u{feff}a b".as_bytes()),
    );
    assert_eq!(tokens(&plain), tokens(&marked));
    let lines = |bytes: &[u8]| {
        let path = file(&folder, "lines.jsonl", bytes);
        text(&muser(&["perplexity", &path, "--json"]).ok())
    };
    let unix = lines(b"{\"text\": \"Once there was a fox.\"}\n");
    assert_eq!(
        lines("\u{feff}{\"text\": \"Once there was a fox.\"}\r\n".as_bytes()),
        unix
    );
    let chat = |lines: &str| {
        let args = ["chat", "--no-history", "-n", "8", "-t", "0", "-q"];
        text(&muser(&args).stdin(lines).ok())
    };
    let said = chat("Tell me a story.\n");
    assert_eq!(chat("\u{feff}Tell me a story.\r\n"), said);
    // The last line may say that another comes; it was said all the same.
    assert_eq!(chat("Tell me a story.\\"), said);
    assert_eq!(chat("Tell me a story.\\\n"), said);
}

/// A server over a file of keys, and whether a key opens it.
#[test]
fn a_file_of_keys_may_come_from_anywhere() {
    let folder = tempfile::tempdir().unwrap();
    let key = "a key of sixteen letters";
    let keys = file(&folder, "keys", format!("\u{feff}{key}\r\n").as_bytes());
    let mut child = start(&["serve", "--port", "0", "-q", "--api-key-file", &keys]);
    let mut line = String::new();
    let mut out = BufReader::new(child.stdout.take().unwrap());
    out.read_line(&mut line).unwrap();
    let address = line.trim().strip_prefix("listening on http://").unwrap();
    let mut stream = TcpStream::connect(address).unwrap();
    let head = format!(
        "GET /v1/models HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\nAuthorization: Bearer {key}\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    signal(&child, "-TERM");
    assert!(child.wait().unwrap().success());
}

#[test]
fn values_may_begin_with_a_dash() {
    let plain = run(&["Tell me a story."], "");
    for stop in ["---", "-1", "--json"] {
        assert_eq!(run(&["Tell me a story.", "--stop", stop], ""), plain);
    }
    run(&["Tell me a story.", "--system", "-x"], "");
    let args = ["chat", "--system", "--x", "--no-history", "-q", "-n", "4"];
    muser(&args).stdin("Hi\n").ok();
    let folder = tempfile::tempdir().unwrap();
    let path = file(&folder, "l.jsonl", b"{\"-a\": \"Once there was a fox.\"}\n");
    muser(&["perplexity", &path, "--field", "-a"]).ok();
}

#[test]
fn what_has_no_end_is_refused() {
    for args in [
        &["run", "--file", "/dev/zero"][..],
        &["tokenize", "--file", "/dev/zero"],
        &["perplexity", "/dev/zero"],
        &["logits", "--sha256", "--tokens", "@/dev/zero"],
        &["parity", "--receipt", "/dev/zero"],
        &["serve", "--port", "0", "--api-key-file", "/dev/zero"],
        &["chat", "--no-history", "-q"],
    ] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_muser"));
        let zero = std::fs::File::open("/dev/zero").unwrap();
        let command = command.args(args).env_remove("MUSER_MODEL").stdin(zero);
        let piped = command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let child = piped.spawn().unwrap();
        let out = child.wait_with_output().unwrap();
        let told = String::from_utf8(out.stderr).unwrap();
        assert!(!out.status.success(), "{args:?}");
        assert!(told.contains("bytes, found more"), "{args:?}: {told}");
    }
}

#[test]
fn a_context_that_is_full_is_told_with_what_there_is() {
    let args = [
        "run",
        "--raw",
        "--context",
        "12",
        "Once upon a time",
        "-n",
        "50",
        "-t",
        "0",
    ];
    let out = muser(&[&args[..], &["--json"]].concat()).output();
    assert_eq!(out.status.code(), Some(1));
    let report: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap();
    assert_eq!(report["stop"], "context");
    let (prompt, tokens) = (&report["prompt_tokens"], &report["tokens"]);
    let count = prompt.as_array().unwrap().len() + tokens.as_array().unwrap().len();
    // The last token needs no position.
    assert_eq!(count, 13);
    assert!(!report["text"].as_str().unwrap().is_empty());
    let told = String::from_utf8(out.stderr).unwrap();
    assert!(told.contains("the context is full: 13 tokens"), "{told}");
    let plain = muser(&args).output();
    assert_eq!(plain.status.code(), Some(1));
    assert_eq!(text(&plain).trim_end(), report["text"].as_str().unwrap());
}

#[test]
fn a_header_that_is_cut_off_is_not_shown() {
    for n in ["1", "2", "3"] {
        let out = muser(&["run", "hi", "-n", n, "-q", "-t", "0", "--json"]).ok();
        let report: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap();
        assert_eq!(
            (&report["text"], &report["stop"]),
            (&"".into(), &"length".into())
        );
    }
}

#[test]
fn parts_of_characters_are_bytes() {
    let shown = text(&muser(&["tokenize", "--pieces", "--no-bos", "日"]).ok());
    let pieces: Vec<&str> = shown
        .lines()
        .filter_map(|l| Some(l.trim().split_once("  ")?.1))
        .collect();
    let bytes: String = pieces.iter().map(|p| p.trim_matches('"')).collect();
    assert_eq!(bytes, "\\xe6\\x97\\xa5");
    let json = muser(&["tokenize", "--pieces", "--no-bos", "--json", "日"]).ok();
    let json: serde_json::Value = serde_json::from_slice(&json.stdout).unwrap();
    let each = json.as_array().unwrap().iter();
    let all: Vec<serde_json::Value> = each
        .flat_map(|p| p["bytes"].as_array().unwrap().clone())
        .collect();
    assert_eq!(
        serde_json::Value::from(all),
        serde_json::json!([0xe6, 0x97, 0xa5])
    );
    assert!(json[0]["text"].is_null());
}

/// One receipt that is not there says nothing of the others.
#[test]
fn every_receipt_is_looked_at() {
    let folder = tempfile::tempdir().unwrap();
    let receipts = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/receipts");
    let good = receipts.join("strict-nano-one-call.json");
    let good = good.to_str().unwrap();
    let missing = folder.path().join("missing.json");
    let out = muser(&["parity", "--receipt", good, missing.to_str().unwrap(), good]).output();
    assert_eq!(out.status.code(), Some(1));
    assert_eq!(text(&out).matches(": holds").count(), 2);
    let told = String::from_utf8(out.stderr).unwrap();
    assert!(
        told.contains("missing.json: not checked: ") && told.contains("1 of 3"),
        "{told}"
    );
    // What a receipt says cannot move the cursor.
    let receipt = std::fs::read_to_string(good).unwrap();
    let mut forged: serde_json::Value = serde_json::from_str(&receipt).unwrap();
    forged["logits"]["sha256"] = "\u{1b}[2K\rholds\u{9b}1A".into();
    let forged = file(&folder, "forged.json", forged.to_string().as_bytes());
    let out = muser(&["parity", "--receipt", &forged]).output();
    assert_eq!(out.status.code(), Some(1));
    let all = text(&out) + &String::from_utf8(out.stderr).unwrap();
    assert!(
        all.contains("DOES NOT HOLD") && all.contains("\\u{1b}[2K\\u{d}holds\\u{9b}1A"),
        "{all:?}"
    );
    assert!(!all.contains(['\u{1b}', '\r', '\u{9b}']));
}

/// The embedded model with other keys.
fn changed(path: &Path, drop: &[&str], add: &[(&str, Value)]) {
    let nano =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/glimmer-nano-2-q4_k_m.gguf");
    let gguf = Gguf::open(&nano).unwrap();
    let mut writer = Writer::new();
    for entry in gguf.metadata().iter() {
        if !drop.contains(&entry.key.as_str()) {
            writer.metadata(&entry.key, entry.value.clone()).unwrap();
        }
    }
    for (key, value) in add {
        writer.metadata(*key, value.clone()).unwrap();
    }
    for info in gguf.tensors() {
        writer.tensor(&info.name, &info.dims, info.ty).unwrap();
    }
    let mut out = writer.start(std::fs::File::create(path).unwrap()).unwrap();
    for info in gguf.tensors() {
        out.tensor(&info.name, &gguf.tensor_data(info)).unwrap();
    }
    out.finish().unwrap();
}

#[test]
fn files_that_could_not_answer_are_refused_when_they_are_loaded() {
    let folder = tempfile::tempdir().unwrap();
    let path: PathBuf = folder.path().join("model.gguf");
    let model = path.to_str().unwrap();
    let split = [("split.no", Value::U16(1)), ("split.count", Value::U16(3))];
    changed(&path, &[], &split);
    let error = muser(&["--model", model, "run", "x"]).fails(3);
    assert!(
        error.contains("part 2 of the 3 of a split model"),
        "{error}"
    );
    let bos = "tokenizer.ggml.bos_token_id";
    let adds = ("tokenizer.ggml.add_bos_token", Value::Bool(true));
    changed(&path, &[bos, adds.0], &[adds]);
    for command in [&["run", "x"][..], &["tokenize", "x"]] {
        let error = muser(&[&["--model", model], command].concat()).fails(3);
        let want = "add_bos_token is true: expected a bos_token_id with it, found none";
        assert!(error.contains(want), "{error}");
    }
}

fn start(args: &[&str]) -> Child {
    let mut command = Command::new(env!("CARGO_BIN_EXE_muser"));
    let piped = command
        .args(args)
        .env_remove("MUSER_MODEL")
        .stdin(Stdio::piped());
    piped
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

fn signal(child: &Child, name: &str) {
    let pid = child.id().to_string();
    let sent = Command::new("kill").args([name, &pid]).status().unwrap();
    assert!(sent.success());
}

/// Whatever ends it: no unfinished file is left.
#[cfg(unix)]
#[test]
fn an_unfinished_file_is_removed_on_every_signal() {
    let folder = tempfile::tempdir().unwrap();
    let out = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (big, rows) = (out("big.gguf"), out("rows.f32"));
    let ids = vec!["5"; 2000].join(",");
    let synth = ["synth", "--geometry", "glimmer-30b", "--layers", "8", &big];
    let logits = ["logits", "--tokens", &ids, "--out", &rows];
    for (args, name, code) in [
        (&synth[..], "-TERM", 143),
        (&synth, "-HUP", 129),
        (&logits, "-TERM", 143),
        (&logits, "-HUP", 129),
    ] {
        let child = start(args);
        while folder.path().read_dir().unwrap().next().is_none() {
            std::thread::yield_now();
        }
        signal(&child, name);
        let out = child.wait_with_output().unwrap();
        assert_eq!(out.status.code(), Some(code), "{args:?} {name}");
        assert_eq!(folder.path().read_dir().unwrap().count(), 0, "{args:?}");
    }
}
