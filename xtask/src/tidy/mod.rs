//! `cargo xtask tidy`: checks what the compiler cannot, namely the rules of
//! `ARCHITECTURE.md`, of documentation and of dependencies.
//!
//! Each rule is a function from the files of the repository to findings, with a test
//! that it can fail. `cargo xtask tidy` prints `file:line: what, why` for each finding;
//! a test of the crate `xtask` runs all rules as well.

mod code;
mod edges;
mod grid;
mod manifests;
mod pages;
mod sources;
mod supply;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::Path;
use std::process::Command;

/// A broken rule that `cargo xtask tidy` found, and where it is broken.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Finding {
    path: String,
    /// Number of the line that breaks the rule, from 1; 0 for the file as a whole.
    line: usize,
    what: String,
    why: &'static str,
}

impl std::fmt::Display for Finding {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self {
            path,
            line,
            what,
            why,
        } = self;
        write!(f, "{path}:{line}: {what}, {why}")
    }
}

/// The text files of the repository, each by its path from the repository's root.
#[derive(Debug, Default)]
struct Tree(BTreeMap<String, String>);

impl Tree {
    /// Reads every text file of the repository that git tracks or does not ignore.
    fn read(root: &Path) -> Result<Self, String> {
        let listing = output(
            Command::new("git")
                .args([
                    "ls-files",
                    "-z",
                    "--cached",
                    "--others",
                    "--exclude-standard",
                ])
                .current_dir(root),
        )?;
        let mut files = BTreeMap::new();
        for path in listing.split('\0').filter(|p| !p.is_empty()) {
            // A tracked file may be deleted in the working tree.
            let Ok(bytes) = std::fs::read(root.join(path)) else {
                continue;
            };
            if let Ok(text) = String::from_utf8(bytes)
                && !text.contains('\0')
            {
                files.insert(path.to_owned(), text);
            }
        }
        Ok(Self(files))
    }

    fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(p, t)| (p.as_str(), t.as_str()))
    }

    /// Iterates over the repository's text files whose path ends in `with`.
    fn ending<'a>(&'a self, with: &'a str) -> impl Iterator<Item = (&'a str, &'a str)> {
        self.iter().filter(move |(p, _)| p.ends_with(with))
    }

    fn get(&self, path: &str) -> Option<&str> {
        self.0.get(path).map(String::as_str)
    }
}

#[cfg(test)]
impl<const N: usize> From<[(&str, &str); N]> for Tree {
    fn from(files: [(&str, &str); N]) -> Self {
        Self(files.map(|(p, t)| (p.to_owned(), t.to_owned())).into())
    }
}

/// Runs a program and returns its standard output.
fn output(command: &mut Command) -> Result<String, String> {
    let program = command.get_program().to_string_lossy().into_owned();
    let out = command
        .output()
        .map_err(|e| format!("{program}: cannot be run: {e}"))?;
    if !out.status.success() {
        let said = String::from_utf8_lossy(&out.stderr);
        return Err(format!("{program}: {}: {}", out.status, said.trim()));
    }
    String::from_utf8(out.stdout).map_err(|e| format!("{program}: output is not UTF-8: {e}"))
}

/// Returns the path of the `cargo` program that started this one; without it, the name
/// `cargo`, to be found on `PATH`.
pub(crate) fn cargo() -> OsString {
    std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into())
}

/// Applies every rule of `cargo xtask tidy` to the repository at `root`. Returns the
/// findings by path and line.
fn check(root: &Path) -> Result<Vec<Finding>, String> {
    let tree = Tree::read(root)?;
    let metadata = output(
        Command::new(cargo())
            .args(["metadata", "--format-version=1", "--no-deps", "--offline"])
            .current_dir(root),
    )?;
    let metadata = serde_json::from_str(&metadata).map_err(|e| format!("cargo metadata: {e}"))?;
    let mut findings = edges::edges(&metadata);
    findings.extend(supply::crates(&supply::built(root)?));
    let rules: &[fn(&Tree) -> Vec<Finding>] = &[
        edges::reference_is_not_default,
        grid::features_stand_once,
        grid::grid,
        manifests::dependencies_say_why,
        sources::files_open_with_docs,
        sources::crates_refuse_unsafe,
        sources::unsafe_is_where_it_may_be,
        sources::files_stay_readable,
        sources::nothing_is_left_to_do,
        sources::no_machine_paths,
        sources::no_leftovers,
        pages::changelog_is_current,
        pages::constants_are_the_codes,
        pages::links_lead_somewhere,
        supply::sources,
    ];
    for rule in rules {
        findings.extend(rule(&tree));
    }
    findings.sort();
    Ok(findings)
}

/// Runs `cargo xtask tidy`: prints all findings and fails if there are any.
pub(crate) fn command(root: &Path) -> Result<(), String> {
    let findings = check(root)?;
    for finding in &findings {
        println!("{finding}");
    }
    match findings.len() {
        0 => {
            println!("tidy");
            Ok(())
        }
        n => Err(format!("{n} findings")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_repository_is_tidy() {
        let findings = check(&crate::root()).unwrap();
        let lines: Vec<String> = findings.iter().map(Finding::to_string).collect();
        assert!(lines.is_empty(), "\n{}", lines.join("\n"));
    }

    #[test]
    fn the_tree_holds_the_sources_and_no_build_output() {
        let tree = Tree::read(&crate::root()).unwrap();
        assert!(tree.get("xtask/src/tidy/mod.rs").is_some());
        assert!(tree.iter().all(|(p, _)| !p.starts_with("target/")));
        assert!(tree.ending(".rs").count() > 50);
    }

    #[test]
    fn a_finding_reads_as_file_line_what_why() {
        let f = Finding {
            path: "a.rs".to_owned(),
            line: 3,
            what: "x".to_owned(),
            why: "y",
        };
        assert_eq!(f.to_string(), "a.rs:3: x, y");
    }
}
