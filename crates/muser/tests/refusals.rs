//! What goes wrong, with its exit code and its words.
#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]

mod common;

use common::{muser, text};
use std::path::{Path, PathBuf};
use tempfile::TempDir;

fn nano() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/glimmer-nano-2-q4_k_m.gguf")
}

fn path_in(folder: &TempDir, name: &str) -> String {
    folder.path().join(name).to_str().unwrap().to_owned()
}

/// A model of random weights, and no tokenizer.
fn tiny(folder: &TempDir) -> String {
    let path = path_in(folder, "tiny.gguf");
    muser(&["synth", "--geometry", "glimmer-tiny", &path, "-q"]).ok();
    path
}

#[test]
fn a_file_that_is_no_model() {
    let folder = tempfile::tempdir().unwrap();
    let (garbage, cut) = (path_in(&folder, "garbage"), path_in(&folder, "cut.gguf"));
    std::fs::write(&garbage, "not a model").unwrap();
    let bytes = std::fs::read(nano()).unwrap();
    std::fs::write(&cut, &bytes[..bytes.len() - 1]).unwrap();
    let missing = path_in(&folder, "missing.gguf");
    for path in [&garbage, &cut, &missing] {
        for command in [
            &["run", "x"][..],
            &["chat"],
            &["inspect"],
            &["tokenize", "x"],
            &["logits", "--tokens", "1", "--sha256"],
            &["perplexity", &garbage],
        ] {
            let error = muser(&[&["--model", path], command].concat()).fails(3);
            let first = format!("error: {path} cannot be used as a model\n  cause: ");
            assert!(error.starts_with(&first), "{error}");
            assert_eq!(error.lines().count(), 2, "one line a cause: {error}");
        }
    }
    let error = muser(&["inspect"]).env("MUSER_MODEL", &missing).fails(3);
    assert!(error.contains("missing.gguf"), "{error}");
    let error = muser(&["inspect", &cut]).fails(3);
    assert!(error.contains("tensor"), "the tensor is named: {error}");
    let out = path_in(&folder, "out.gguf");
    muser(&["convert", "--to", "f16", &cut, &out]).fails(3);
    assert!(!Path::new(&out).exists());
}

#[test]
fn the_command_line_is_wrong() {
    for (args, words) in [
        (&["run", "--level", "sse9"][..], "unknown level \"sse9\""),
        (&["run", "--lane", "loose"], "loose"),
        (&["run", "--threads", "0", "x"], "threads: expected 1 to"),
        (
            &["run", "-t", "-1", "x"],
            "temperature: expected 0 to 100, found -1",
        ),
        (&["run", "--top-p", "0", "x"], "top_p: expected above 0"),
        (
            &["run", "--logit-bias", "5", "x"],
            "expected a token id and a number",
        ),
        (
            &["run", "--logit-bias", "9999=1", "x"],
            "below the vocabulary's 4096",
        ),
        (&["run", "--context", "5000", "x"], "1 to the model's 2048"),
        (
            &["run", "--stop", "", "x"],
            "stop: expected 1 to 1024 bytes",
        ),
        (&["run", "--raw", "--chat", "x"], "cannot be used with"),
        (
            &["logits", "--tokens", "1,x", "--sha256"],
            "--tokens: expected numbers below 2^32, found \"x\"",
        ),
        (
            &["logits", "--tokens", "1,,2", "--sha256"],
            "--tokens: expected numbers below 2^32, found nothing between two commas",
        ),
        (
            &["logits", "--tokens", "1,2", "--sha256", "--chunks", "a"],
            "--chunks: expected numbers below 2^32, found \"a\"",
        ),
        (
            &["logits", "--tokens", "", "--sha256"],
            "at least one token",
        ),
        (&["logits", "--tokens", "1"], "--out"),
        (
            &["logits", "--tokens", "1,2", "--sha256", "--chunks", "0"],
            "sizes above 0",
        ),
        (&["synth", "--geometry", "huge", "x"], "glimmer-30b"),
        (&["synth", "--mix", "q2", "x"], "q4_k_m"),
        (&["convert", "--to", "q4_k", "a", "b"], "q4_k"),
        (&["detokenize", "1;2"], "found \"1;2\""),
        (&["frobnicate"], "frobnicate"),
    ] {
        let error = muser(args).fails(2);
        assert!(error.contains(words), "{args:?}: {error}");
    }
}

#[test]
fn it_fails_with_its_reason() {
    let long = vec!["1"; 2049].join(",");
    for (args, words) in [
        (
            &["logits", "--tokens", &long, "--sha256"][..],
            "the context is full: 2049 tokens need as many positions, the session has 2048",
        ),
        (&["detokenize", "4096"], "4096"),
        (
            &["logits", "--tokens", "@/no/such/file", "--sha256"],
            "/no/such/file cannot be read",
        ),
        (
            &["run", "--file", "/no/such/file"],
            "/no/such/file cannot be read",
        ),
        (
            &["logits", "--tokens", "1", "--out", "/no/such/folder/x"],
            "cannot be written",
        ),
        (&["perplexity", "/dev/null"], "no token to predict"),
    ] {
        let error = muser(args).fails(1);
        assert!(error.contains(words), "{args:?}: {error}");
    }
}

#[test]
fn what_fits_a_full_context_is_written_first() {
    let args = [
        "run",
        "--tokens",
        "1,2,3",
        "-n",
        "9",
        "--context",
        "8",
        "--ignore-eos",
        "--ids",
    ];
    let out = muser(&args).output();
    assert_eq!(out.status.code(), Some(1));
    assert_eq!(
        text(&out).trim().split(',').count(),
        6,
        "5 positions, and one more choice"
    );
    // Without -n the room is the limit, and no error.
    let args = [
        "run",
        "--tokens",
        "1,2,3",
        "--context",
        "8",
        "--ignore-eos",
        "--ids",
        "-q",
    ];
    assert_eq!(text(&muser(&args).ok()).trim().split(',').count(), 6);
}

#[test]
fn a_model_without_a_tokenizer() {
    let folder = tempfile::tempdir().unwrap();
    let model = tiny(&folder);
    let with = |args: &[&str]| muser(&[&["--model", &model], args].concat());
    let error = with(&["run", "hello"]).fails(2);
    assert!(error.contains("--tokens"), "{error}");
    for args in [&["chat"][..], &["tokenize", "x"], &["detokenize", "1"]] {
        let error = with(args).fails(2);
        assert!(error.contains("the model has no"), "{args:?}: {error}");
    }
    let ids = text(&with(&["run", "--tokens", "1,2,3", "-n", "4", "-q", "--seed", "1"]).ok());
    assert_eq!(ids.trim().split(',').count(), 4, "{ids}");
    let json = with(&["run", "--tokens", "1", "-n", "2", "--json"]).ok();
    let json: serde_json::Value = serde_json::from_slice(&json.stdout).unwrap();
    assert_eq!(
        (json["tokens"].as_array().unwrap().len(), &json["text"]),
        (2, &"".into())
    );
    let out = text(&with(&["inspect"]).ok());
    assert!(out.contains("sliding layers"), "{out}");
}

#[test]
fn nothing_is_overwritten_unasked() {
    let folder = tempfile::tempdir().unwrap();
    let model = tiny(&folder);
    let before = std::fs::read(&model).unwrap();
    let synth = [
        "synth",
        "--geometry",
        "glimmer-tiny",
        "--seed",
        "2",
        &model,
        "-q",
    ];
    let convert = ["convert", "--to", "f32", &model, &model, "-q"];
    for args in [&synth[..], &convert] {
        let error = muser(args).fails(1);
        assert!(error.contains("exists: --force overwrites it"), "{error}");
        assert_eq!(std::fs::read(&model).unwrap(), before);
    }
    muser(&[&synth[..], &["--force"]].concat()).ok();
    assert_ne!(std::fs::read(&model).unwrap(), before);
    // What fails leaves nothing behind.
    let odd = path_in(&folder, "odd.gguf");
    muser(&[
        "synth",
        "--geometry",
        "glimmer-tiny",
        "--hidden",
        "255",
        &odd,
    ])
    .fails(2);
    let names: Vec<_> = folder
        .path()
        .read_dir()
        .unwrap()
        .map(|e| e.unwrap().file_name())
        .collect();
    assert_eq!(names, ["tiny.gguf"]);
}

#[test]
fn a_converted_model_runs_and_keeps_its_hashes() {
    let folder = tempfile::tempdir().unwrap();
    let (model, f16) = (tiny(&folder), path_in(&folder, "f16.gguf"));
    muser(&["convert", "--to", "f16", &model, &f16, "-q"]).ok();
    let json = muser(&["inspect", &f16, "--json"]).ok();
    let report: serde_json::Value = serde_json::from_slice(&json.stdout).unwrap();
    let formats = report["classes"]
        .as_array()
        .unwrap()
        .iter()
        .map(|c| c["format"].as_str());
    let formats: Vec<&str> = formats.map(Option::unwrap).collect();
    assert!(
        formats.iter().all(|f| ["F16", "F32"].contains(f)),
        "{formats:?}"
    );
    let hash = |more: &[&str]| {
        let args = [
            "--model",
            &f16,
            "logits",
            "--tokens",
            "1,2,3,4,5,6,7,8",
            "--sha256",
        ];
        text(&muser(&[&args, more].concat()).ok())
    };
    let plain = hash(&[]);
    assert_eq!(
        hash(&["--level", "scalar", "--threads", "3", "--chunks", "1,3"]),
        plain
    );
    assert_eq!(hash(&["--cut-back", "2"]), plain);
}

/// A reader that leaves early is no failure.
#[cfg(unix)]
#[test]
fn a_broken_pipe_ends_quietly() {
    use std::process::{Command, Stdio};
    let mut child = Command::new(env!("CARGO_BIN_EXE_muser"))
        .args([
            "run",
            "--tokens",
            "1,2,3",
            "-n",
            "2000",
            "--ignore-eos",
            "-q",
        ])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let out = child.wait_with_output().unwrap();
    assert!(out.status.success(), "{}", out.status);
    assert_eq!(String::from_utf8(out.stderr).unwrap(), "");
}

/// The logits do not replace the model that they come from, by any name of it.
#[test]
fn logits_over_their_own_model() {
    let folder = tempfile::tempdir().unwrap();
    let model = tiny(&folder);
    let before = std::fs::read(&model).unwrap();
    let other = format!("{}/./tiny.gguf", folder.path().display());
    for out in [&model, &other] {
        let args = ["--model", &model, "logits", "--tokens", "1", "--out", out];
        let error = muser(&args).fails(2);
        let want = "--out: expected another file than the model";
        assert!(error.contains(want), "{error}");
    }
    assert!(
        std::fs::read(&model).unwrap() == before,
        "the model is as it was"
    );
}

/// SECURITY.md: a file does not play on the terminal.
#[test]
fn escapes_in_a_file_stay_text() {
    let folder = tempfile::tempdir().unwrap();
    let path = path_in(&folder, "escapes.gguf");
    let bytes = std::fs::read(tiny(&folder)).unwrap();
    // The same length, so that nothing else of the file moves; the second has
    // the right architecture and shows its name and a key that nobody reads.
    let replaced = |from: &[u8], to: &[u8]| {
        let at = bytes.windows(from.len()).position(|w| w == from).unwrap();
        let mut bytes = bytes.clone();
        bytes[at..at + to.len()].copy_from_slice(to);
        std::fs::write(&path, bytes).unwrap();
    };
    replaced(b"muse-glimmer", b"\x1b[2J\x1b[31mX\n");
    let error = muser(&["--model", &path, "run", "x"]).fails(3);
    assert!(
        error.contains("\\u{1b}[2J") && !error.contains('\x1b'),
        "{error:?}"
    );
    replaced(b"general.file_type", b"general.f\x1b[2Jype");
    let shown = text(&muser(&["--model", &path, "inspect"]).ok());
    assert!(shown.contains("general.f\\u{1b}[2Jype") && !shown.contains('\x1b'));
}

/// Exit code 2 is the command line's, whichever option it was.
#[test]
fn what_the_command_line_cannot_ask_for() {
    let folder = tempfile::tempdir().unwrap();
    let (model, out) = (tiny(&folder), path_in(&folder, "out.gguf"));
    muser(&["run", "--tokens", "99999"]).fails(2);
    let error = muser(&["logits", "--tokens", "1,4096", "--sha256"]).fails(2);
    let want = "token 4096 at position 1 is not in the vocabulary of 4096";
    assert!(error.contains(want), "{error}");
    muser(&["synth", "--layers", "0", &out]).fails(2);
    muser(&["--model", &model, "tokenize", "x"]).fails(2);
    muser(&["--model", &model, "run", "x"]).fails(2);
}
