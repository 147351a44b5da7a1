//! Checks what the project is built from: licences and sources of its dependencies,
//! crates that are banned, several versions of one crate.
//!
//! Security advisories are not checked here: their database is on the network and
//! changes without a change of this project. `cargo deny check advisories` or `cargo
//! audit` reads it (CONTRIBUTING.md).

use super::{Finding, Tree};
use spdx::{Expression, Licensee, ParseMode};
use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

/// Licences under which a dependency may be used. One of the alternatives that a crate
/// offers is enough.
const LICENCES: [&str; 8] = [
    "MIT",
    "MIT-0",
    "Apache-2.0",
    "Apache-2.0 WITH LLVM-exception",
    "BSD-3-Clause",
    "ISC",
    "Unicode-3.0",
    "Zlib",
];

/// Crates that no build of the project may contain, each with the reason.
const BANNED: [(&str, &str); 8] = [
    ("aws-lc-sys", "needs a C compiler: rustls-graviola does not"),
    ("bindgen", "needs libclang"),
    ("cc", "needs a C compiler: a plain build needs Rust only"),
    ("cmake", "needs CMake: a plain build needs Rust only"),
    ("native-tls", "takes the machine's TLS: rustls is in use"),
    ("onig_sys", "needs a C compiler: fancy-regex does not"),
    ("openssl-sys", "takes the machine's TLS: rustls is in use"),
    ("pkg-config", "takes libraries of the machine"),
];

/// Crates that may be built in two versions, because two dependencies need different
/// ones. Each costs build time and size; an entry that is no longer needed is a
/// finding.
const TWICE: [&str; 8] = [
    "base64",
    "fancy-regex",
    "getrandom",
    "nix",
    "rand",
    "rand_chacha",
    "rand_core",
    "syn",
];

/// crates.io, as lock files name it: the only source of crates that are not of this
/// workspace.
const REGISTRY: &str = "registry+https://github.com/rust-lang/crates.io-index";

fn finding(path: &str, line: usize, what: String, why: &'static str) -> Finding {
    Finding {
        path: path.to_owned(),
        line,
        what,
        why,
    }
}

/// Lists the crates that this machine builds for the workspace, tests and build scripts
/// included: one line `name version|licence` for each.
///
/// It asks `cargo tree`, as `cargo metadata` lists optional crates that no feature
/// turns on as well.
///
/// # Errors
/// Cargo does not run, or `Cargo.lock` is out of date.
pub(super) fn built(root: &Path) -> Result<String, String> {
    let mut tree = Command::new(super::cargo());
    tree.args(["tree", "--workspace", "--locked", "--color", "never"])
        .args(["--edges", "normal,build,dev", "--prefix", "none"])
        .args(["--format", "{p}|{l}"])
        .current_dir(root);
    super::output(&mut tree)
}

/// Checks the licences, bans and duplicates of the crates in a list that [`built`]
/// gave.
pub(super) fn crates(listing: &str) -> Vec<Finding> {
    let allowed: Vec<Licensee> = LICENCES
        .iter()
        .filter_map(|l| Licensee::parse(l).ok())
        .collect();
    // The licence of each crate, by its name and version.
    let mut seen: BTreeMap<(&str, &str), &str> = BTreeMap::new();
    for line in listing.lines().filter(|l| !l.is_empty()) {
        let (package, licence) = line.split_once('|').unwrap_or((line, ""));
        let mut words = package.split_whitespace();
        let (name, version) = (words.next(), words.next());
        // A crate of the workspace has its folder after the version.
        let ours = words.next().is_some_and(|w| w.starts_with("(/"));
        if let (Some(name), Some(version), false) = (name, version, ours) {
            let licence = licence.trim_end_matches(" (*)").trim();
            seen.insert((name, version), licence);
        }
    }
    let mut findings = Vec::new();
    let lock = |what: String, why| finding("Cargo.lock", 0, what, why);
    for (&(name, version), licence) in &seen {
        if let Some((_, why)) = BANNED.iter().find(|(banned, _)| *banned == name) {
            findings.push(lock(format!("{name} {version} is built"), why));
        }
        let parsed = Expression::parse_mode(licence, ParseMode::LAX);
        let fits = parsed.is_ok_and(|e| e.evaluate(|req| allowed.iter().any(|l| l.satisfies(req))));
        if !fits {
            let what = format!("{name} {version} has the licence {licence:?}");
            findings.push(lock(what, "licences are those of xtask/src/tidy/supply.rs"));
        }
    }
    let versions = |name: &str| seen.keys().filter(|(n, _)| *n == name).count();
    let mut names: Vec<&str> = seen.keys().map(|(name, _)| *name).collect();
    names.dedup();
    for name in names {
        if versions(name) > 1 && !TWICE.contains(&name) {
            let what = format!("{name} is built in {} versions", versions(name));
            findings.push(lock(
                what,
                "one version, or an entry in TWICE with its cost",
            ));
        }
    }
    for name in TWICE.iter().filter(|name| versions(name) < 2) {
        let what = format!("{name} is built once");
        findings.push(lock(what, "its entry in TWICE is no longer needed"));
    }
    if seen.is_empty() {
        let what = "cargo tree lists no crate".to_owned();
        findings.push(lock(what, "nothing was checked"));
    }
    findings
}

/// Finds crates in lock files that do not come from crates.io with a checksum and are
/// not of this workspace.
pub(super) fn sources(tree: &Tree) -> Vec<Finding> {
    const WHY: &str = "crates come from crates.io, by checksum";
    let mut findings = Vec::new();
    let mut files = 0;
    for (path, text) in tree.ending("Cargo.lock") {
        files += 1;
        let mut line = 0;
        for block in text.split("[[package]]") {
            let field = |name: &str| {
                let line = block.lines().find_map(|l| l.strip_prefix(name));
                line.map(|value| value.trim_matches(['=', ' ', '"']))
            };
            let name = field("name").unwrap_or("?");
            match (field("source"), field("checksum")) {
                (None, _) | (Some(REGISTRY), Some(_)) => {}
                (Some(REGISTRY), None) => {
                    let what = format!("{name} has no checksum");
                    findings.push(finding(path, line + 1, what, WHY));
                }
                (Some(source), _) => {
                    let what = format!("{name} comes from {source}");
                    findings.push(finding(path, line + 1, what, WHY));
                }
            }
            line += block.matches('\n').count();
        }
    }
    if files == 0 {
        let what = "no lock file".to_owned();
        findings.push(finding("Cargo.lock", 0, what, "a build repeats"));
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a list of dependencies that passes all checks: a crate of the workspace,
    /// and each of [`TWICE`] twice.
    fn fine() -> String {
        let twice = TWICE.iter().flat_map(|name| {
            let line = move |v: u8| format!("{name} v{v}.0.0|MIT/Apache-2.0 (*)\n");
            [line(1), line(2)]
        });
        let ours = "muser v0.1.0 (/somewhere/crates/muser)|\n\n".to_owned();
        std::iter::once(ours).chain(twice).collect()
    }

    fn found(more: &str) -> Vec<String> {
        let findings = crates(&(fine() + more));
        findings.into_iter().map(|f| f.what).collect()
    }

    #[test]
    fn what_is_allowed_passes() {
        assert!(LICENCES.iter().all(|l| Licensee::parse(l).is_ok()));
        let none: [String; 0] = [];
        assert_eq!(found(""), none);
        for licence in [
            "GPL-3.0 OR MIT",
            "(MIT OR Apache-2.0) AND Unicode-3.0",
            "Apache-2.0 WITH LLVM-exception",
            "Apache-2.0 / MIT",
        ] {
            assert_eq!(found(&format!("x v1.0.0|{licence}\n")), none, "{licence}");
        }
    }

    #[test]
    fn other_licences_are_found() {
        for licence in ["GPL-3.0-only", "MIT AND GPL-2.0-only", "", "Made-up"] {
            let lines = found(&format!("x v1.0.0|{licence}\n"));
            assert_eq!(lines, [format!("x v1.0.0 has the licence {licence:?}")]);
        }
    }

    #[test]
    fn bans_and_duplicates_are_found() {
        assert_eq!(found("cc v1.2.0|MIT\n"), ["cc v1.2.0 is built"]);
        let twice = "x v1.0.0|MIT\nx v1.0.0|MIT (*)\nx v2.0.0|MIT\n";
        assert_eq!(found(twice), ["x is built in 2 versions"]);
        let once = fine().replace("syn v2.0.0", "other v2.0.0");
        let lines: Vec<String> = crates(&once).into_iter().map(|f| f.what).collect();
        assert_eq!(lines, ["syn is built once"]);
    }

    #[test]
    fn an_empty_list_is_no_pass() {
        let lines = crates("muser v0.1.0 (/somewhere)|MIT\n");
        assert!(lines.iter().any(|f| f.what.contains("no crate")));
    }

    #[test]
    fn other_sources_are_found() {
        let lock = format!(
            "version = 4\n\n[[package]]\nname = \"ours\"\n\n[[package]]\nname = \"a\"\n\
             source = \"{REGISTRY}\"\nchecksum = \"00\"\n"
        );
        let lines = |text: &str| {
            let tree = Tree::from([("fuzz/Cargo.lock", text)]);
            let findings = sources(&tree).into_iter();
            findings.map(|f| (f.line, f.what)).collect::<Vec<_>>()
        };
        assert_eq!(lines(&lock), []);
        let git = lock.replace(REGISTRY, "git+https://example.org/a");
        assert_eq!(
            lines(&git),
            [(6, "a comes from git+https://example.org/a".to_owned())]
        );
        let unchecked = lock.replace("checksum", "other");
        assert_eq!(lines(&unchecked), [(6, "a has no checksum".to_owned())]);
        assert_eq!(sources(&Tree::default()).len(), 1);
    }
}
