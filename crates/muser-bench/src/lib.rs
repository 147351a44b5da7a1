//! muser against llama.cpp: the same bits ([`parity`]) and the same file in turn
//! against the clock ([`compare`]).
//!
//! Both need the comparator, `muser-reference`, which they build with a C++
//! toolchain and ask as a process. A tool of development: nothing of the product
//! depends on it.
#![forbid(unsafe_code)]

pub mod compare;
pub mod parity;
mod reference;

use muser_cpu::Level;
use muser_ops::Profile;
use std::ffi::OsString;
use std::path::PathBuf;

/// The root of the repository that this crate was built in.
pub fn root() -> PathBuf {
    let here = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    here.ancestors().nth(2).map_or(here.clone(), PathBuf::from)
}

/// The level of our kernels with the vectors of a profile's build.
fn level(profile: Profile) -> Level {
    match profile {
        Profile::LlamaCppAvx2 => Level::Avx2,
        Profile::LlamaCppAvx512 => Level::Avx512,
    }
}

/// The cargo that runs this program, else the one on the path.
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
