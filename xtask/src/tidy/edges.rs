//! Checks which crate of the workspace depends on which: only the arrows of
//! `ARCHITECTURE.md` are allowed.

use super::{Finding, Tree};
use serde_json::Value;

/// A rule about dependencies in the workspace: a crate, the crates that it may use, and
/// those that only its tests may use.
type Rule = (
    &'static str,
    &'static [&'static str],
    &'static [&'static str],
);

/// The allowed dependencies between the workspace's crates, one rule for each crate. An
/// optional dependency counts like any other.
const RULES: [Rule; 14] = [
    ("muser-gguf", &[], &[]),
    ("muser-quant", &[], &[]),
    ("muser-levels", &[], &[]),
    ("muser-text", &[], &[]),
    ("muser-ops", &["muser-quant"], &[]),
    // A crate for tests: only dev-dependencies may name it.
    ("muser-conformance", &["muser-ops", "muser-quant"], &[]),
    (
        "muser-cpu",
        &["muser-levels", "muser-ops", "muser-quant"],
        &["muser-conformance"],
    ),
    (
        "muser-model",
        &["muser-gguf", "muser-quant", "muser-ops"],
        // Tests compare forward passes on the CPU backend with the oracle's.
        &["muser-cpu"],
    ),
    (
        "muser-engine",
        &["muser-model", "muser-ops", "muser-text"],
        // Tests write their models themselves.
        &["muser-cpu", "muser-gguf", "muser-quant"],
    ),
    (
        "muser-server",
        &["muser-engine", "muser-text"],
        &["muser-cpu"],
    ),
    (
        "muser",
        &[
            "muser-gguf",
            "muser-quant",
            "muser-ops",
            "muser-cpu",
            "muser-model",
            "muser-text",
            "muser-engine",
            "muser-server",
        ],
        &["muser-reference"],
    ),
    // The comparator (llama.cpp as a program) is a tool of tests: nothing may depend on
    // it.
    (
        "muser-reference",
        &["muser-quant", "muser-gguf"],
        &["muser-ops"],
    ),
    // No dependency on muser-reference, which it runs as a process.
    (
        "muser-bench",
        &["muser-quant", "muser-ops", "muser-cpu", "muser-model"],
        &[],
    ),
    // Uses the constants and functions of the strict lane (muser's own arithmetic)
    // only: `tidy` must build fast.
    ("xtask", &["muser-quant", "muser-ops"], &[]),
];

const WHY: &str = "the arrows between crates are those of ARCHITECTURE.md";

/// Finds every dependency between crates of the workspace, in the output of `cargo
/// metadata --no-deps`, that [`RULES`] does not allow.
pub(super) fn edges(metadata: &Value) -> Vec<Finding> {
    let mut findings = Vec::new();
    let empty = Vec::new();
    let packages = metadata["packages"].as_array().unwrap_or(&empty);
    for package in packages {
        let name = package["name"].as_str().unwrap_or_default();
        let rule = RULES.iter().find(|r| r.0 == name);
        let finding = |what: String| Finding {
            path: format!("{name}/Cargo.toml"),
            line: 0,
            what,
            why: WHY,
        };
        let Some((_, uses, tests)) = rule else {
            findings.push(finding(format!("crate {name} has no rule")));
            continue;
        };
        for dependency in package["dependencies"].as_array().unwrap_or(&empty) {
            // Crates of the workspace are the dependencies with a path.
            let Some(on) = dependency["name"]
                .as_str()
                .filter(|_| dependency["path"].is_string())
            else {
                continue;
            };
            // Build dependencies of a crate count as normal ones.
            let dev = dependency["kind"] == "dev";
            if !(uses.contains(&on) || dev && tests.contains(&on)) {
                let kind = if dev { "in its tests" } else { "" };
                findings.push(finding(
                    format!("{name} uses {on} {kind}").trim_end().to_owned(),
                ));
            }
        }
    }
    if packages.is_empty() {
        findings.push(Finding {
            path: "Cargo.toml".to_owned(),
            line: 0,
            what: "cargo metadata names no package".to_owned(),
            why: WHY,
        });
    }
    findings
}

/// Checks that the crate muser-reference, which needs a C++ toolchain, is not a default
/// member of the workspace.
pub(super) fn reference_is_not_default(tree: &Tree) -> Vec<Finding> {
    let text = tree.get("Cargo.toml").unwrap_or_default();
    let defaults = text
        .split_once("default-members")
        .and_then(|(_, after)| after.split_once(']'));
    let what = match defaults {
        None => "no default members",
        Some((list, _)) if list.contains("muser-reference") => "muser-reference is a default",
        Some(_) => return Vec::new(),
    };
    vec![Finding {
        path: "Cargo.toml".to_owned(),
        line: 0,
        what: what.to_owned(),
        why: "a plain build needs Rust only",
    }]
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn found(name: &str, on: &str, kind: Value) -> Vec<String> {
        let metadata = json!({"packages": [{
            "name": name,
            "dependencies": [
                {"name": on, "kind": kind, "path": "somewhere"},
                {"name": "libm", "kind": null},
            ],
        }]});
        edges(&metadata).into_iter().map(|f| f.what).collect()
    }

    #[test]
    fn arrows_pass() {
        let none: [String; 0] = [];
        assert_eq!(found("muser-ops", "muser-quant", json!(null)), none);
        assert_eq!(found("muser-cpu", "muser-conformance", json!("dev")), none);
    }

    #[test]
    fn other_edges_are_found() {
        let up = found("muser-quant", "muser-ops", json!(null));
        assert_eq!(up, ["muser-quant uses muser-ops"]);
        let built = found("muser-text", "muser-gguf", json!("build"));
        assert_eq!(built, ["muser-text uses muser-gguf"]);
        // These dependencies are allowed in tests alone.
        let shipped = found("muser", "muser-reference", json!(null));
        assert_eq!(shipped, ["muser uses muser-reference"]);
        let shipped = found("muser-cpu", "muser-conformance", json!(null));
        assert_eq!(shipped, ["muser-cpu uses muser-conformance"]);
        let tested = found("muser-gguf", "muser-model", json!("dev"));
        assert_eq!(tested, ["muser-gguf uses muser-model in its tests"]);
    }

    #[test]
    fn a_new_crate_needs_a_rule_and_no_crates_are_no_proof() {
        assert_eq!(
            found("muser-new", "muser-ops", json!(null)),
            ["crate muser-new has no rule"]
        );
        assert_eq!(edges(&json!({})).len(), 1);
    }

    #[test]
    fn the_comparator_is_no_default() {
        let plain = Tree::from([("Cargo.toml", "default-members = [\"crates/muser\"]")]);
        assert_eq!(reference_is_not_default(&plain), []);
        let heavy = "default-members = [\"a\", \"crates/muser-reference\"]";
        assert_eq!(
            reference_is_not_default(&Tree::from([("Cargo.toml", heavy)])).len(),
            1
        );
        // Without the line, every member is a default one.
        let all = Tree::from([("Cargo.toml", "members = [\"a\"]")]);
        assert_eq!(reference_is_not_default(&all).len(), 1);
    }
}
