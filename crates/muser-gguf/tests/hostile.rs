//! Malformed files: one row a refusal, each with its whole message.
//!
//! Where a row repeats a defect once found in another reader, its name says
//! which kind: the check itself overflowing, padding that wraps, and so on.

mod common;

use std::io::{Seek, SeekFrom, Write};

use common::{ARRAY, BOOL, F32, I32, Raw, STRING, U8, U32, sample};
use muser_gguf::{Error, Fault, GgmlType, Gguf};

/// What is refused, the file, the message.
type Row = (&'static str, Raw, &'static str);

fn refusal(bytes: Vec<u8>) -> String {
    match Gguf::from_vec(bytes) {
        Err(error @ Error::Refused(_)) => error.to_string(),
        other => format!("not refused: {other:?}"),
    }
}

fn check(rows: Vec<Row>) {
    for (what, raw, message) in rows {
        assert_eq!(refusal(raw.0), message, "{what}");
    }
}

/// A file of one key, whose value follows.
fn one_key(ty: u32) -> Raw {
    Raw::new(0, 1).key("k", ty)
}

#[test]
fn header() {
    let version = |v: u32| Raw(b"GGUF".to_vec()).u32(v).u64(0).u64(0);
    check(vec![
        (
            "an empty file",
            Raw::default(),
            "GGUF header at byte 0: magic: expected 4 bytes, found 0 before the end of the file",
        ),
        (
            "another format",
            Raw(b"\x89PNG\r\n\x1a\n".to_vec()),
            r#"GGUF header at byte 0: expected the magic "GGUF", found "\x89PNG""#,
        ),
        (
            "version 1, whose lengths are 32 bits",
            version(1),
            "GGUF header at byte 4: expected version 2 or 3, found 1",
        ),
        (
            "version 0",
            version(0),
            "GGUF header at byte 4: expected version 2 or 3, found 0",
        ),
        (
            "a version to come",
            version(4),
            "GGUF header at byte 4: expected version 2 or 3, found 4",
        ),
        (
            "big-endian",
            version(3u32.swap_bytes()),
            "GGUF header at byte 4: expected a little-endian file, found a big-endian one of version 3",
        ),
        (
            "more tensors than the file could hold",
            Raw::new(1 << 60, 0).zeros(66),
            "GGUF header at byte 8: expected at most 2 tensors in the bytes left, found a count of 1152921504606846976",
        ),
        (
            "more keys than the file could hold",
            Raw::new(0, u64::MAX).zeros(28),
            "GGUF header at byte 16: expected at most 2 keys in the bytes left, found a count of 18446744073709551615",
        ),
        (
            "more tensors than is sane",
            Raw::new((1 << 18) + 1, 0).zeros(33 << 19),
            "GGUF header at byte 8: expected at most 262144 tensors in a file, found a count of 262145",
        ),
        (
            "more keys than is sane",
            Raw::new(0, (1 << 16) + 1).zeros(14 << 17),
            "GGUF header at byte 16: expected at most 65536 keys in a file, found a count of 65537",
        ),
        (
            "keys that leave no room for the tensors",
            Raw::new(2, 2).zeros(28 + 33),
            "GGUF header at byte 8: expected at most 1 tensors in the bytes left, found a count of 2",
        ),
    ]);
}

#[test]
fn keys() {
    check(vec![
        (
            "a zero-length key",
            Raw::new(0, 1).key("", U32).zeros(4),
            "metadata key #0 at byte 24: expected a key of 1 to 65535 bytes, found one of 0",
        ),
        (
            "a key beyond the format's limit",
            Raw::new(0, 1).key(vec![b'k'; 65_536], U32).u32(0),
            "metadata key #0 at byte 24: expected a key of 1 to 65535 bytes, found one of 65536",
        ),
        (
            "a key length whose sum with the position wraps",
            Raw::new(0, 1).u64(u64::MAX - 8).zeros(16),
            "metadata key #0 at byte 24: expected a key of 1 to 65535 bytes, found one of 18446744073709551607",
        ),
        (
            "a key beyond the file",
            Raw::new(0, 1).u64(1000).zeros(16),
            "metadata key #0 at byte 32: key: expected 1000 bytes, found 16 before the end of the file",
        ),
        (
            "a key that is not UTF-8",
            Raw::new(0, 1).key(b"ab\xff", U32).u32(0),
            "metadata key #0 at byte 34: key: expected UTF-8, found an invalid sequence",
        ),
        (
            "a key twice",
            Raw::new(0, 2).key("k", U32).u32(0).key("k", BOOL).zeros(1),
            r#"metadata key "k" at byte 41: expected each key once, found it also at byte 24"#,
        ),
        (
            "a long hostile key in a message",
            Raw::new(0, 1).key("\x1b".repeat(97), 13).u32(0),
            concat!(
                "metadata key \"",
                r"\u{1b}\u{1b}\u{1b}\u{1b}\u{1b}\u{1b}\u{1b}\u{1b}\u{1b}\u{1b}\u{1b}\u{1b}",
                r"\u{1b}\u{1b}\u{1b}\u{1b}\u{1b}\u{1b}\u{1b}\u{1b}\u{1b}\u{1b}\u{1b}\u{1b}",
                r"\u{1b}\u{1b}\u{1b}\u{1b}\u{1b}\u{1b}\u{1b}\u{1b}\u{1b}\u{1b}\u{1b}\u{1b}",
                r"\u{1b}\u{1b}\u{1b}\u{1b}\u{1b}\u{1b}\u{1b}\u{1b}\u{1b}\u{1b}\u{1b}\u{1b}",
                r"\u{1b}\u{1b}\u{1b}\u{1b}\u{1b}\u{1b}\u{1b}\u{1b}\u{1b}\u{1b}\u{1b}\u{1b}",
                r"\u{1b}\u{1b}\u{1b}\u{1b}\u{1b}\u{1b}\u{1b}\u{1b}\u{1b}\u{1b}\u{1b}\u{1b}",
                r"\u{1b}\u{1b}\u{1b}\u{1b}\u{1b}\u{1b}\u{1b}\u{1b}\u{1b}\u{1b}\u{1b}\u{1b}",
                r"\u{1b}\u{1b}\u{1b}\u{1b}\u{1b}\u{1b}\u{1b}\u{1b}\u{1b}\u{1b}\u{1b}\u{1b}",
                "\"… at byte 129: value type: expected a value type of 0 to 12, found 13",
            ),
        ),
    ]);
}

#[test]
fn values() {
    check(vec![
        (
            "an unknown value type",
            one_key(13).u32(0),
            r#"metadata key "k" at byte 33: value type: expected a value type of 0 to 12, found 13"#,
        ),
        (
            "a negative value type",
            one_key(u32::MAX).u32(0),
            r#"metadata key "k" at byte 33: value type: expected a value type of 0 to 12, found 4294967295"#,
        ),
        (
            "a bool that is neither",
            one_key(BOOL).bytes(&[2]),
            r#"metadata key "k" at byte 37: expected a bool byte of 0 or 1, found 2"#,
        ),
        (
            "a string beyond the file",
            one_key(STRING).u64(9).bytes(b"eight by"),
            r#"metadata key "k" at byte 45: string: expected 9 bytes, found 8 before the end of the file"#,
        ),
        (
            "a string length to which a terminator's byte would wrap",
            one_key(STRING).u64(u64::MAX),
            r#"metadata key "k" at byte 45: string: expected 18446744073709551615 bytes, found 0 before the end of the file"#,
        ),
        (
            "a string that is not UTF-8",
            one_key(STRING).str(b"\xc3"),
            r#"metadata key "k" at byte 45: string: expected UTF-8, found an invalid sequence"#,
        ),
        (
            "a string with a surrogate",
            one_key(STRING).str(b"a\xed\xa0\x80"),
            r#"metadata key "k" at byte 46: string: expected UTF-8, found an invalid sequence"#,
        ),
    ]);
}

#[test]
fn arrays() {
    check(vec![
        (
            "an unknown element type",
            one_key(ARRAY).array(99, 0),
            r#"metadata key "k" at byte 37: element type: expected a value type of 0 to 12, found 99"#,
        ),
        (
            "more numbers than the file holds",
            one_key(ARRAY).array(U32, 4).zeros(15),
            r#"metadata key "k" at byte 41: expected at most 3 elements of u32 in the bytes left, found a length of 4"#,
        ),
        (
            "a length whose product with the element size wraps to 0",
            one_key(ARRAY).array(U32, 1 << 62).zeros(16),
            r#"metadata key "k" at byte 41: expected at most 4 elements of u32 in the bytes left, found a length of 4611686018427387904"#,
        ),
        (
            "more strings than the file holds length fields for",
            one_key(ARRAY).array(STRING, 1 << 60).zeros(16),
            r#"metadata key "k" at byte 41: expected at most 2 elements of string in the bytes left, found a length of 1152921504606846976"#,
        ),
        (
            "more arrays than the file holds headers for",
            one_key(ARRAY).array(ARRAY, 3).zeros(24),
            r#"metadata key "k" at byte 41: expected at most 2 elements of array in the bytes left, found a length of 3"#,
        ),
        (
            "a string of an array beyond the file",
            one_key(ARRAY).array(STRING, 2).str("abcdef").u64(1),
            r#"metadata key "k" at byte 71: string: expected 1 bytes, found 0 before the end of the file"#,
        ),
        (
            "a string of an array that is not UTF-8",
            one_key(ARRAY).array(STRING, 2).str("ab").str(b"c\x80"),
            r#"metadata key "k" at byte 68: string: expected UTF-8, found an invalid sequence"#,
        ),
        (
            "two strings that are UTF-8 only end to end",
            one_key(ARRAY).array(STRING, 2).str(b"\xc3").str(b"\x9f"),
            r#"metadata key "k" at byte 57: string: expected UTF-8, found an invalid sequence"#,
        ),
        (
            "a bool of an array that is neither",
            one_key(ARRAY).array(BOOL, 3).bytes(&[1, 0, 255]),
            r#"metadata key "k" at byte 51: expected a bool byte of 0 or 1, found 255"#,
        ),
        (
            "more arrays than is sane",
            one_key(ARRAY).array(ARRAY, 1 << 20).zeros(12 << 20),
            r#"metadata key "k" at byte 49: expected at most 1048576 arrays in a file, found a count of 1048577"#,
        ),
        (
            "nesting beyond the limit",
            (0..4)
                .fold(one_key(ARRAY), |raw, _| raw.array(ARRAY, 1))
                .array(U8, 0),
            r#"metadata key "k" at byte 85: expected at most 4 arrays within one another, found more"#,
        ),
        (
            "nesting to exhaust the stack",
            (0..100_000).fold(one_key(ARRAY), |raw, _| raw.array(ARRAY, 1)),
            r#"metadata key "k" at byte 85: expected at most 4 arrays within one another, found more"#,
        ),
    ]);
    // The deepest that is legal.
    let deepest = (0..3).fold(one_key(ARRAY), |raw, _| raw.array(ARRAY, 1));
    assert!(Gguf::from_vec(deepest.array(U8, 0).0).is_ok());
}

#[test]
fn alignment() {
    let key = |ty| Raw::new(0, 1).key("general.alignment", ty);
    check(vec![
        (
            "0, by which another reader divides",
            key(U32).u32(0),
            r#"metadata key "general.alignment" at byte 24: expected an alignment that is a power of two and at least 8, found 0"#,
        ),
        (
            "not a power of two",
            key(U32).u32(48),
            r#"metadata key "general.alignment" at byte 24: expected an alignment that is a power of two and at least 8, found 48"#,
        ),
        (
            "less than the format's unit",
            key(U32).u32(4),
            r#"metadata key "general.alignment" at byte 24: expected an alignment that is a power of two and at least 8, found 4"#,
        ),
        (
            "another integer type",
            key(I32).u32(32),
            r#"metadata key "general.alignment" at byte 24: expected the alignment as u32, found i32"#,
        ),
        (
            "a wider integer type",
            key(10).u64(32),
            r#"metadata key "general.alignment" at byte 24: expected the alignment as u32, found u64"#,
        ),
        (
            "a string",
            key(STRING).str("32"),
            r#"metadata key "general.alignment" at byte 24: expected the alignment as u32, found string"#,
        ),
        (
            "so large that the data would start beyond the file",
            Raw::new(1, 1)
                .key("general.alignment", U32)
                .u32(1 << 31)
                .tensor("t", &[8], GgmlType::F32, 0)
                .pad(32)
                .zeros(32),
            "GGUF header at byte 90: expected the data start at byte 2147483648 within the file, found a file of 128 bytes",
        ),
    ]);
}

/// A file of one tensor of 8 × F32 unless the row says otherwise.
#[test]
fn tensor_names_and_shapes() {
    let dims = |dims: &[u64], ty| Raw::new(1, 0).tensor("t", dims, ty, 0).pad(32).zeros(64);
    let ty = |id| {
        let entry = Raw::new(1, 0).shape("t", &[8]);
        entry.u32(id).u64(0).pad(32).zeros(32)
    };
    check(vec![
        (
            "a nameless tensor",
            Raw::new(1, 0).tensor("", &[8], GgmlType::F32, 0).zeros(64),
            "tensor #0 at byte 24: expected a tensor name of 1 to 63 bytes, found one of 0",
        ),
        (
            "a name ggml would cut",
            Raw::new(1, 0).tensor(&"n".repeat(64), &[8], GgmlType::F32, 0),
            "tensor #0 at byte 24: expected a tensor name of 1 to 63 bytes, found one of 64",
        ),
        (
            "a name that is not UTF-8",
            Raw::new(1, 0).str(b"\xff").zeros(64),
            "tensor #0 at byte 32: name: expected UTF-8, found an invalid sequence",
        ),
        (
            "a tensor twice",
            Raw::new(2, 0)
                .tensor("t", &[8], GgmlType::F32, 0)
                .tensor("t", &[4], GgmlType::F32, 32)
                .zeros(128),
            r#"tensor "t" at byte 57: expected each tensor once, found the name also as tensor #0"#,
        ),
        (
            "no dimension",
            Raw::new(1, 0).tensor("t", &[], GgmlType::F32, 0).zeros(64),
            r#"tensor "t" at byte 33: expected 1 to 4 dimensions, found 0"#,
        ),
        (
            "five dimensions",
            dims(&[1; 5], GgmlType::F32),
            r#"tensor "t" at byte 33: expected 1 to 4 dimensions, found 5"#,
        ),
        (
            "dimensions without bound",
            Raw::new(1, 0).str("t").u32(u32::MAX).zeros(64),
            r#"tensor "t" at byte 33: expected 1 to 4 dimensions, found 4294967295"#,
        ),
        (
            "a zero dimension, by which another reader divides",
            dims(&[8, 0, 2], GgmlType::F32),
            r#"tensor "t" at byte 37: dimension 1: expected at least 1, found 0"#,
        ),
        (
            "a product that wraps to a small one",
            dims(&[1, (1 << 42) + 1, 1 << 22], GgmlType::I8),
            r#"tensor "t" at byte 37: expected at most 9223372036854775807 elements, found dimensions [1, 4398046511105, 4194304]"#,
        ),
        (
            "a product that overflows in the very check of it",
            dims(&[i64::MAX as u64, 2, 1, 1], GgmlType::I8),
            r#"tensor "t" at byte 37: expected at most 9223372036854775807 elements, found dimensions [9223372036854775807, 2, 1, 1]"#,
        ),
        (
            "a negative dimension",
            dims(&[u64::MAX], GgmlType::I8),
            r#"tensor "t" at byte 37: expected at most 9223372036854775807 elements, found dimensions [18446744073709551615]"#,
        ),
        (
            "a product that wraps to 0",
            dims(&[1 << 32, 1 << 32], GgmlType::F32),
            r#"tensor "t" at byte 37: expected at most 9223372036854775807 elements, found dimensions [4294967296, 4294967296]"#,
        ),
        (
            "an unknown type",
            ty(43),
            r#"tensor "t" at byte 45: expected a ggml type, found id 43"#,
        ),
        (
            "a negative type",
            ty(u32::MAX),
            r#"tensor "t" at byte 45: expected a ggml type, found id 4294967295"#,
        ),
        (
            "a type ggml gave up, of block size 0",
            ty(31),
            r#"tensor "t" at byte 45: expected a ggml type, found id 31 (Q4_0_4_4, removed from ggml)"#,
        ),
        (
            "a row that ends within a block",
            dims(&[128, 2], GgmlType::Q4_K),
            r#"tensor "t" at byte 37: expected rows of a multiple of 256 elements for Q4_K, found 128"#,
        ),
        (
            "a size in bytes that wraps",
            dims(&[1 << 62], GgmlType::F32),
            r#"tensor "t" at byte 37: expected a size that fits 64 bits with its padding, found F32 of dimensions [4611686018427387904]"#,
        ),
        (
            "a size whose padding wraps it to 0",
            dims(&[4, (1 << 30) - 1, (1 << 30) + 1, 1], GgmlType::F32),
            r#"tensor "t" at byte 37: expected a size that fits 64 bits with its padding, found F32 of dimensions [4, 1073741823, 1073741825, 1]"#,
        ),
    ]);
}

#[test]
fn tensor_data() {
    let at = |offset| {
        let file = Raw::new(1, 0).tensor("t", &[8], GgmlType::F32, offset);
        file.pad(32).zeros(64)
    };
    let two = |a, b| {
        let file = Raw::new(2, 0).tensor("a", &[16], GgmlType::F32, a);
        file.tensor("b", &[4], GgmlType::F32, b).pad(32).zeros(128)
    };
    check(vec![
        (
            "a file that ends before its data",
            Raw::new(1, 0).tensor("t", &[8], GgmlType::F32, 0),
            "GGUF header at byte 57: expected the data start at byte 64 within the file, found a file of 57 bytes",
        ),
        (
            "misaligned",
            at(16),
            r#"tensor "t" at byte 49: expected data at a multiple of 32, found offset 16"#,
        ),
        (
            "larger than the file, which another reader read beyond",
            Raw::new(1, 0)
                .tensor("t", &[8, 1000], GgmlType::F32, 0)
                .pad(32)
                .zeros(32),
            r#"tensor "t" at byte 57: expected data within the 32 bytes of the data section, found 32000 bytes at offset 0"#,
        ),
        (
            "an offset beyond the file",
            at(64),
            r#"tensor "t" at byte 49: expected data within the 64 bytes of the data section, found 32 bytes at offset 64"#,
        ),
        (
            "an offset whose sum with the length wraps",
            at(u64::MAX - 31),
            r#"tensor "t" at byte 49: expected data within the 64 bytes of the data section, found 32 bytes at offset 18446744073709551584"#,
        ),
        (
            "an overlap",
            two(0, 32),
            r#"tensor "b" at byte 82: expected data of its own, found bytes 128..144 shared with tensor "a""#,
        ),
        (
            "an overlap out of order",
            two(32, 64),
            r#"tensor "b" at byte 82: expected data of its own, found bytes 160..176 shared with tensor "a""#,
        ),
        (
            "the same data twice",
            two(0, 0),
            r#"tensor "b" at byte 82: expected data of its own, found bytes 96..112 shared with tensor "a""#,
        ),
    ]);
    // Out of order and with a gap is unusual, but each has data of its own.
    assert!(Gguf::from_vec(two(64, 0).0).is_ok());
}

/// Every prefix of a file lacks something, and says so.
#[test]
fn truncation_at_every_byte() {
    let whole = sample();
    assert!(Gguf::from_vec(whole.clone()).is_ok());
    for len in 0..whole.len() {
        let error = Gguf::from_vec(whole[..len].to_vec()).expect_err("a file cut short");
        let Error::Refused(refusal) = error else {
            panic!("{len}: {error}");
        };
        let cut = matches!(
            refusal.fault,
            Fault::Truncated { .. }
                | Fault::Count { .. }
                | Fault::ArrayLength { .. }
                | Fault::DataStart { .. }
                | Fault::OutOfRange { .. }
        );
        assert!(cut, "{len}: {refusal}");
        assert!(refusal.offset.is_some_and(|at| at <= len as u64), "{len}");
    }
}

/// A sparse file costs its author nothing: its length must not buy memory.
#[test]
fn a_header_beyond_the_limit() {
    let message = |raw: Raw| {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(&raw.0).unwrap();
        file.as_file().set_len(1 << 30).unwrap();
        Gguf::open(file.path()).unwrap_err().to_string()
    };
    assert_eq!(
        message(one_key(STRING).u64(1 << 29)),
        r#"metadata key "k" at byte 45: string: expected the header to end by byte 268435456, found byte 536870957"#
    );
    assert_eq!(
        message(one_key(ARRAY).array(STRING, 1 << 26)),
        r#"metadata key "k" at byte 49: array: expected the header to end by byte 268435456, found byte 536870961"#
    );
    assert_eq!(
        message(one_key(ARRAY).array(F32, 1 << 26)),
        r#"metadata key "k" at byte 49: array: expected the header to end by byte 268435456, found byte 268435505"#
    );
}

#[test]
fn what_cannot_be_mapped() {
    let dir = tempfile::tempdir().unwrap();
    let message = |path: &std::path::Path| Gguf::open(path).unwrap_err().to_string();
    assert_eq!(
        message(dir.path()),
        format!("{}: expected a regular file", dir.path().display())
    );
    let absent = dir.path().join("absent");
    assert!(message(&absent).starts_with(&absent.display().to_string()));
    let mut empty = tempfile::NamedTempFile::new().unwrap();
    assert_eq!(
        message(empty.path()),
        "GGUF header at byte 0: magic: expected 4 bytes, found 0 before the end of the file"
    );
    empty.write_all(&sample()).unwrap();
    empty.seek(SeekFrom::Start(0)).unwrap();
    assert_eq!(Gguf::open(empty.path()).unwrap().tensors().len(), 2);
}
