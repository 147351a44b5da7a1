//! Builds the comparator (llama.cpp as a program) for a reference profile, and checks
//! what a running one says of its build.

use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Builds llama.cpp as a reference profile (a build with its settings) says, as the
/// program `muser-reference`, and returns the program's path. Takes minutes the first
/// time.
///
/// # Errors
/// A tool of the C++ toolchain is missing, or the build fails.
pub(crate) fn build(root: &Path, profile: &str) -> Result<PathBuf, String> {
    let target = root.join("target/reference").join(profile);
    let config = root
        .join("crates/muser-reference/profiles")
        .join(format!("{profile}.toml"));
    for tool in ["cmake", "g++"] {
        let found = Command::new(tool)
            .arg("--version")
            .stdout(Stdio::null())
            .status();
        if found.is_err() {
            return Err(format!(
                "the comparator needs {tool}: see crates/muser-reference/README.md"
            ));
        }
    }
    eprintln!("building the comparator {profile} (minutes the first time)");
    let status = Command::new(crate::cargo())
        .args(["build", "--release", "--locked", "--quiet", "--config"])
        .arg(&config)
        .arg("--target-dir")
        .arg(&target)
        .current_dir(root.join("crates/muser-reference"))
        // Compiler flags of the caller would make another build of llama.cpp, and so
        // another profile, of it.
        .env_remove("RUSTFLAGS")
        .env_remove("CFLAGS")
        .env_remove("CXXFLAGS")
        .status()
        .map_err(|e| format!("cargo: {e}"))?;
    if !status.success() {
        return Err(format!("the comparator {profile} did not build: {status}"));
    }
    Ok(target.join("release/muser-reference"))
}

/// Checks in the greeting of a running comparator (llama.cpp as a process) that its
/// build is the reference profile that was asked for.
///
/// # Errors
/// It is of another profile, or the environment sets variables that change
/// llama.cpp's routes at run time.
pub(crate) fn check(greeting: &Value, profile: &str) -> Result<(), String> {
    if greeting["profile"] != json!(profile) {
        return Err(format!("the comparator is not {profile}: {greeting}"));
    }
    let overrides = &greeting["overrides"];
    match overrides.as_object().is_none_or(|o| o.is_empty()) {
        true => Ok(()),
        false => Err(format!(
            "the environment changes llama.cpp's routes: unset {overrides}"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_profile_or_an_override_is_refused() {
        let greeting = json!({ "profile": "llamacpp-avx2", "overrides": {} });
        assert_eq!(check(&greeting, "llamacpp-avx2"), Ok(()));
        assert!(check(&greeting, "llamacpp-avx512").is_err());
        assert!(check(&Value::Null, "llamacpp-avx2").is_err());
        let set = json!({ "profile": "llamacpp-avx2", "overrides": { "GGML_X": "1" } });
        let error = check(&set, "llamacpp-avx2").unwrap_err();
        assert!(error.contains("GGML_X"), "{error}");
    }
}
