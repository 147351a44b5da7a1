//! Collects the facts of the machine and of muser's build for the record of a
//! comparison of speed. They contain no host name and no path.

use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;

/// CPU features, as `/proc/cpuinfo` names them, that a kernel of llama.cpp or muser
/// uses.
const FLAGS: [&str; 16] = [
    "avx",
    "avx2",
    "fma",
    "f16c",
    "bmi2",
    "avx_vnni",
    "avx512f",
    "avx512cd",
    "avx512bw",
    "avx512dq",
    "avx512vl",
    "avx512_vnni",
    "avx512vbmi",
    "avx512_bf16",
    "amx_int8",
    "hypervisor",
];

/// Reads the facts of this machine: CPU, cores, memory, operating system.
pub(super) fn facts() -> Value {
    let read = |path| fs::read_to_string(path).unwrap_or_default();
    let mut facts = cpu(&read("/proc/cpuinfo"));
    facts["available_threads"] = json!(std::thread::available_parallelism().map_or(1, usize::from));
    facts["kernel"] = json!(read("/proc/sys/kernel/osrelease").trim());
    facts["os"] = json!(std::env::consts::OS);
    facts["huge_pages"] = json!(chosen(&read("/sys/kernel/mm/transparent_hugepage/enabled")));
    facts["memory_bytes"] = json!(memory(&read("/proc/meminfo")));
    facts
}

/// Parses the CPU's model, cores, threads and features from the text of
/// `/proc/cpuinfo`.
fn cpu(text: &str) -> Value {
    let field = |block: &str, name: &str| {
        let line = block
            .lines()
            .find(|l| l.split(':').next().map(str::trim) == Some(name));
        line.and_then(|l| l.split_once(':'))
            .map(|(_, value)| value.trim().to_owned())
    };
    let blocks: Vec<&str> = text
        .split("\n\n")
        .filter(|b| !b.trim().is_empty())
        .collect();
    let first = blocks.first().copied().unwrap_or_default();
    let cores: BTreeSet<_> = blocks
        .iter()
        .map(|b| (field(b, "physical id"), field(b, "core id")))
        .collect();
    let has = field(first, "flags").unwrap_or_default();
    let has: BTreeSet<&str> = has.split_whitespace().collect();
    json!({
        "cpu": field(first, "model name"),
        "cache": field(first, "cache size"),
        "cores": cores.len(),
        "threads": blocks.len(),
        "flags": FLAGS.into_iter().filter(|f| has.contains(f)).collect::<Vec<_>>(),
    })
}

/// Returns the value in force of a Linux kernel setting, from a text that lists all
/// possible values with that one in brackets.
fn chosen(text: &str) -> Option<&str> {
    text.split_once('[')?.1.split(']').next()
}

fn memory(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|l| l.strip_prefix("MemTotal:"))?;
    let kib: u64 = line.split_whitespace().next()?.parse().ok()?;
    kib.checked_mul(1024)
}

/// Returns the facts of this build of muser: version, commit, compiler.
pub(super) fn build(root: &Path) -> Value {
    let run = |program: &str, args: &[&str]| {
        let output = Command::new(program).args(args).current_dir(root).output();
        let output = output.ok().filter(|o| o.status.success())?;
        Some(String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    let changed = run("git", &["status", "--porcelain", "--untracked-files=no"]);
    json!({
        "version": env!("CARGO_PKG_VERSION"),
        "commit": run("git", &["rev-parse", "HEAD"]),
        // Whether tracked files differ from the commit.
        "changed": changed.map(|c| !c.is_empty()),
        "rustc": run("rustc", &["--version"]),
        "rustflags": std::env::var("RUSTFLAGS").unwrap_or_default(),
    })
}

/// Returns the facts of the comparator (the build of llama.cpp that muser is compared
/// with) for the record of a comparison of speed: versions, compiler, flags,
/// parameters.
pub(super) fn comparator(info: &Value, params: &Value) -> Value {
    let unit = "ggml/src/ggml-cpu/ggml-cpu.c";
    json!({
        "crate": info["crate"],
        "ggml": info["ggml"],
        "compiler": info["build"]["compiler"],
        "flags": info["build"]["flags"][unit],
        "options": info["build"]["options"],
        "features": info["features"],
        "glibc": info["glibc"],
        "params": params,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpuinfo_is_counted() {
        let block = |core: u8| {
            format!(
                "processor\t: {core}\nmodel name\t: A CPU\nphysical id\t: 0\ncore id\t\t: {}\n\
                 flags\t\t: fpu avx2 fma avx512_vnni\n",
                core / 2
            )
        };
        let facts = cpu(&format!("{}\n{}\n{}\n", block(0), block(1), block(2)));
        assert_eq!(facts["cpu"], json!("A CPU"));
        assert_eq!((&facts["threads"], &facts["cores"]), (&json!(3), &json!(2)));
        assert_eq!(facts["flags"], json!(["avx2", "fma", "avx512_vnni"]));
        assert_eq!(cpu("")["threads"], json!(0));
    }

    #[test]
    fn settings_are_read() {
        assert_eq!(chosen("always [madvise] never\n"), Some("madvise"));
        assert_eq!(chosen(""), None);
        assert_eq!(
            memory("MemTotal:       1024 kB\nMemFree: 1 kB"),
            Some(1 << 20)
        );
    }

    #[test]
    fn a_record_has_no_paths() {
        let info = json!({
            "crate": { "name": "c" }, "program": "/a/b", "system_info": "CPU",
            "build": { "flags": { "ggml/src/ggml-cpu/ggml-cpu.c": "-O3" } },
        });
        let kept = comparator(&info, &json!({ "n_ctx": 512 }));
        assert_eq!(kept["flags"], json!("-O3"));
        assert!(!kept.to_string().contains('/'), "{kept}");
    }
}
