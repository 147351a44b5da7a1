//! The receipts in `fixtures/receipts`, at every level of this machine, and
//! what happens to one that is not right.
//!
//! A level that the machine lacks is reported as ignored, and so are the pinned
//! lane where the build does not support it and long runs at the scalar level.
#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]

mod common;

use common::{muser, text};
use libtest_mimic::{Arguments, Trial};
use muser_cpu::Level;
use muser_ops::Profile;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

fn main() {
    let mut trials = vec![
        Trial::test("broken receipts do not hold", || {
            broken();
            Ok(())
        }),
        Trial::test("recording", || {
            recording();
            Ok(())
        }),
    ];
    let receipts = receipts();
    assert!(receipts.len() >= 14, "receipts are missing: {receipts:?}");
    for path in receipts {
        let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
        for level in Level::ALL {
            // One value at a time, about 100 tokens a second: the short runs of
            // the quantised model are what the edit loop has time for. The others
            // are listed as ignored; `-- --include-ignored` runs them.
            let long = name.ends_with("decode") || name.contains("-f16-");
            let slow = level == Level::Scalar && long;
            let pinned = !name.starts_with("strict");
            let missing = !level.is_available() || (pinned && !Profile::is_supported());
            let path = path.clone();
            let run = move || {
                holds(&path, level);
                Ok(())
            };
            let trial = Trial::test(format!("{name}/{level}"), run);
            trials.push(trial.with_ignored_flag(missing || slow));
        }
    }
    libtest_mimic::run(&Arguments::from_args(), trials).exit();
}

fn receipts() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/receipts");
    let files = std::fs::read_dir(folder).unwrap();
    let mut files: Vec<PathBuf> = files.map(|f| f.unwrap().path()).collect();
    files.sort_unstable();
    files
}

/// The F16 conversion of the embedded model, made once.
fn f16() -> &'static str {
    static FILE: OnceLock<(tempfile::TempDir, String)> = OnceLock::new();
    let (_, path) = FILE.get_or_init(|| {
        let folder = tempfile::tempdir().unwrap();
        let nano = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("../../models/glimmer-nano-2-q4_k_m.gguf")
            .display()
            .to_string();
        let path = folder.path().join("f16.gguf").display().to_string();
        muser(&["convert", "--to", "f16", &nano, &path, "--quiet"]).ok();
        (folder, path)
    });
    path
}

fn holds(path: &Path, level: Level) {
    let path = path.to_str().unwrap();
    let mut args = vec!["parity", "--receipt", path, "--level", level.name()];
    if path.contains("-f16-") {
        args.extend(["--model", f16()]);
    }
    let out = text(&muser(&args).ok());
    assert!(out.trim_end().ends_with("holds"), "{out}");
    assert!(out.contains(&format!(", {level}, ")), "{out}");
}

fn broken() {
    let folder = tempfile::tempdir().unwrap();
    let good = receipts()
        .into_iter()
        .find(|p| p.ends_with("strict-nano-one-call.json"))
        .unwrap();
    let good = std::fs::read_to_string(good).unwrap();
    let file = |text: &str| {
        let path = folder.path().join("receipt.json");
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    // Another token: other logits.
    let other = good.replacen("[1,4,7,", "[1,4,8,", 1);
    assert_ne!(other, good);
    let call = muser(&["parity", "--receipt", &file(&other)]).output();
    assert_eq!(call.status.code(), Some(1));
    let told = text(&call);
    assert!(
        told.contains("DOES NOT HOLD: expected 160 rows of 4096 with SHA-256"),
        "{told}"
    );
    let error = String::from_utf8_lossy(&call.stderr).into_owned();
    assert!(error.contains("1 of 1 receipts do not hold"), "{error}");

    let model = muser(&["parity", "--receipt", &file(&good), "--model", f16()]).output();
    let told = String::from_utf8_lossy(&model.stderr).into_owned() + &text(&model);
    assert_eq!(model.status.code(), Some(1), "{told}");
    assert!(
        told.contains("is of another model: expected SHA-256 e89225af"),
        "{told}"
    );
    let none = muser(&["parity", "--receipt", &file("{}")]).output();
    let told = String::from_utf8_lossy(&none.stderr).into_owned() + &text(&none);
    assert_eq!(none.status.code(), Some(1), "{told}");
    assert!(told.contains("is no receipt"), "{told}");
    let lane = muser(&["parity", "--receipt", &file(&good), "--threads", "2"]).fails(2);
    assert!(lane.contains("a receipt names its own"), "{lane}");
    muser(&["parity"])
        .output()
        .status
        .code()
        .filter(|&c| c == 2)
        .unwrap();
}

/// What is recorded holds, whatever the calls were; and only what was expected
/// is recorded.
fn recording() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("r.json").display().to_string();
    let tokens = ["--tokens", "5,6,7,8,9"];
    let record = |more: &[&str]| {
        let args = [&["parity", "--record", &path], &tokens[..], more].concat();
        muser(&args)
    };
    let zeros = "0".repeat(64);
    let error = record(&["--expect", &zeros]).fails(1);
    assert!(error.contains("nothing is recorded"), "{error}");
    assert!(!Path::new(&path).exists());
    record(&["--chunks", "2,1"]).ok();
    let first = std::fs::read_to_string(&path).unwrap();
    muser(&["parity", "--receipt", &path]).ok();
    let error = record(&[]).fails(1);
    assert!(error.contains("--force"), "{error}");
    record(&["--force"]).ok();
    let hash = |text: &str| {
        let receipt: serde_json::Value = serde_json::from_str(text).unwrap();
        receipt["logits"]["sha256"].as_str().unwrap().to_owned()
    };
    let second = std::fs::read_to_string(&path).unwrap();
    assert_ne!(first, second);
    assert_eq!(
        hash(&first),
        hash(&second),
        "the strict lane's calls move nothing"
    );
    if !Profile::is_supported() {
        return;
    }
    let error = record(&["--force", "--lane", "pinned"]).fails(2);
    assert!(
        error.contains("--profile llamacpp-avx2 or llamacpp-avx512"),
        "{error}"
    );
    let pinned = ["--force", "--lane", "pinned", "--profile", "llamacpp-avx2"];
    record(&pinned).ok();
    let one = hash(&std::fs::read_to_string(&path).unwrap());
    record(&[&pinned[..], &["--chunks", "1,1,1"]].concat()).ok();
    let three = hash(&std::fs::read_to_string(&path).unwrap());
    assert_ne!(
        one, three,
        "in the pinned lane calls are part of the question"
    );
}
