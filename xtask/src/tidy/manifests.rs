//! Checks that each dependency in a `Cargo.toml` has a comment that states its reason.

use super::{Finding, Tree};

/// Finds dependencies in the `Cargo.toml` files that have no comment above them. Those
/// inherited from the workspace have it in the workspace's file, and crates of the
/// workspace need none.
pub(super) fn dependencies_say_why(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, text) in tree.ending("Cargo.toml") {
        for (line, name) in unexplained(text) {
            findings.push(Finding {
                path: path.to_owned(),
                line,
                what: format!("dependency {name} has no comment above it"),
                why: "each dependency says why it is there",
            });
        }
    }
    findings
}

fn unexplained(text: &str) -> Vec<(usize, String)> {
    let mut out = Vec::new();
    let mut in_dependencies = false;
    let mut open_brackets = 0usize;
    let mut commented = false;
    for (i, line) in text.lines().map(str::trim).enumerate() {
        if line.starts_with('#') {
            commented = true;
            continue;
        }
        if let Some(header) = line.strip_prefix('[').filter(|_| open_brackets == 0) {
            let header = header.trim_end_matches(']');
            in_dependencies = header.ends_with("dependencies");
            // In `[dependencies.name]` the table is the dependency.
            if let Some((_, name)) = header.rsplit_once("dependencies.")
                && !commented
            {
                out.push((i + 1, name.to_owned()));
            }
        } else if in_dependencies && open_brackets == 0 && !line.is_empty() {
            let ours = line.contains("path =");
            let inherited = line.contains("workspace = true");
            if !(commented || ours || inherited) {
                let name = line.split(['=', '.', ' ']).next().unwrap_or(line);
                out.push((i + 1, name.to_owned()));
            }
        }
        open_brackets += line.matches(['[', '{']).count();
        open_brackets = open_brackets.saturating_sub(line.matches([']', '}']).count());
        // A comment above a list of several lines explains all of it.
        commented &= open_brackets > 0;
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_pass() {
        let text = "[package]\nname = \"x\"\n[dependencies]\n# Because.\nhalf = \"2\"\n\
                    libm.workspace = true\nours = { path = \"../ours\" }\n\
                    [target.'cfg(unix)'.dev-dependencies]\n# So.\nlibc = { version = \"1\", features = [\n\
                    \"a\",\n] }\n[features]\nx = []\n";
        assert_eq!(unexplained(text), []);
    }

    #[test]
    fn missing_reasons_are_found() {
        let text = "[dependencies]\n# Because.\nhalf = \"2\"\nlibm = \"0.2\"\n\
                    [dev-dependencies]\n\nproptest = \"1\"\n[workspace.dependencies]\nserde = \"1\"\n\
                    [dependencies.table]\nversion = \"1\"\n";
        let names: Vec<_> = unexplained(text).into_iter().map(|f| f.1).collect();
        assert_eq!(names, ["libm", "proptest", "serde", "table"]);
        let tree = Tree::from([("a/Cargo.toml", text)]);
        assert_eq!(dependencies_say_why(&tree)[0].line, 4);
    }
}
