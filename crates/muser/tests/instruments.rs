//! The instruments: budget, profile and bench. What they count is exact and
//! tested; what they time is not.
#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]

mod common;

use common::{muser, text};
use muser_model::synth::{self, Geometry, Mix};
use serde_json::Value;
use std::io::Write as _;

fn json(args: &[&str]) -> Value {
    serde_json::from_slice(&muser(args).ok().stdout).unwrap()
}

/// A file of the release's geometry and formats: its header, and a hole where
/// its weights are.
fn release() -> tempfile::NamedTempFile {
    let geometry = Geometry::named("glimmer-30b").unwrap();
    let (header, length) = synth::header(&geometry, Mix::Q4KM).unwrap();
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(&header).unwrap();
    file.as_file().set_len(length).unwrap();
    file
}

#[test]
fn budget_of_the_release() {
    let file = release();
    let path = file.path().to_str().unwrap();
    let out = text(&muser(&["budget", path, "--bandwidth", "33.4"]).ok());
    for part in [
        "27,854,794,240 parameters, 26,508,558,336 of them in the projections",
        "q 27,262,976 + k 1,703,936 + v 1,703,936 + gate 27,262,976 = 57,933,824 (12.0 %)",
        "32.6 MB at Q4_K, 39.8 MB at Q5_K, 47.5 MB at Q6_K",
        "output         27,262,976 (5.6 %)",
        "gate 132,907,008 + up 132,907,008 + down 132,907,008 (82.4 %)",
        "Projections of a layer: 483,917,824 weights",
        "1,826,619,392",
        "at 33.4 GB/s\n",
    ] {
        assert!(out.contains(part), "{part}: {out}");
    }
    let depths = ["--bandwidth", "33.4", "--depths", "1,131072"];
    let report = json(&[&["budget", path, "--json"], &depths[..]].concat());
    let bytes = report["token"]["bytes"].as_u64().unwrap();
    assert_eq!(bytes / 10_000_000, 1598, "15.99 GB");
    assert_eq!(report["classes"]["attention_set"]["formats"][1], "Q6_K");
    assert_eq!(report["layers"].as_array().unwrap().len(), 52);
    assert_eq!(report["layers"][3]["sliding"], false);
    let deep = &report["depths"][1];
    assert_eq!(deep["kv_bytes"], 1_826_619_392u64);
    assert_eq!(deep["bytes"], bytes + 1_826_619_392);
    let speed = deep["roofline_tok_s"].as_f64().unwrap();
    assert!((speed - 33.4e9 / (bytes + 1_826_619_392) as f64).abs() < 1e-9);
    assert_eq!(report["bandwidth_measured"], false);
}

#[test]
fn budget_of_the_embedded_model() {
    let out = text(&muser(&["budget", "--layers"]).ok());
    assert!(out.contains("24,136,192 parameters"), "{out}");
    assert!(out.contains("GB/s, measured"), "{out}");
    let report = json(&["budget", "--json", "--bandwidth", "1"]);
    let sum = |key: &str| -> u64 {
        let parts = report[key].as_object().unwrap().values();
        parts.map(|part| part["bytes"].as_u64().unwrap()).sum()
    };
    assert_eq!(sum("classes"), report["token"]["bytes"]);
    assert_eq!(sum("formats"), report["token"]["bytes"]);
    let last = report["depths"].as_array().unwrap().last().unwrap();
    assert_eq!(last["positions"], 2048, "the context");
}

#[test]
fn budget_refuses() {
    for (args, words) in [
        (&["--bandwidth", "0"][..], "expected a number above 0"),
        (&["--bandwidth", "fast"], "expected a number above 0"),
        (&["--depths", "0"], "0 is not in 1.."),
    ] {
        let error = muser(&[&["budget"], args].concat()).fails(2);
        assert!(error.contains(words), "{error}");
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("no.gguf");
    std::fs::write(&path, "not a model").unwrap();
    muser(&["budget", path.to_str().unwrap()]).fails(3);
}

/// The embedded model has eight layers, six of them sliding.
const LAYERS: u64 = 8;

#[test]
fn profile_counts_sets_and_dispatches() {
    let folder = tempfile::tempdir().unwrap();
    let trace = folder.path().join("trace.json");
    let trace = trace.to_str().unwrap();
    let args = ["profile", "--prompt", "5", "--decode", "2", "--rounds", "2"];
    let report = json(&[&args[..], &["--json", "--trace", trace]].concat());
    let projections = |phase: &str| {
        let ops = report[phase]["ops"].as_array().unwrap().iter();
        let sum = |(sets, dispatches), op: &Value| {
            let more = [&op["sets"], &op["dispatches"]].map(|n| n.as_u64().unwrap());
            (sets + more[0], dispatches + more[1])
        };
        ops.filter(|op| op["sets"] != 0).fold((0, 0), sum)
    };
    // q k v gate, output, gate up, down; and the head.
    assert_eq!(projections("decode"), (4 * LAYERS + 1, 8 * LAYERS + 1));
    // The last layer of a prompt computes Q and gate for one row only.
    assert_eq!(projections("prefill"), (4 * LAYERS + 2, 8 * LAYERS + 1));
    let ops = report["decode"]["ops"].as_array().unwrap();
    let set = ops
        .iter()
        .find(|op| op["op"] == "attn_q+attn_gate+attn_k+attn_v");
    let set = set.unwrap();
    assert_eq!(
        (&set["calls"], &set["sets"]),
        (&LAYERS.into(), &LAYERS.into())
    );
    assert_eq!(set["dispatches"], 4 * LAYERS);

    let totals = &report["decode"]["totals"];
    assert_eq!(totals["sets"], 4 * LAYERS + 1);
    let budget = json(&["budget", "--json", "--bandwidth", "1", "--depths", "6,7"]);
    assert_eq!(totals["weight_bytes"], budget["token"]["bytes"]);
    let seen = |i: usize| budget["depths"][i]["kv_bytes"].as_f64().unwrap();
    let stored = (512 * LAYERS) as f64;
    let kv = totals["kv_bytes"].as_f64().unwrap();
    assert_eq!(kv, (seen(0) + seen(1)) / 2.0 + stored);
    let sum = |key: &str, of: &str| -> u64 {
        let lines = report["decode"][of].as_array().unwrap().iter();
        lines.map(|line| line[key].as_u64().unwrap()).sum()
    };
    for key in ["calls", "sets", "dispatches", "weight_bytes"] {
        assert_eq!(sum(key, "ops"), totals[key], "{key}");
        assert_eq!(sum(key, "layers"), totals[key], "{key}");
    }

    let trace: Value = serde_json::from_slice(&std::fs::read(trace).unwrap()).unwrap();
    let spans = trace["traceEvents"].as_array().unwrap();
    let of = |category: &str| spans.iter().filter(|s| s["cat"] == category).count() as u64;
    let calls = |phase: &str| report[phase]["totals"]["calls"].as_u64().unwrap();
    assert_eq!(of("operation"), calls("prefill") + 2 * calls("decode"));
    assert_eq!((of("pass"), of("stage")), (3, 3 * (2 * LAYERS + 2)));
    // Spans nest: what begins inside another ends inside it.
    let mut open: Vec<f64> = Vec::new();
    for span in spans.iter().filter(|s| s["ph"] == "X") {
        let start = span["ts"].as_f64().unwrap();
        let end = start + span["dur"].as_f64().unwrap();
        while open.last().is_some_and(|&until| until <= start + 1e-6) {
            open.pop();
        }
        assert!(
            open.last().is_none_or(|&until| end <= until + 1e-6),
            "{span}"
        );
        open.push(end);
    }
}

#[test]
fn profile_as_text() {
    let args = ["profile", "--prompt", "2", "--decode", "1", "--rounds", "1"];
    let out = text(&muser(&args).ok());
    for part in [
        "Prefill of 2 tokens",
        "33 sets, 153 dispatches",
        "without the instrument",
        "overhead",
        "attention attn_q+attn_gate+attn_k+attn_v",
        "outside of operations",
    ] {
        assert!(out.contains(part), "{part}: {out}");
    }
}

#[test]
fn profile_refuses() {
    let error = muser(&["profile", "--prompt", "2048"]).fails(2);
    assert!(error.contains("2048 positions"), "{error}");
    let file = tempfile::NamedTempFile::new().unwrap();
    let path = file.path().to_str().unwrap();
    let error = muser(&["profile", "--trace", path]).fails(1);
    assert!(error.contains("--force overwrites it"), "{error}");
}

#[test]
fn bench_proves_and_measures() {
    let args = [
        "bench",
        "--widths",
        "5,1,2",
        "--depths",
        "40,0",
        "--repeats",
        "2",
    ];
    let small = ["--sample", "0", "--verify", "6", "--buffer", "1", "--json"];
    let report = json(&[args, small].concat());
    let results = report["results"].as_array().unwrap();
    let what: Vec<_> = results
        .iter()
        .map(|r| {
            let size = |key: &str| r[key].as_u64().unwrap();
            (size("depth"), r["mode"].as_str().unwrap(), size("width"))
        })
        .collect();
    let at = |depth| {
        let decode = [1, 2, 5].map(|width| (depth, "decode", width));
        [&decode[..], &[(depth, "prefill", 2), (depth, "prefill", 5)]].concat()
    };
    assert_eq!(what, [at(0), at(40)].concat());
    let budget = json(&["budget", "--json", "--bandwidth", "1", "--depths", "41"]);
    let deep = &budget["depths"][0];
    assert_eq!(results[5]["bytes"], deep["bytes"]);
    assert_eq!(results[5]["flops"], deep["flops"]);
    for r in results {
        let of = |key: &str| r["tok_s"][key].as_f64().unwrap();
        assert!(of("min") <= of("median") && of("median") <= of("max") && of("min") > 0.0);
    }
    // What is proved is what `logits` computes: the ids are of a known
    // generator, the rows the first six.
    let mut state = 1u64;
    let ids: Vec<String> = (0..6)
        .map(|_| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            ((state >> 32) % 4096).to_string()
        })
        .collect();
    let logits = [
        "logits",
        "--sha256",
        "--level",
        "scalar",
        "--tokens",
        &ids.join(","),
    ];
    let hash = text(&muser(&logits).ok());
    assert_eq!(report["verified"][0]["sha256"], hash.trim());
    assert_ne!(report["verified"][1]["sha256"], hash.trim());
}

#[test]
fn bench_goes_where_a_ring_has_forgotten() {
    // A call of 600 overwrites the ring of a window of 16: the way back to 300
    // is to begin again.
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tiny.gguf");
    let path = path.to_str().unwrap();
    muser(&["synth", "--geometry", "glimmer-tiny", path, "-q"]).ok();
    let args = [
        "bench",
        "--widths",
        "1,600",
        "--depths",
        "300",
        "--repeats",
        "1",
    ];
    let small = [
        "--sample", "0", "--verify", "3", "--buffer", "1", "--level", "scalar",
    ];
    let out = text(&muser(&[&["--model", path], &args[..], &small].concat()).ok());
    for part in [
        "int8 peak none at this level",
        "depth 300: 3 rows",
        "prefill",
    ] {
        assert!(out.contains(part), "{part}: {out}");
    }
}

#[test]
fn bench_refuses() {
    for (args, words) in [
        (&["--widths", "0"][..], "0 is not in 1.."),
        (&["--widths", "2049"], "2048 positions, found 2049"),
        (&["--depths", "2040"], "2048 positions, found 2296"),
    ] {
        let error = muser(&[&["bench"], args].concat()).fails(2);
        assert!(error.contains(words), "{error}");
    }
}

/// The ladder in the documentation is the one in the program.
#[test]
fn the_documented_ladder_is_the_programs() {
    let docs = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/parity.md");
    let docs = std::fs::read_to_string(docs).unwrap();
    let (_, rest) = docs
        .split_once("<!-- muser routes --markdown -->\n")
        .unwrap();
    let (documented, _) = rest.split_once("<!-- end -->").unwrap();
    let printed = text(&muser(&["routes", "--markdown"]).ok());
    assert_eq!(documented.trim(), printed.trim());
}

#[test]
fn routes_name_the_matrices_of_a_model() {
    let routes = json(&["routes", "--embedded", "--only", "pinned", "--json"]);
    let products = routes["products"].as_array().unwrap();
    let lanes = products
        .iter()
        .find(|p| p["kernel"] == "lanes/q6_k")
        .unwrap();
    assert_eq!(lanes["columns"], "1 to 7");
    assert_eq!(
        lanes["tensors"],
        serde_json::json!({"attn_v": 4, "ffn_down": 4})
    );
    // Rows of every Q4_K matrix are a multiple of 8.
    assert!(products.iter().all(|p| p["kernel"] != "lanes/q4_k"));
    assert!(products.iter().all(|p| p["lane"] == "pinned"));
}
