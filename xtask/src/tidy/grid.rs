//! Checks the layout of the CPU backend's kernel files: a family of kernels is a folder
//! with a file for each instruction-set level, the same names in every folder, or one
//! file that is compiled for all levels.

use super::code::blank;
use super::{Finding, Tree};
use std::collections::{BTreeMap, BTreeSet};

const CPU: &str = "crates/muser-cpu/src/";
const KERNELS: &str = "crates/muser-cpu/src/kernels/";
const LEVELS: [&str; 3] = ["scalar.rs", "avx2.rs", "avx512.rs"];
/// Files in the folder of the CPU backend's kernels that belong to no family of
/// kernels.
const TOP: [&str; 3] = ["mod.rs", "products.rs", "table.rs"];
/// The attribute that marks a file of kernels as written once and compiled for all
/// instruction-set levels.
const ONCE: &str = "#[levels]";
const WHY: &str = "the grid kernels/<family>/<level>.rs is the documentation";

/// Finds functions of `muser-cpu` that list the CPU features of an instruction-set
/// level themselves.
pub(super) fn features_stand_once(tree: &Tree) -> Vec<Finding> {
    let of_cpu = tree.ending(".rs").filter(|(path, _)| path.starts_with(CPU));
    let lines = of_cpu.flat_map(|(path, text)| {
        let code = blank(text);
        let numbered = code.lines().enumerate();
        let found = numbered.filter(|(_, line)| line.contains("#[target_feature"));
        let found: Vec<usize> = found.map(|(at, _)| at).collect();
        found.into_iter().map(move |at| Finding {
            path: path.to_owned(),
            line: at + 1,
            what: "lists features itself: #[level(…)] or #[levels] does it".to_owned(),
            why: "the features of a level stand in muser-levels, once",
        })
    });
    lines.collect()
}

/// Finds kernel files outside the layout `kernels/<family>/<level>.rs`, and families of
/// kernels that lack the file of an instruction-set level.
pub(super) fn grid(tree: &Tree) -> Vec<Finding> {
    let finding = |path: String, what: String| Finding {
        path,
        line: 0,
        what,
        why: WHY,
    };
    let mut findings = Vec::new();
    let mut folders: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for (path, text) in tree.iter() {
        let Some(inside) = path.strip_prefix(KERNELS) else {
            continue;
        };
        let (folder, file) = inside.rsplit_once('/').unwrap_or(("", inside));
        let of_grid = match folder {
            "" => TOP.contains(&file),
            _ => file == "mod.rs" || LEVELS.contains(&file),
        };
        if !of_grid && !text.contains(ONCE) {
            findings.push(finding(
                path.to_owned(),
                "not a place of the grid".to_owned(),
            ));
        }
        folders.entry(folder).or_default().insert(file);
    }
    for (folder, files) in folders.iter().filter(|(folder, _)| !folder.is_empty()) {
        // A folder that holds families of kernels has no levels itself.
        let below = format!("{folder}/");
        let groups = folders.keys().any(|f| f.starts_with(&below));
        let levels = LEVELS.iter().filter(|l| files.contains(*l)).count();
        let missing: Vec<&str> = match (groups, levels) {
            (true, 0) => vec!["mod.rs"],
            _ => [&["mod.rs"], &LEVELS[..]].concat(),
        };
        for file in missing.into_iter().filter(|f| !files.contains(f)) {
            let path = format!("{KERNELS}{folder}");
            findings.push(finding(path, format!("{file} is missing")));
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(files: &[&str]) -> Vec<String> {
        let tree = files
            .iter()
            .map(|f| (format!("{KERNELS}{f}"), String::new()));
        grid(&Tree(tree.collect()))
            .into_iter()
            .map(|f| format!("{} {}", f.path.trim_start_matches(KERNELS), f.what))
            .collect()
    }

    const ROPE: [&str; 4] = [
        "rope/mod.rs",
        "rope/scalar.rs",
        "rope/avx2.rs",
        "rope/avx512.rs",
    ];

    #[test]
    fn a_full_grid_passes() {
        let nested = ROPE.map(|f| f.replace("rope", "matvec/q4_k"));
        let mut files = vec!["mod.rs", "table.rs", "matvec/mod.rs"];
        files.extend(ROPE);
        files.extend(nested.iter().map(String::as_str));
        assert_eq!(found(&files), [""; 0]);
    }

    #[test]
    fn holes_are_found() {
        assert_eq!(found(&ROPE[..3]), ["rope avx512.rs is missing"]);
        assert_eq!(found(&ROPE[1..]), ["rope mod.rs is missing"]);
        let no_contract = ROPE.map(|f| f.replace("rope", "matvec/q4_k"));
        let files: Vec<&str> = no_contract.iter().map(String::as_str).collect();
        assert_eq!(
            found(&files),
            [""; 0],
            "the folder above has no file at all"
        );
        assert_eq!(found(&["rope/mod.rs"]).len(), 3);
    }

    #[test]
    fn a_family_may_be_written_once() {
        let text = format!("{ONCE}\nmod kernels {{}}");
        let once = |file: &str| (format!("{KERNELS}{file}"), text.clone());
        let tree = Tree([once("norm.rs"), once("slab/mod.rs")].into_iter().collect());
        let missing = grid(&tree).len();
        assert_eq!(missing, 3, "the folder's levels, and nothing of the file");
    }

    #[test]
    fn a_list_of_features_is_found() {
        let text = "//! A kernel.\n#[target_feature(enable = \"avx2\")]\nfn f() {}";
        let tree = Tree(
            [(format!("{CPU}simd/new.rs"), text.to_owned())]
                .into_iter()
                .collect(),
        );
        let found = features_stand_once(&tree);
        assert_eq!((found.len(), found[0].line), (1, 2));
    }

    #[test]
    fn strangers_are_found() {
        let mut files = ROPE.to_vec();
        files.extend(["rope/tricks.rs", "helpers.rs"]);
        assert_eq!(
            found(&files),
            [
                "helpers.rs not a place of the grid",
                "rope/tricks.rs not a place of the grid"
            ]
        );
    }
}
