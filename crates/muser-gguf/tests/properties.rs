//! What holds for every file: it is read back as written, and no damage to it
//! is more than an error.

#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]

mod common;

use common::{sample, walk};
use muser_gguf::{Array, Entry, GgmlType, Gguf, Strings, TensorInfo, Value, Writer};
use proptest::collection::{btree_map, vec};
use proptest::prelude::*;

fn plain() -> impl Strategy<Value = Value> {
    prop_oneof![
        any::<u8>().prop_map(Value::U8),
        any::<i8>().prop_map(Value::I8),
        any::<u16>().prop_map(Value::U16),
        any::<i16>().prop_map(Value::I16),
        any::<u32>().prop_map(Value::U32),
        any::<i32>().prop_map(Value::I32),
        any::<u32>().prop_map(|bits| Value::F32(f32::from_bits(bits))),
        any::<bool>().prop_map(Value::Bool),
        ".{0,12}".prop_map(Value::String),
        any::<u64>().prop_map(Value::U64),
        any::<i64>().prop_map(Value::I64),
        any::<u64>().prop_map(|bits| Value::F64(f64::from_bits(bits))),
    ]
}

fn flat_array() -> impl Strategy<Value = Array> {
    let array = |value: Value| value.as_array().cloned().unwrap();
    prop_oneof![
        vec(any::<u8>(), 0..9).prop_map(move |v| array(v.into())),
        vec(any::<i16>(), 0..9).prop_map(move |v| array(v.into())),
        vec(any::<f32>(), 0..9).prop_map(move |v| array(v.into())),
        vec(any::<u64>(), 0..9).prop_map(move |v| array(v.into())),
        vec(any::<bool>(), 0..9).prop_map(move |v| array(v.into())),
        vec(".{0,5}", 0..9).prop_map(|v| Array::of_strings(v.iter().collect::<Strings>())),
    ]
}

fn value() -> impl Strategy<Value = Value> {
    let array = flat_array().prop_recursive(3, 12, 3, |inner| {
        vec(inner, 0..4).prop_map(Array::of_arrays)
    });
    prop_oneof![2 => plain(), 1 => array.prop_map(Value::Array)]
}

/// Dimensions and type: rows of one or two blocks.
fn shape() -> impl Strategy<Value = (Vec<u64>, GgmlType)> {
    let ty = proptest::sample::select(GgmlType::ALL);
    (ty, 1u64..3, vec(1u64..4, 0..4)).prop_map(|(ty, blocks, further)| {
        let mut dims = vec![blocks * ty.block_elements()];
        dims.extend(further);
        (dims, ty)
    })
}

/// Names in no particular order, for the map's order would hide a sort.
fn shuffled<T: std::fmt::Debug + Clone + 'static>(
    names: &'static str,
    item: impl Strategy<Value = T> + 'static,
) -> impl Strategy<Value = Vec<(String, T)>> {
    btree_map(names, item, 0..7)
        .prop_map(|map| map.into_iter().collect::<Vec<_>>())
        .prop_shuffle()
}

/// The data of tensor `i`: its number, so that a mix-up shows.
fn data(i: usize, info: &TensorInfo) -> Vec<u8> {
    vec![i as u8 + 1; info.byte_len as usize]
}

/// Writes what `gguf` holds.
fn copy(gguf: &Gguf) -> Vec<u8> {
    let mut writer = Writer::new();
    for Entry { key, value, .. } in gguf.metadata().iter() {
        writer.metadata(key, value.clone()).unwrap();
    }
    for info in gguf.tensors() {
        writer.tensor(&info.name, &info.dims, info.ty).unwrap();
    }
    let mut out = writer.start(Vec::new()).unwrap();
    for info in gguf.tensors() {
        out.tensor(&info.name, &gguf.tensor_data(info)).unwrap();
    }
    out.finish().unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn what_is_written_is_read(
        keys in shuffled("[a-z.ü]{1,20}", value()),
        tensors in shuffled("[a-z0-9.]{1,20}", shape()),
        alignment in proptest::option::of(3u32..10),
    ) {
        let mut writer = Writer::new();
        for (key, value) in &keys {
            writer.metadata(key, value.clone()).unwrap();
        }
        if let Some(log) = alignment {
            writer.metadata("general.alignment", 1u32 << log).unwrap();
        }
        for (name, (dims, ty)) in &tensors {
            writer.tensor(name, dims, *ty).unwrap();
        }
        let mut out = writer.start(Vec::new()).unwrap();
        for (i, (name, (dims, ty))) in tensors.iter().enumerate() {
            let bytes = dims.iter().product::<u64>() / ty.block_elements() * ty.block_bytes();
            out.tensor(name, &vec![i as u8 + 1; bytes as usize]).unwrap();
        }
        let bytes = out.finish().unwrap();

        let gguf = Gguf::from_vec(bytes.clone()).unwrap();
        let alignment = 1 << alignment.unwrap_or(5);
        prop_assert_eq!(gguf.alignment(), alignment);
        for ((key, value), entry) in keys.iter().zip(gguf.metadata().iter()) {
            prop_assert_eq!((key, value), (&entry.key, &entry.value));
            prop_assert_eq!(gguf.metadata().get(key), Some(value));
            let at = entry.offset as usize + 8;
            prop_assert_eq!(&bytes[at..at + key.len()], key.as_bytes());
        }
        prop_assert_eq!(gguf.tensors().len(), tensors.len());
        for (i, ((name, (dims, ty)), info)) in tensors.iter().zip(gguf.tensors()).enumerate() {
            prop_assert_eq!((name, dims, ty), (&info.name, &info.dims, &info.ty));
            prop_assert_eq!(info.offset % u64::from(alignment), 0);
            prop_assert_eq!(&*gguf.tensor_data(info), &data(i, info)[..]);
        }
        prop_assert_eq!(copy(&gguf), bytes);
    }

    /// Bytes overwritten, numbers replaced, parts cut out and repeated.
    #[test]
    fn damage_is_an_error_at_most(
        damage in vec((any::<prop::sample::Index>(), any::<prop::sample::Index>(), 0..6u8, any::<u64>()), 1..6)
    ) {
        let mut bytes = sample();
        for (at, other, kind, number) in damage {
            if bytes.is_empty() {
                break;
            }
            let (at, other) = (at.index(bytes.len()), other.index(bytes.len()));
            let number = match kind {
                1 => [0, 1, 5, 1 << 31, 1 << 32, 1 << 62, u64::MAX, u64::MAX - 31][number as usize % 8],
                _ => number,
            };
            match kind {
                0 => bytes[at] = number as u8,
                1 | 2 => {
                    let end = (at + 8).min(bytes.len());
                    bytes[at..end].copy_from_slice(&number.to_le_bytes()[..end - at]);
                }
                3 => bytes.truncate(at),
                4 => drop(bytes.drain(at.min(other)..at.max(other))),
                _ => bytes.extend_from_within(at.min(other)..at.max(other)),
            }
        }
        if let Ok(gguf) = Gguf::from_vec(bytes) {
            walk(&gguf);
            // What was read can be written, and means the same.
            let again = Gguf::from_vec(copy(&gguf)).unwrap();
            let values = |g: &Gguf| g.metadata().iter().map(|e| (e.key.clone(), e.value.clone())).collect::<Vec<_>>();
            prop_assert_eq!(values(&gguf), values(&again));
            for (a, b) in gguf.tensors().iter().zip(again.tensors()) {
                prop_assert_eq!((&a.name, &a.dims, a.ty), (&b.name, &b.dims, b.ty));
                prop_assert_eq!(&*gguf.tensor_data(a), &*again.tensor_data(b));
            }
        }
    }
}
