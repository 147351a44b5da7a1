//! Checks the documentation pages that must change with the code: the change log, the
//! constants of the arithmetic, links.

use super::{Finding, Tree};
use muser_ops::{attention, math, reduce};

const CHANGELOG: &str = "CHANGELOG.md";
const NUMERICS: &str = "docs/numerics.md";

fn finding(path: &str, line: usize, what: String, why: &'static str) -> Finding {
    Finding {
        path: path.to_owned(),
        line,
        what,
        why,
    }
}

/// Checks that the change log has a section for the version in the manifest or
/// for unreleased changes.
pub(super) fn changelog_is_current(tree: &Tree) -> Vec<Finding> {
    let manifest = tree.get("Cargo.toml").unwrap_or_default();
    let version = manifest
        .lines()
        .find_map(|l| l.strip_prefix("version = "))
        .map(|v| v.trim_matches('"'));
    let Some(version) = version else {
        let what = "no version of the workspace".to_owned();
        return vec![finding(
            "Cargo.toml",
            0,
            what,
            "the change log is by version",
        )];
    };
    let text = tree.get(CHANGELOG).unwrap_or_default();
    let current = text
        .lines()
        .filter_map(|l| l.strip_prefix("## "))
        .filter_map(|l| l.split([' ', '[', ']']).find(|w| !w.is_empty()))
        .any(|word| word == version || word == "Unreleased");
    if current {
        return Vec::new();
    }
    let what = format!("no section Unreleased or {version}");
    vec![finding(CHANGELOG, 0, what, "users read there what changed")]
}

/// Returns the constants of the strict lane (muser's own arithmetic): each name with
/// its bits or its number, as `docs/numerics.md` shows them.
fn constants() -> Vec<(String, String)> {
    let bits = |name: String, x: f32| (name, format!("{:#010x}", x.to_bits()));
    let mut all = Vec::new();
    for (name, x) in [
        ("LOG2_E", math::LOG2_E),
        ("LN2_HI", math::LN2_HI),
        ("LN2_LO", math::LN2_LO),
        ("EXP_MAX", math::EXP_MAX),
        ("EXP_MIN", math::EXP_MIN),
        ("TANH_SPLIT", math::TANH_SPLIT),
    ] {
        all.push(bits(name.to_owned(), x));
    }
    for (name, poly) in [("EXP_POLY", math::EXP_POLY), ("TANH_POLY", math::TANH_POLY)] {
        for (i, x) in poly.into_iter().enumerate() {
            all.push(bits(format!("{name}[{i}]"), x));
        }
    }
    all.push(("PARTIALS".to_owned(), reduce::PARTIALS.to_string()));
    all.push(("CHUNK".to_owned(), attention::CHUNK.to_string()));
    all.push(("QK".to_owned(), muser_quant::QK.to_string()));
    all.push((
        "version".to_owned(),
        muser_ops::Lane::Strict.version().to_string(),
    ));
    all
}

/// Checks that each constant of the strict lane (muser's own arithmetic) has exactly
/// one row `| name | value |` on `docs/numerics.md`, with the value in the code.
pub(super) fn constants_are_the_codes(tree: &Tree) -> Vec<Finding> {
    const WHY: &str = "the page and the code are one contract";
    let text = tree.get(NUMERICS).unwrap_or_default();
    let rows: Vec<(usize, Vec<&str>)> = text
        .lines()
        .enumerate()
        .filter(|(_, l)| l.starts_with('|'))
        .map(|(i, l)| {
            let cells = l.split('|').map(|c| c.trim().trim_matches('`'));
            (i + 1, cells.collect())
        })
        .collect();
    let mut findings = Vec::new();
    for (name, value) in constants() {
        let named: Vec<_> = rows
            .iter()
            .filter(|(_, cells)| cells.get(1) == Some(&name.as_str()))
            .collect();
        match named[..] {
            [(_, cells)] if cells.get(2) == Some(&value.as_str()) => {}
            [(line, cells)] => {
                let found = cells.get(2).unwrap_or(&"nothing");
                let what = format!("{name} is {value} in the code, {found} here");
                findings.push(finding(NUMERICS, *line, what, WHY));
            }
            _ => {
                let what = format!("{} rows for {name}, expected one", named.len());
                findings.push(finding(NUMERICS, 0, what, WHY));
            }
        }
    }
    findings
}

/// Finds links between Markdown pages whose target does not exist. Links to other files
/// and to the network are not checked.
pub(super) fn links_lead_somewhere(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, text) in tree.ending(".md") {
        for (i, line) in text.lines().enumerate() {
            for after in line.split("](").skip(1) {
                let target = after.split([')', '#', ' ']).next().unwrap_or_default();
                if !target.ends_with(".md") || target.contains("://") {
                    continue;
                }
                if tree.get(&resolve(path, target)).is_none() {
                    let what = format!("link to {target}, which is not there");
                    findings.push(finding(path, i + 1, what, "a link leads somewhere"));
                }
            }
        }
    }
    findings
}

/// Resolves a relative link on the documentation page `from` to a path from the root of
/// the repository.
fn resolve(from: &str, link: &str) -> String {
    let folder = from.rsplit_once('/').map_or("", |(folder, _)| folder);
    let mut parts: Vec<&str> = folder.split('/').filter(|p| !p.is_empty()).collect();
    for part in link.split('/') {
        match part {
            "." | "" => {}
            ".." => {
                parts.pop();
            }
            name => parts.push(name),
        }
    }
    parts.join("/")
}

#[cfg(test)]
mod tests {
    use super::*;

    const MANIFEST: (&str, &str) = ("Cargo.toml", "[workspace.package]\nversion = \"0.3.0\"\n");

    fn changelog(text: &str) -> usize {
        changelog_is_current(&Tree::from([MANIFEST, (CHANGELOG, text)])).len()
    }

    #[test]
    fn a_stale_change_log_is_found() {
        assert_eq!(changelog("# Changes\n\n## [Unreleased]\n"), 0);
        assert_eq!(changelog("## Unreleased\n"), 0);
        assert_eq!(changelog("## [0.3.0] - someday\n"), 0);
        assert_eq!(changelog("## 0.2.0\n\nUnreleased 0.3.0\n"), 1);
        assert_eq!(changelog("## 0.3.01\n"), 1);
        assert_eq!(changelog_is_current(&Tree::from([MANIFEST])).len(), 1);
        assert_eq!(changelog_is_current(&Tree::default()).len(), 1);
    }

    #[test]
    fn a_dead_link_is_found() {
        let tree = Tree::from([
            (
                "A.md",
                "[b](docs/b.md) [c](docs/c.md#x) [n](https://x.org/d.md)",
            ),
            (
                "docs/b.md",
                "\n[up](../A.md), [side](b.md#top) and [rs](../x.rs)",
            ),
        ]);
        let found = links_lead_somewhere(&tree);
        let found: Vec<_> = found.iter().map(|f| (f.path.as_str(), f.line)).collect();
        assert_eq!(found, [("A.md", 1)]);
    }

    #[test]
    fn a_constant_that_differs_is_found() {
        let page: String = constants()
            .iter()
            .map(|(name, value)| format!("| `{name}` | `{value}` | so |\n"))
            .collect();
        let findings = |text: &str| constants_are_the_codes(&Tree::from([(NUMERICS, text)]));
        assert_eq!(findings(&page), []);
        let wrong = page.replace("0x3fb8aa3b", "0x3fb8aa3c");
        assert_eq!(findings(&wrong)[0].line, 1);
        assert_eq!(findings(&wrong).len(), 1);
        let twice = page.clone() + page.lines().next().unwrap();
        assert_eq!(findings(&twice).len(), 1);
        assert_eq!(findings("").len(), constants().len());
    }
}
