//! Collects the facts of this build of llama.cpp and of the machine: versions,
//! compiler, flags, CPU features.

use std::ffi::{CStr, c_char, c_int};

use llama_cpp_sys_2 as sys;
use serde_json::{Value, json};

unsafe extern "C" {
    fn gnu_get_libc_version() -> *const c_char;
}

/// Environment variables through which ggml chooses other kernels at run time.
const OVERRIDES: [&str; 5] = [
    "GGML_CPU_TILED_MM",
    "GGML_CPU_TILED_MM_FORCE",
    "GGML_CPU_DISABLE_FUSION",
    "LLAMA_GRAPH_REUSE_DISABLE",
    "LLAMA_ATTN_ROT_DISABLE",
];

/// Copies a NUL-terminated C string that is never freed while the process runs.
fn text(p: *const c_char) -> String {
    if p.is_null() {
        return String::new();
    }
    // SAFETY: callers pass pointers returned by version and feature functions,
    // which point at static, NUL-terminated strings.
    unsafe { CStr::from_ptr(p) }.to_string_lossy().into_owned()
}

/// A CPU feature: its name, the function that says whether ggml was compiled for it,
/// and whether the CPU has it.
type Feature = (&'static str, unsafe extern "C" fn() -> c_int, bool);

fn features() -> Vec<Feature> {
    use std::arch::is_x86_feature_detected as has;
    let avx512 = has!("avx512f")
        && has!("avx512cd")
        && has!("avx512vl")
        && has!("avx512dq")
        && has!("avx512bw");
    vec![
        ("ssse3", sys::ggml_cpu_has_ssse3, has!("ssse3")),
        ("avx", sys::ggml_cpu_has_avx, has!("avx")),
        ("avx2", sys::ggml_cpu_has_avx2, has!("avx2")),
        ("bmi2", sys::ggml_cpu_has_bmi2, has!("bmi2")),
        ("f16c", sys::ggml_cpu_has_f16c, has!("f16c")),
        ("fma", sys::ggml_cpu_has_fma, has!("fma")),
        ("avx_vnni", sys::ggml_cpu_has_avx_vnni, has!("avxvnni")),
        ("avx512", sys::ggml_cpu_has_avx512, avx512),
        (
            "avx512_vbmi",
            sys::ggml_cpu_has_avx512_vbmi,
            has!("avx512vbmi"),
        ),
        (
            "avx512_vnni",
            sys::ggml_cpu_has_avx512_vnni,
            has!("avx512vnni"),
        ),
        (
            "avx512_bf16",
            sys::ggml_cpu_has_avx512_bf16,
            has!("avx512bf16"),
        ),
    ]
}

/// Returns the facts of this build of llama.cpp and of the machine as one JSON object.
///
/// # Errors
/// The build uses an instruction set that this CPU lacks; the error names it.
pub(crate) fn facts() -> Result<Value, String> {
    let mut built = serde_json::Map::new();
    for (name, compiled, present) in features() {
        // SAFETY: these functions take nothing and return a compile-time constant.
        let on = unsafe { compiled() } != 0;
        if on && !present {
            return Err(format!("this build uses {name}, which this CPU lacks"));
        }
        built.insert(name.into(), on.into());
    }
    let mut facts: Value =
        serde_json::from_str(include_str!(concat!(env!("OUT_DIR"), "/build.json")))
            .map_err(|e| format!("the build's own facts: {e}"))?;
    let overrides: serde_json::Map<String, Value> = OVERRIDES
        .iter()
        .filter_map(|n| Some(((*n).to_owned(), std::env::var(n).ok()?.into())))
        .collect();
    // SAFETY: each returns a pointer to a static string.
    let (version, commit, system, glibc) = unsafe {
        (
            text(sys::ggml_version()),
            text(sys::ggml_commit()),
            text(sys::llama_print_system_info()),
            text(gnu_get_libc_version()),
        )
    };
    facts["program"] = json!(format!("muser-reference {}", env!("CARGO_PKG_VERSION")));
    facts["ggml"] = json!({ "version": version, "commit": commit });
    facts["features"] = Value::Object(built);
    facts["system_info"] = json!(system);
    facts["glibc"] = json!(glibc);
    facts["overrides"] = Value::Object(overrides);
    Ok(facts)
}

/// Prints the facts of this build of llama.cpp and of the machine (versions, compiler,
/// flags, CPU features) as one line of JSON on standard output.
pub(crate) fn print() -> Result<(), String> {
    println!("{}", facts()?);
    Ok(())
}
