//! The writer: it refuses what the reader would, and data other than declared.

use muser_gguf::{Array, Error, GgmlType, Gguf, Value, Writer};

fn message<T>(result: Result<T, Error>) -> String {
    result.err().expect("refused").to_string()
}

#[test]
fn keys_the_reader_would_refuse() {
    let mut w = Writer::new();
    w.metadata("k", 1u8).unwrap();
    let deep = (0..4).fold(Array::of_arrays(vec![]), |inner, _| {
        Array::of_arrays(vec![inner])
    });
    let rows = [
        (
            message(w.metadata("", 1u8)),
            "metadata key \"\": expected a key of 1 to 65535 bytes, found one of 0",
        ),
        (
            message(w.metadata("k", 2u8)),
            "metadata key \"k\": expected a key that is not there yet, found it declared twice",
        ),
        (
            message(w.metadata("d", deep)),
            "metadata key \"d\": expected at most 4 arrays within one another, found more",
        ),
        (
            message(w.metadata("general.alignment", 32u64)),
            "metadata key \"general.alignment\": expected the alignment as u32, found u64",
        ),
        (
            message(w.metadata("general.alignment", 12u32)),
            "metadata key \"general.alignment\": expected an alignment that is a power of two and at least 8, found 12",
        ),
    ];
    for (found, expected) in rows {
        assert_eq!(found, expected);
    }
    assert!(message(w.metadata("k".repeat(65_536), 1u8)).ends_with("found one of 65536"));
    let many = Array::of_arrays(vec![Array::of_arrays(vec![]); 1 << 20]);
    assert!(message(w.metadata("m", many)).ends_with("in a file, found a count of 1048577"));
    w.metadata("k".repeat(65_535), 1u8).unwrap();
    let gguf = Gguf::from_vec(w.start(Vec::new()).unwrap().finish().unwrap()).unwrap();
    assert_eq!(gguf.metadata().len(), 2);
}

#[test]
fn tensors_the_reader_would_refuse() {
    let mut w = Writer::new();
    w.tensor("t", &[8], GgmlType::F32).unwrap();
    let f32 = GgmlType::F32;
    let rows = [
        (
            message(w.tensor("", &[8], f32)),
            "expected a tensor name of 1 to 63 bytes, found one of 0",
        ),
        (
            message(w.tensor("n".repeat(64), &[8], f32)),
            "expected a tensor name of 1 to 63 bytes, found one of 64",
        ),
        (
            message(w.tensor("t", &[4], f32)),
            "expected each tensor once, found the name also as tensor #0",
        ),
        (
            message(w.tensor("u", &[], f32)),
            "expected 1 to 4 dimensions, found 0",
        ),
        (
            message(w.tensor("u", &[1; 5], f32)),
            "expected 1 to 4 dimensions, found 5",
        ),
        (
            message(w.tensor("u", &[1, 0], f32)),
            "dimension 1: expected at least 1, found 0",
        ),
        (
            message(w.tensor("u", &[u64::MAX, 2], f32)),
            "expected at most 9223372036854775807 elements, found dimensions [18446744073709551615, 2]",
        ),
        (
            message(w.tensor("u", &[100], GgmlType::Q8_0)),
            "expected rows of a multiple of 32 elements for Q8_0, found 100",
        ),
        (
            message(w.tensor("u", &[1 << 62], f32)),
            "expected a size that fits 64 bits with its padding, found F32 of dimensions [4611686018427387904]",
        ),
    ];
    for (found, expected) in rows {
        assert!(found.ends_with(&format!(": {expected}")), "{found}");
    }
    // Each of these fits, both together do not.
    w.tensor("u", &[1 << 62], GgmlType::I8).unwrap();
    w.tensor("v", &[1 << 62], GgmlType::I8).unwrap();
    assert!(message(w.start(Vec::new())).starts_with("tensor \"v\": expected a size that fits"));
}

#[test]
fn data_comes_as_declared() {
    let mut w = Writer::new();
    w.tensor("a", &[3], GgmlType::I8).unwrap();
    w.tensor("b", &[2], GgmlType::F32).unwrap();
    let mut out = w.clone().start(Vec::new()).unwrap();
    let wrong = [
        (
            message(out.tensor("b", &[0; 8])),
            "tensor data: expected tensor \"a\", found tensor \"b\"",
        ),
        (
            message(out.tensor("a", &[0; 2])),
            "tensor \"a\": expected 3 bytes of data, found 2",
        ),
        (
            message(out.chunk("a", &[0; 4])),
            "tensor \"a\": expected 3 bytes of data, found 4",
        ),
    ];
    for (found, expected) in wrong {
        assert_eq!(found, expected);
    }
    out.chunk("a", &[1, 2]).unwrap();
    out.chunk("a", &[]).unwrap();
    out.chunk("a", &[3]).unwrap();
    out.tensor("b", &[4; 8]).unwrap();
    assert_eq!(
        message(out.tensor("b", &[4; 8])),
        "tensor data: expected the end, found tensor \"b\""
    );
    let gguf = Gguf::from_vec(out.finish().unwrap()).unwrap();
    assert_eq!(gguf.tensor_data_of("a").unwrap()[..], [1, 2, 3]);
    assert_eq!(gguf.tensor_data_of("b").unwrap()[..], [4; 8]);
    assert_eq!(gguf.file_len() % 32, 0, "the last tensor is padded, too");

    let mut out = w.clone().start(Vec::new()).unwrap();
    out.chunk("a", &[1]).unwrap();
    assert_eq!(
        message(out.finish()),
        "tensor \"a\": expected 3 bytes of data, found 1"
    );
    let out = w.start(Vec::new()).unwrap();
    assert_eq!(
        message(out.finish()),
        "tensor data: expected tensor \"a\", found the end"
    );
}

#[test]
fn an_alignment_set_after_the_tensors_holds_for_them() {
    let mut w = Writer::new();
    w.tensor("a", &[1], GgmlType::I8).unwrap();
    w.tensor("b", &[1], GgmlType::I8).unwrap();
    w.metadata("general.alignment", Value::U32(8192)).unwrap();
    let mut out = w.start(Vec::new()).unwrap();
    out.tensor("a", &[1]).unwrap();
    out.tensor("b", &[2]).unwrap();
    let gguf = Gguf::from_vec(out.finish().unwrap()).unwrap();
    assert_eq!(
        (gguf.alignment(), gguf.data_offset(), gguf.file_len()),
        (8192, 8192, 3 * 8192)
    );
    assert_eq!(gguf.tensor_data_of("b").unwrap()[..], [2]);
}
