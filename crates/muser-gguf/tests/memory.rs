//! A number in a file buys no memory: the peak of the address space does not
//! move, though some of these sizes could be reserved without an error.
//!
//! Alone in its file, for other tests in the process would move the peak.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]

mod common;

use common::{ARRAY, Raw, STRING, U8};
use muser_gguf::{GgmlType, Gguf};

/// The largest the address space has been, in KiB.
fn peak_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|l| l.strip_prefix("VmPeak:"));
    let number = line.and_then(|l| l.split_whitespace().next());
    number.unwrap().parse().unwrap()
}

#[test]
fn claims_cost_no_memory() {
    let key = || Raw::new(0, 1).key("k", ARRAY);
    let mut files = Vec::new();
    for claim in [1u64 << 60, 1 << 33, 1 << 28] {
        files.extend([
            Raw::new(claim, 0).zeros(100),
            Raw::new(0, claim).zeros(100),
            Raw::new(0, 1).u64(claim).zeros(100),
            Raw::new(0, 1).key("k", STRING).u64(claim).zeros(100),
            key().array(U8, claim).zeros(100),
            key().array(STRING, claim).zeros(100),
            key().array(ARRAY, claim).zeros(100),
            Raw::new(1, 0)
                .tensor("t", &[claim], GgmlType::F32, 0)
                .zeros(100),
        ]);
    }
    let before = peak_kib();
    for file in files {
        assert!(Gguf::from_vec(file.0).is_err());
    }
    let grown = peak_kib() - before;
    assert!(grown < 16 << 10, "{grown} KiB more");
}
