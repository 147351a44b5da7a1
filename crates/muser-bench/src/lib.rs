//! Compares muser with llama.cpp: whether both compute the same bits ([`parity`]), and
//! which is faster on the same model file ([`compare`]).
//!
//! Both need the comparator, `muser-reference` (llama.cpp as a separate process), which
//! they build with a C++ toolchain. A development tool: no crate that is shipped
//! depends on this one.
#![forbid(unsafe_code)]

pub mod compare;
pub mod parity;
mod reference;

use muser_cpu::Level;
use muser_ops::Profile;
use std::ffi::OsString;
use std::path::PathBuf;

/// Returns the root folder of the repository that the crate `muser-bench` was built in.
pub fn root() -> PathBuf {
    let here = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    here.ancestors().nth(2).map_or(here.clone(), PathBuf::from)
}

/// Returns the instruction-set level of muser's kernels (AVX2 or AVX-512) that matches
/// a reference profile (a build of llama.cpp).
fn level(profile: Profile) -> Level {
    match profile {
        Profile::LlamaCppAvx2 => Level::Avx2,
        Profile::LlamaCppAvx512 => Level::Avx512,
    }
}

/// Returns the path of the `cargo` program that started this one; without it, the name
/// `cargo`, to be found on `PATH`.
fn cargo() -> OsString {
    std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into())
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_root_is_the_repository() {
        assert!(super::root().join("ARCHITECTURE.md").is_file());
    }
}
