//! Any body is a request or is refused, on every route that reads one.
#![no_main]

#[path = "../common/mod.rs"]
mod common;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    muser_server::fuzzing::request(&common::SERVER, data);
});
