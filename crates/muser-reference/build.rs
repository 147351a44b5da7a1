//! Records what the comparator was built from and how, from the files that
//! Cargo and CMake left behind rather than from what was asked for.

use std::path::{Path, PathBuf};
use std::{env, fs};

/// Source files whose compile command is recorded: one a translation unit that
/// holds arithmetic of the forward pass.
const UNITS: [&str; 9] = [
    "ggml/src/ggml-quants.c",
    "ggml/src/ggml.c",
    "ggml/src/ggml-cpu/ggml-cpu.c",
    "ggml/src/ggml-cpu/ops.cpp",
    "ggml/src/ggml-cpu/vec.cpp",
    "ggml/src/ggml-cpu/arch/x86/quants.c",
    "ggml/src/ggml-cpu/arch/x86/repack.cpp",
    "ggml/src/ggml-cpu/llamafile/sgemm.cpp",
    "ggml/src/ggml-cpu/tiled/tiled-kernel.cpp",
];

/// Options of the CMake build that decide which code exists and how it is
/// compiled.
const OPTIONS: [&str; 18] = [
    "CMAKE_BUILD_TYPE",
    "GGML_AMX_BF16",
    "GGML_AMX_INT8",
    "GGML_AMX_TILE",
    "GGML_AVX",
    "GGML_AVX2",
    "GGML_AVX512",
    "GGML_AVX512_BF16",
    "GGML_AVX512_VBMI",
    "GGML_AVX512_VNNI",
    "GGML_AVX_VNNI",
    "GGML_BLAS",
    "GGML_CPU_REPACK",
    "GGML_FMA",
    "GGML_LLAMAFILE",
    "GGML_LTO",
    "GGML_NATIVE",
    "GGML_OPENMP",
];

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed=Cargo.lock");
    println!("cargo:rerun-if-env-changed=MUSER_REFERENCE_PROFILE");

    let out = PathBuf::from(env::var_os("OUT_DIR").expect("Cargo sets OUT_DIR"));
    let facts = serde_json::json!({
        "profile": env::var("MUSER_REFERENCE_PROFILE").unwrap_or_else(|_| "unnamed".into()),
        "crate": locked_crate(),
        "build": cmake_facts(),
    });
    fs::write(out.join("build.json"), facts.to_string()).expect("OUT_DIR is writable");
}

/// Name, version and checksum of llama-cpp-sys-2 as Cargo.lock pins it.
fn locked_crate() -> serde_json::Value {
    let lock = fs::read_to_string("Cargo.lock").unwrap_or_default();
    let field = |block: &str, key: &str| {
        block
            .lines()
            .find_map(|l| l.strip_prefix(key)?.trim().strip_prefix("= "))
            .map(|v| v.trim_matches('"').to_owned())
    };
    lock.split("[[package]]")
        .find(|b| field(b, "name").as_deref() == Some("llama-cpp-sys-2"))
        .map(|b| {
            serde_json::json!({
                "name": "llama-cpp-sys-2",
                "version": field(b, "version"),
                "checksum": field(b, "checksum"),
            })
        })
        .unwrap_or(serde_json::Value::Null)
}

/// Compiler, build type, ggml options and compile flags from CMake's own files.
fn cmake_facts() -> serde_json::Value {
    // `links = "llama"` hands over OUT/lib/cmake; CMake's tree is OUT/build.
    let Some(dir) = env::var_os("DEP_LLAMA_GGML_CMAKE_DIR") else {
        return serde_json::Value::Null;
    };
    let Some(tree) = Path::new(&dir).ancestors().nth(2).map(|o| o.join("build")) else {
        return serde_json::Value::Null;
    };
    let cache = fs::read_to_string(tree.join("CMakeCache.txt")).unwrap_or_default();
    let options: serde_json::Map<String, serde_json::Value> = cache
        .lines()
        .filter_map(|l| {
            let (name, value) = l.split_once('=')?;
            let (name, _) = name.split_once(':')?;
            OPTIONS
                .contains(&name)
                .then(|| (name.to_owned(), value.into()))
        })
        .collect();
    serde_json::json!({
        "compiler": { "c": compiler(&tree, "C"), "cxx": compiler(&tree, "CXX") },
        "options": options,
        "flags": compile_flags(&tree),
    })
}

/// Id and version of the compiler that CMake found for a language.
fn compiler(tree: &Path, lang: &str) -> Option<String> {
    let file = fs::read_dir(tree.join("CMakeFiles"))
        .ok()?
        .flatten()
        .map(|e| e.path().join(format!("CMake{lang}Compiler.cmake")))
        .find(|p| p.is_file())?;
    let text = fs::read_to_string(file).ok()?;
    let value = |key: &str| {
        let line = text.lines().find(|l| l.contains(&format!("({key} ")))?;
        Some(line.split('"').nth(1)?.to_owned())
    };
    Some(format!(
        "{} {}",
        value(&format!("CMAKE_{lang}_COMPILER_ID"))?,
        value(&format!("CMAKE_{lang}_COMPILER_VERSION"))?
    ))
}

/// Code-generation flags (`-m…`, `-O…`, `-f…`, `-std…`) of each unit.
fn compile_flags(tree: &Path) -> serde_json::Value {
    let text = fs::read_to_string(tree.join("compile_commands.json")).unwrap_or_default();
    let all: Vec<serde_json::Value> = serde_json::from_str(&text).unwrap_or_default();
    let mut map = serde_json::Map::new();
    for unit in UNITS {
        let command = all.iter().find_map(|c| {
            c["file"]
                .as_str()?
                .ends_with(unit)
                .then(|| c["command"].as_str())?
        });
        let Some(command) = command else { continue };
        let flags: Vec<&str> = command
            .split_whitespace()
            .filter(|f| ["-m", "-O", "-f", "-std"].iter().any(|p| f.starts_with(p)))
            .collect();
        map.insert(unit.into(), flags.join(" ").into());
    }
    map.into()
}
