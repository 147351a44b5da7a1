//! Checks the repository's source files: module docs, `unsafe`, length, and files that
//! tools left behind.

use super::code::{blank, lines_with_word};
use super::{Finding, Tree};

/// Modules (files or folders) that may contain `unsafe` code, each with its purpose.
/// Adding an entry is a decision of the maintainers: SECURITY.md relies on this list.
const UNSAFE: [(&str, &str); 7] = [
    ("crates/muser-gguf/src/map.rs", "a read-only map of a file"),
    ("crates/muser-reference/src/", "calls into llama.cpp"),
    // The CPU backend's modules: extend here.
    ("crates/muser-cpu/src/simd/", "vector loads and stores"),
    (
        "crates/muser-cpu/src/team.rs",
        "a borrowed job run by other threads",
    ),
    (
        "crates/muser-cpu/src/kernels/table.rs",
        "calling a kernel of a level that is present",
    ),
    (
        "crates/muser-cpu/src/buffer.rs",
        "aligned storage seen as values",
    ),
    (
        "crates/muser-cpu/src/rows.rs",
        "disjoint parts of a buffer for several threads",
    ),
];

/// The level of the lint `unsafe_code` that each crate root must set: `deny` if a
/// module listed in [`UNSAFE`] allows it, `forbid` everywhere else.
const ROOTS: [(&str, &str); 13] = [
    ("crates/muser-gguf/src/lib.rs", "deny"),
    ("crates/muser-quant/src/lib.rs", "forbid"),
    ("crates/muser-levels/src/lib.rs", "forbid"),
    ("crates/muser-ops/src/lib.rs", "forbid"),
    ("crates/muser-conformance/src/lib.rs", "forbid"),
    ("crates/muser-cpu/src/lib.rs", "deny"),
    ("crates/muser-model/src/lib.rs", "forbid"),
    ("crates/muser-text/src/lib.rs", "forbid"),
    ("crates/muser-engine/src/lib.rs", "forbid"),
    ("crates/muser-server/src/lib.rs", "forbid"),
    ("crates/muser-bench/src/lib.rs", "forbid"),
    ("crates/muser-bench/src/main.rs", "forbid"),
    ("xtask/src/main.rs", "forbid"),
];

/// Maximum number of lines of a source file or page.
const MOST_LINES: usize = 700;

fn finding(path: &str, line: usize, what: impl Into<String>, why: &'static str) -> Finding {
    Finding {
        path: path.to_owned(),
        line,
        what: what.into(),
        why,
    }
}

/// Finds Rust files that do not open with `//!` docs.
pub(super) fn files_open_with_docs(tree: &Tree) -> Vec<Finding> {
    tree.ending(".rs")
        .filter(|(_, text)| !text.starts_with("//!"))
        .map(|(path, _)| {
            let what = "does not open with //! docs";
            finding(path, 1, what, "a file says what it is for")
        })
        .collect()
}

/// Finds crate roots that do not set the lint `unsafe_code` to the level of [`ROOTS`].
pub(super) fn crates_refuse_unsafe(tree: &Tree) -> Vec<Finding> {
    ROOTS
        .iter()
        .filter(|(path, level)| {
            let attribute = format!("#![{level}(unsafe_code)]");
            let text = blank(tree.get(path).unwrap_or_default());
            !text.lines().any(|l| l.trim() == attribute)
        })
        .map(|(path, level)| {
            let what = format!("lacks #![{level}(unsafe_code)]");
            finding(path, 1, what, "unsafe lives in named modules only")
        })
        .collect()
}

/// Finds the word `unsafe` in Rust code outside the modules of [`UNSAFE`].
pub(super) fn unsafe_is_where_it_may_be(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, text) in tree.ending(".rs") {
        let allowed = UNSAFE
            .iter()
            .any(|(module, _)| match module.ends_with('/') {
                true => path.starts_with(module),
                false => path == *module,
            });
        if allowed {
            continue;
        }
        let code = blank(text);
        for line in lines_with_word(&code, "unsafe") {
            let what = "unsafe outside the modules named in xtask/src/tidy/sources.rs";
            findings.push(finding(
                path,
                line,
                what,
                "unsafe lives in named modules only",
            ));
        }
    }
    findings
}

/// Finds source files and pages that are longer than [`MOST_LINES`] allows.
pub(super) fn files_stay_readable(tree: &Tree) -> Vec<Finding> {
    let written = |p: &str| {
        let page = p.ends_with(".md") && !p.ends_with("CHANGELOG.md");
        page || p.ends_with(".rs") || p.ends_with("Cargo.toml")
    };
    tree.iter()
        .filter(|(p, text)| written(p) && text.lines().count() > MOST_LINES)
        .map(|(p, text)| {
            let n = text.lines().count();
            let what = format!("{n} lines, more than {MOST_LINES}");
            finding(
                p,
                MOST_LINES + 1,
                what,
                "a reader keeps a file in mind as a whole",
            )
        })
        .collect()
}

/// Returns whether a file of the repository is written by hand, unlike test inputs and
/// lock files.
fn ours(path: &str) -> bool {
    let test_input = ["fuzz/corpus/", "fixtures/", "models/"];
    let page = path.ends_with(".md");
    !path.ends_with("Cargo.lock") && (page || !test_input.iter().any(|d| path.starts_with(d)))
}

/// Finds marks of unfinished work in the text of the repository's files.
pub(super) fn nothing_is_left_to_do(tree: &Tree) -> Vec<Finding> {
    // The marks are joined at compile time, so that this file does not contain them.
    let marks = [concat!("TO", "DO"), concat!("FIX", "ME")];
    let mut findings = Vec::new();
    for (path, text) in tree.iter().filter(|(p, _)| ours(p)) {
        for mark in marks {
            for line in lines_with_word(text, mark) {
                findings.push(finding(path, line, mark, "what is left to do is an issue"));
            }
        }
    }
    findings
}

/// Finds absolute paths of somebody's machine in the text of the repository's files.
pub(super) fn no_machine_paths(tree: &Tree) -> Vec<Finding> {
    let roots = ["work", "root", "home", "Users", "mnt"].map(|d| format!("/{d}/"));
    let mut findings = Vec::new();
    for (path, text) in tree.iter().filter(|(p, _)| ours(p)) {
        for (i, line) in text.lines().enumerate() {
            let found = roots.iter().find(|root| {
                // In `a/home/b` or `example.org/home/` the root is not the start of a
                // path.
                let inside = |c: char| c.is_alphanumeric() || "._-}".contains(c);
                line.match_indices(root.as_str())
                    .any(|(at, _)| !line[..at].ends_with(inside))
            });
            if let Some(root) = found {
                let what = format!("a path under {root}");
                findings.push(finding(path, i + 1, what, "no machine is everybody's"));
            }
        }
    }
    findings
}

/// Finds files in the repository that a program left there: hidden files of tools, keys
/// and certificates.
pub(super) fn no_leftovers(tree: &Tree) -> Vec<Finding> {
    const OURS: [&str; 3] = [".cargo", ".ci", ".gitignore"];
    let key = |line: &str| {
        let what = line.strip_prefix("-----BEGIN ").unwrap_or_default();
        what.contains("PRIVATE KEY") || what.contains("CERTIFICATE")
    };
    let mut findings = Vec::new();
    for (path, text) in tree.iter() {
        let hidden = |part: &&str| part.starts_with('.') && !OURS.contains(part);
        if let Some(part) = path.split('/').find(hidden) {
            let what = format!("{part} is hidden");
            findings.push(finding(
                path,
                0,
                what,
                "what a tool keeps is not the project's",
            ));
        }
        for (i, line) in text.lines().enumerate() {
            if key(line) {
                let what = "a key or a certificate".to_owned();
                findings.push(finding(path, i + 1, what, "tests make their own"));
            }
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(findings: Vec<Finding>) -> Vec<(String, usize)> {
        findings.into_iter().map(|f| (f.path, f.line)).collect()
    }

    fn at(path: &str, line: usize) -> Vec<(String, usize)> {
        vec![(path.to_owned(), line)]
    }

    #[test]
    fn a_file_without_docs_is_found() {
        let tree = Tree::from([("a.rs", "//! A.\n"), ("b.rs", "// B.\nfn b() {}\n")]);
        assert_eq!(lines(files_open_with_docs(&tree)), at("b.rs", 1));
    }

    #[test]
    fn a_root_that_allows_unsafe_is_found() {
        let mut tree = Tree::default();
        for (path, level) in ROOTS {
            let text = format!("//! X.\n#![{level}(unsafe_code)]\n");
            tree.0.insert(path.to_owned(), text);
        }
        assert_eq!(crates_refuse_unsafe(&tree), []);
        // A weaker lint level, one in a comment, and none.
        let quant = "crates/muser-quant/src/lib.rs";
        for text in ["#![deny(unsafe_code)]", "// #![forbid(unsafe_code)]", ""] {
            tree.0.insert(quant.to_owned(), text.to_owned());
            assert_eq!(lines(crates_refuse_unsafe(&tree)), at(quant, 1));
        }
    }

    #[test]
    fn unsafe_elsewhere_is_found() {
        let text =
            "//! unsafe in words\n#![deny(unsafe_code)]\nfn f() { \"unsafe\"; unsafe { g() } }\n";
        let tree = Tree::from([
            ("crates/muser-gguf/src/map.rs", text),
            ("crates/muser-cpu/src/simd/avx2.rs", text),
            ("crates/muser-gguf/src/map.rs.rs", text),
        ]);
        let found = lines(unsafe_is_where_it_may_be(&tree));
        assert_eq!(found, at("crates/muser-gguf/src/map.rs.rs", 3));
    }

    #[test]
    fn a_long_file_is_found() {
        let (fits, long) = ("x\n".repeat(700), "x\n".repeat(701));
        let tree = Tree::from([
            ("a.rs", fits.as_str()),
            ("b.rs", long.as_str()),
            ("Cargo.lock", long.as_str()),
        ]);
        assert_eq!(lines(files_stay_readable(&tree)), at("b.rs", 701));
    }

    #[test]
    fn notes_to_self_are_found() {
        for mark in [concat!("TO", "DO"), concat!("FIX", "ME")] {
            let text = format!("fine\n// {mark}: later\n");
            let tree = Tree::from([
                ("a.rs", text.as_str()),
                ("fuzz/corpus/gguf/x", text.as_str()),
            ]);
            assert_eq!(lines(nothing_is_left_to_do(&tree)), at("a.rs", 2));
        }
    }

    #[test]
    fn machine_paths_are_found() {
        for root in ["work", "root", "home"] {
            for before in ["", "`", "at ", "\"", "="] {
                let text = format!("see\n{before}/{root}/x/model.gguf\n");
                let tree = Tree::from([("docs/a.md", text.as_str())]);
                assert_eq!(lines(no_machine_paths(&tree)), at("docs/a.md", 2));
            }
            let text = format!("https://example.org/{root}/x and src/{root}/y, {root}/z\n");
            let tree = Tree::from([("docs/a.md", text.as_str())]);
            assert_eq!(no_machine_paths(&tree), []);
        }
    }

    #[test]
    fn what_a_run_left_is_found() {
        let key = "x\n-----BEGIN EC PRIVATE KEY-----\n";
        for (path, text, line) in [
            ("tests/.cache/a.json", "{}\n", 0),
            ("tests/tls.key", key, 2),
        ] {
            let tree = Tree::from([(path, text)]);
            assert_eq!(lines(no_leftovers(&tree)), at(path, line));
        }
        let tree = Tree::from([(".ci/run", "a\n"), ("fuzz/.gitignore", "b\n")]);
        assert_eq!(no_leftovers(&tree), []);
    }
}
