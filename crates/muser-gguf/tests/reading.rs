//! Well-formed files: what is read, and what typed questions answer.

mod common;

use std::path::Path;

use common::{sample, walk};
use muser_gguf::{GgmlType, Gguf, Value, ValueType, Writer};

fn shared<T: Send + Sync + Clone + 'static>(value: &T) -> T {
    value.clone()
}

#[test]
fn every_value_type() {
    let gguf = Gguf::from_vec(sample()).unwrap();
    let m = gguf.metadata();
    assert_eq!((gguf.version(), gguf.alignment()), (3, 32));
    assert_eq!(m.get("u8"), Some(&Value::U8(200)));
    assert_eq!(m.get("i8"), Some(&Value::I8(-128)));
    assert_eq!(m.get("u16"), Some(&Value::U16(0x0201)));
    assert_eq!(m.get("i16"), Some(&Value::I16(i16::MIN)));
    assert_eq!(m.get("u32"), Some(&Value::U32(7)));
    assert_eq!(m.get("i32"), Some(&Value::I32(-1)));
    assert_eq!(m.get("f32"), Some(&Value::F32(0.5)));
    assert_eq!(m.get("bool"), Some(&Value::Bool(true)));
    assert_eq!(m.get("string"), Some(&Value::from("grüße")));
    assert_eq!(m.get("empty"), Some(&Value::from("")));
    assert_eq!(m.get("u64"), Some(&Value::U64(u64::MAX)));
    assert_eq!(m.get("i64"), Some(&Value::I64(-1)));
    assert_eq!(m.get("f64"), Some(&Value::F64(0.1)));
    assert_eq!(m.u32s("none").unwrap(), []);
    assert_eq!(m.bools("flags").unwrap(), [false, true]);
    let words: Vec<_> = m.strings("words").unwrap().iter().collect();
    assert_eq!(words, ["a", "", "ß"]);
    let nested = m.array("nested").unwrap().arrays().unwrap();
    assert_eq!(nested[0].bytes(), Some([9].as_slice()));
    assert_eq!(nested[1].elem(), ValueType::Array);
    assert_eq!(
        m.get("nested").unwrap().to_string(),
        r#"2 × array [1 × u8 [9], 1 × array [1 × string ["deep"]]]"#
    );
    let first = m.iter().next().unwrap();
    assert_eq!((first.key.as_str(), first.offset), ("u8", 24));
}

#[test]
fn version_2_is_laid_out_as_3() {
    let mut bytes = sample();
    bytes[4] = 2;
    let gguf = Gguf::from_vec(bytes).unwrap();
    assert_eq!(gguf.version(), 2);
    assert_eq!(gguf.metadata().len(), 17);
    assert_eq!(gguf.tensor_data_of("b").unwrap()[..], [2; 32]);
}

#[test]
fn typed_questions() {
    let gguf = Gguf::from_vec(sample()).unwrap();
    let m = gguf.metadata();
    // Any integer type whose value fits.
    assert_eq!(m.u32("u8").unwrap(), 200);
    assert_eq!(m.i32("i8").unwrap(), -128);
    assert_eq!(m.i64("i16").unwrap(), -32768);
    assert_eq!(m.u64("u64").unwrap(), u64::MAX);
    assert_eq!(m.f32("f32").unwrap(), 0.5);
    assert_eq!(m.string("string").unwrap(), "grüße");
    // Absent.
    assert_eq!(m.opt_u32("absent").unwrap(), None);
    assert_eq!(
        m.u32("absent").unwrap_err().to_string(),
        r#"metadata key "absent": expected u32, found no such key"#
    );
    // Ill-typed, in both forms.
    let ill_typed = [
        (m.opt_u32("i32").map(drop), "expected u32, found i32 -1"),
        (
            m.opt_i64("u64").map(drop),
            "expected i64, found u64 18446744073709551615",
        ),
        (m.u64("bool").map(drop), "expected u64, found bool true"),
        (m.bool("u8").map(drop), "expected bool, found u8 200"),
        (m.f32("u32").map(drop), "expected f32, found u32 7"),
        (m.f32("f64").map(drop), "expected f32, found f64 0.1"),
        (
            m.string("words").map(drop),
            "expected string, found array of 3 string",
        ),
        (
            m.strings("string").map(drop),
            "expected array of string, found string",
        ),
        (
            m.u32s("u32").map(drop),
            "expected array of u32, found u32 7",
        ),
        (
            m.opt_u32s("flags").map(drop),
            "expected array of u32, found array of 2 bool, element 0 of it bool false",
        ),
    ];
    for (answer, message) in ill_typed {
        let found = answer.unwrap_err().to_string();
        assert!(found.ends_with(message), "{found}");
        assert!(found.contains(" at byte "), "{found}");
    }
}

#[test]
fn views_outlive_the_file_and_stay_inside_it() {
    let gguf = Gguf::from_static(sample().leak()).unwrap();
    let info = gguf.tensor("a").unwrap().clone();
    assert_eq!((info.byte_len, info.n_elements, info.rows()), (6, 3, 1));
    let data = shared(&gguf).tensor_data(&info);
    assert_eq!(
        gguf.tensor_data_of("c").unwrap_err().to_string(),
        r#"tensor "c": found no such tensor"#
    );
    drop(gguf);
    assert_eq!(data[..], [1; 6]);
    assert_eq!(shared(&data).slice(4..6).unwrap()[..], [1; 2]);
    assert!(data.slice(4..7).is_none());
    assert!(data.slice(usize::MAX..usize::MAX).is_none());
}

#[test]
fn a_whole_vocabulary() {
    let words: Vec<String> = (0..202_048).map(|i| format!("wörd{i}")).collect();
    let mut writer = Writer::new();
    writer.metadata("tokens", words.clone()).unwrap();
    let bytes = writer.start(Vec::new()).unwrap().finish().unwrap();
    let gguf = Gguf::from_vec(bytes).unwrap();
    assert!(
        gguf.metadata()
            .strings("tokens")
            .unwrap()
            .iter()
            .eq(words.iter())
    );
}

#[test]
fn the_embedded_model() {
    let models = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models");
    let gguf = Gguf::open(models.join("glimmer-nano-2-q4_k_m.gguf")).unwrap();
    assert_eq!((gguf.metadata().len(), gguf.tensors().len()), (33, 115));
    let architecture = gguf.metadata().string("general.architecture").unwrap();
    assert_eq!(architecture, "muse-glimmer");
    let tokens = gguf.metadata().strings("tokenizer.ggml.tokens").unwrap();
    let embedding = gguf.tensor("token_embd.weight").unwrap();
    assert_eq!(embedding.rows(), tokens.len() as u64);
    assert!(gguf.tensors().iter().any(|info| info.ty == GgmlType::Q6_K));
    // Tensors and padding fill the file from the data offset on.
    let padded = |len: u64| len.next_multiple_of(gguf.alignment().into());
    let data: u64 = gguf.tensors().iter().map(|t| padded(t.byte_len)).sum();
    assert_eq!(gguf.data_offset() + data, padded(gguf.file_len()));
    walk(&gguf);
}
