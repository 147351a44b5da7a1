//! The fuzzer's corpus, replayed without the fuzzer: what it found once stays
//! found on a stable toolchain.

#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]

mod common;

use std::fs;
use std::path::Path;

use common::walk;
use muser_gguf::{Error, Gguf};

#[test]
fn every_file_of_the_corpus_is_read_or_refused() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/gguf");
    let (mut read, mut refused) = (0, 0);
    for file in fs::read_dir(corpus).unwrap() {
        let path = file.unwrap().path();
        match Gguf::from_vec(fs::read(&path).unwrap()) {
            Ok(gguf) => {
                walk(&gguf);
                read += 1;
            }
            Err(Error::Refused(refusal)) => {
                assert!(refusal.offset.is_some(), "{}: {refusal}", path.display());
                refused += 1;
            }
            Err(other) => panic!("{}: {other}", path.display()),
        }
    }
    assert!(read >= 2 && refused >= 60, "{read} read, {refused} refused");
}
