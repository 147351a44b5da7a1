//! Files written by `synth` and `convert`, read back.

#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]

mod common;

use common::{bits, load, oracle, synthetic, tokens};
use muser_gguf::{GgmlType, Gguf, Writer};
use muser_model::convert::convert;
use muser_model::synth::{self, Geometry, Mix};
use muser_quant::DType;

fn tiny() -> Geometry {
    Geometry::named("glimmer-tiny").unwrap()
}

fn fnv(bytes: &[u8]) -> u64 {
    let step = |h: u64, &b: &u8| (h ^ u64::from(b)).wrapping_mul(0x0000_0100_0000_01b3);
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, step)
}

#[test]
fn every_mix_loads_and_gives_sane_logits() {
    for mix in Mix::ALL {
        let model = oracle(synthetic(&tiny(), mix));
        let dtypes = |role| {
            let of_role = model.tensors().iter().filter(move |t| t.role == role);
            of_role.map(|t| t.dtype).collect::<Vec<_>>()
        };
        match mix {
            Mix::Q4KM => {
                assert_eq!(dtypes(muser_model::Role::V), [DType::Q4K, DType::Q6K]);
                assert_eq!(dtypes(muser_model::Role::Head), [DType::Q5K]);
            }
            Mix::Uniform(dtype) => {
                for role in [muser_model::Role::Embedding, muser_model::Role::FfnDown] {
                    assert!(dtypes(role).iter().all(|&d| d == dtype));
                }
            }
        }
        let rows = bits(&model, &mut model.cache(64), &tokens(12, 256), &[5]);
        let values = rows.iter().flatten().map(|&b| f64::from(f32::from_bits(b)));
        let square: f64 = values.map(|v| v * v).sum::<f64>() / (12.0 * 256.0);
        assert!(
            (0.5..2.0).contains(&square.sqrt()),
            "{} {square}",
            mix.name()
        );
    }
}

#[test]
fn the_same_seed_gives_the_same_bytes_everywhere() {
    let file = synthetic(&tiny(), Mix::Q4KM);
    let mut other = Vec::new();
    let mut last = (0, 0);
    synth::write(&tiny(), Mix::Q4KM, 8, &mut other, &mut |done, total| {
        assert!(done > last.0 && done <= total);
        last = (done, total);
    })
    .unwrap();
    assert_eq!(last.0, last.1);
    assert_eq!(other.len(), file.len());
    assert_ne!(fnv(&other), fnv(&file), "another seed");
    // Recorded: a change here is a change of every synthetic file.
    assert_eq!(fnv(&file), FILE, "{:#x}", fnv(&file));
    let f16 = synthetic(&tiny(), Mix::Uniform(DType::F16));
    assert_eq!(fnv(&f16), F16_FILE, "{:#x}", fnv(&f16));
}

const FILE: u64 = 0x44dc_c60f_3b08_ee0e;
const F16_FILE: u64 = 0x9c94_6642_feda_1cb9;

#[test]
fn a_geometry_without_a_file_is_refused() {
    let refusal = |change: &dyn Fn(&mut Geometry)| {
        let mut geometry = tiny();
        change(&mut geometry);
        let mut sink = Vec::new();
        let error = synth::write(&geometry, Mix::Q4KM, 1, &mut sink, &mut |_, _| {});
        assert!(sink.is_empty());
        error.unwrap_err().to_string()
    };
    assert_eq!(
        refusal(&|g| g.period = 0),
        "geometry: period: expected 1 to 1073741824, found 0"
    );
    assert_eq!(
        refusal(&|g| g.ffn = 300),
        "geometry: row length: expected a multiple of 256 for Q4_K, found 300 in \
         blk.0.ffn_down.weight"
    );
    assert_eq!(
        refusal(&|g| g.kv_heads = 3),
        "geometry: kv_heads: expected a divisor of heads 4, found 3"
    );
    assert_eq!(
        refusal(&|g| g.layers = usize::MAX),
        "geometry: layers: expected 1 to 16384, found 18446744073709551615"
    );
    assert_eq!(Geometry::named("glimmer-1b"), None);
    assert!(Geometry::NAMES.iter().all(|n| Geometry::named(n).is_some()));
}

fn converted(gguf: &Gguf, to: DType) -> Gguf {
    let (mut bytes, mut last) = (Vec::new(), (0, 1));
    convert(gguf, to, &mut bytes, &mut |done, total| {
        last = (done, total)
    })
    .unwrap();
    assert_eq!(last.0, last.1);
    Gguf::from_vec(bytes).unwrap()
}

#[test]
fn a_converted_file_keeps_all_but_the_format() {
    // 2048 rows of 256 are two of the converter's chunks.
    let geometry = Geometry {
        vocab: 2048,
        ..tiny()
    };
    let gguf = Gguf::from_vec(synthetic(&geometry, Mix::Q4KM)).unwrap();
    for (to, ty, file_type) in [
        (DType::F32, GgmlType::F32, 0),
        (DType::F16, GgmlType::F16, 1),
        (DType::BF16, GgmlType::BF16, 32),
    ] {
        let out = converted(&gguf, to);
        assert_eq!(out.metadata().u32("general.file_type").unwrap(), file_type);
        let keys = |g: &Gguf| -> Vec<_> {
            let kept = g.metadata().iter().filter(|e| e.key != "general.file_type");
            kept.map(|e| (e.key.clone(), e.value.clone())).collect()
        };
        assert_eq!(keys(&out), keys(&gguf));
        assert_eq!(out.tensors().len(), gguf.tensors().len());
        for (a, b) in gguf.tensors().iter().zip(out.tensors()) {
            assert_eq!((&a.name, &a.dims), (&b.name, &b.dims));
            let vector = a.dims.len() == 1;
            assert_eq!(b.ty, if vector { GgmlType::F32 } else { ty });
            let (before, after) = (decode(&gguf, &a.name), decode(&out, &b.name));
            let close = |x: f32, y: f32| match to {
                _ if vector => x == y,
                DType::F32 => x == y,
                DType::F16 => (x - y).abs() <= x.abs() / 2048.0 + 3e-8,
                _ => (x - y).abs() <= x.abs() / 256.0,
            };
            assert!(
                before.iter().zip(&after).all(|(&x, &y)| close(x, y)),
                "{}",
                a.name
            );
        }
        let model = load(&out).unwrap();
        let rows = bits(&model, &mut model.cache(16), &tokens(4, 2048), &[1]);
        assert!(
            rows.iter()
                .flatten()
                .all(|&b| f32::from_bits(b).is_finite())
        );
    }
}

fn decode(gguf: &Gguf, name: &str) -> Vec<f32> {
    let info = gguf.tensor(name).unwrap();
    let mut out = vec![0.0; info.n_elements as usize];
    let dtype = DType::from_name(info.ty.name()).unwrap();
    dtype.decode_row(&gguf.tensor_data(info), &mut out).unwrap();
    out
}

/// A file of F32 whose embedding is longer than the converter's chunk and has
/// this value at row 9000, and whose head is of this format.
fn odd(value: f32, ty: GgmlType) -> Gguf {
    let geometry = Geometry {
        layers: 1,
        hidden: 32,
        heads: 1,
        kv_heads: 1,
        head_dim: 32,
        ffn: 32,
        vocab: 10_000,
        ..tiny()
    };
    let gguf = Gguf::from_vec(synthetic(&geometry, Mix::Uniform(DType::F32))).unwrap();
    let mut writer = Writer::new();
    for entry in gguf.metadata().iter() {
        writer
            .metadata(entry.key.as_str(), entry.value.clone())
            .unwrap();
    }
    let is_head = |name: &str| name == "output.weight";
    for t in gguf.tensors() {
        let ty = if is_head(&t.name) { ty } else { t.ty };
        writer.tensor(t.name.as_str(), &t.dims, ty).unwrap();
    }
    let mut data = writer.start(Vec::new()).unwrap();
    for t in gguf.tensors() {
        let mut bytes = gguf.tensor_data(t).to_vec();
        match t.name.as_str() {
            "token_embd.weight" => {
                let at = 4 * (9000 * 32 + 6);
                bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
            }
            name if is_head(name) => bytes = vec![0; ty.row_bytes(320_000).unwrap() as usize],
            _ => {}
        }
        data.tensor(&t.name, &bytes).unwrap();
    }
    Gguf::from_vec(data.finish().unwrap()).unwrap()
}

#[test]
fn what_a_format_cannot_hold_is_refused() {
    let refusal = |gguf: &Gguf, to| {
        let error = convert(gguf, to, &mut Vec::new(), &mut |_, _| {});
        error.unwrap_err().to_string()
    };
    let large = odd(65_520.0, GgmlType::F32);
    assert_eq!(
        refusal(&large, DType::F16),
        "tensor \"token_embd.weight\", row 9000: expected values that are finite as F16, found 65520"
    );
    assert_eq!(converted(&large, DType::BF16).tensors().len(), 17);
    assert_eq!(
        converted(&odd(65_519.0, GgmlType::F32), DType::F16)
            .tensors()
            .len(),
        17
    );
    assert_eq!(
        refusal(&odd(f32::NAN, GgmlType::F32), DType::F32),
        "tensor \"token_embd.weight\", row 9000: expected values that are finite as F32, found NaN"
    );
    assert_eq!(
        refusal(&odd(f32::MAX, GgmlType::F32), DType::BF16),
        format!(
            "tensor \"token_embd.weight\", row 9000: expected values that are finite as BF16, found {}",
            f32::MAX
        )
    );
    assert_eq!(
        refusal(&odd(1.0, GgmlType::I8), DType::F32),
        format!(
            "tensor \"output.weight\": expected {}, found I8",
            DType::NAMES
        )
    );
    assert_eq!(
        refusal(&large, DType::Q4K),
        "convert: expected F16, BF16 or F32, found Q4_K"
    );
}
