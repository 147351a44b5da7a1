//! Any schema compiles to a grammar or is refused: as the form of an answer, and
//! as the parameters of a tool that has to be called.
#![no_main]

#[path = "../common/mod.rs"]
mod common;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    muser_server::fuzzing::schema(&common::SERVER, data);
});
