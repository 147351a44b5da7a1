//! Any bytes parse or are refused; what parses can be read to its last byte and
//! written again, and means the same then.
#![no_main]

use libfuzzer_sys::fuzz_target;
use muser_gguf::{Error, Gguf, Writer};

fuzz_target!(|data: &[u8]| {
    if let Ok(gguf) = Gguf::from_vec(data.to_vec()) {
        let copy = rewritten(&gguf).expect("the reader accepts only what the writer writes");
        let copy = Gguf::from_vec(copy).expect("the reader accepts what the writer wrote");
        for (a, b) in gguf.metadata().iter().zip(copy.metadata().iter()) {
            assert_eq!((&a.key, &a.value), (&b.key, &b.value));
            let _ = (
                a.value.to_string(),
                gguf.metadata().f32s(&a.key),
                gguf.metadata().i64(&a.key),
            );
        }
        for (a, b) in gguf.tensors().iter().zip(copy.tensors()) {
            assert_eq!((&a.name, &a.dims, a.ty), (&b.name, &b.dims, b.ty));
            assert_eq!(*gguf.tensor_data(a), *copy.tensor_data(b));
        }
    }
});

fn rewritten(gguf: &Gguf) -> Result<Vec<u8>, Error> {
    let mut writer = Writer::new();
    for entry in gguf.metadata().iter() {
        writer.metadata(&entry.key, entry.value.clone())?;
    }
    for info in gguf.tensors() {
        writer.tensor(&info.name, &info.dims, info.ty)?;
    }
    let mut out = writer.start(Vec::new())?;
    for info in gguf.tensors() {
        out.tensor(&info.name, &gguf.tensor_data(info))?;
    }
    out.finish()
}
