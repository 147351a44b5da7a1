//! The budget of the release's geometry, from a header and a hole; and the
//! budget of a pass against what the pass reads.
#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]

mod common;

use muser_gguf::Gguf;
use muser_model::budget::{Budget, Class};
use muser_model::synth::{self, Geometry, Mix};
use muser_model::{Role, Want};
use muser_quant::DType;
use std::io::Write as _;

/// The 30B release as a sparse file: its header, and nothing where its weights
/// are.
fn release() -> (tempfile::NamedTempFile, Budget) {
    let geometry = Geometry::named("glimmer-30b").unwrap();
    let (header, length) = synth::header(&geometry, Mix::Q4KM).unwrap();
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(&header).unwrap();
    file.as_file().set_len(length).unwrap();
    let budget = Budget::of(&Gguf::open(file.path()).unwrap()).unwrap();
    (file, budget)
}

#[test]
fn a_header_is_the_beginning_of_the_file() {
    let geometry = Geometry::named("glimmer-tiny").unwrap();
    for mix in Mix::ALL {
        let (header, length) = synth::header(&geometry, mix).unwrap();
        let file = common::synthetic(&geometry, mix);
        assert!(file.starts_with(&header), "{mix:?}");
        assert_eq!(file.len() as u64, length, "{mix:?}");
    }
}

#[test]
fn the_release_counts_its_weights() {
    let (_file, b) = release();
    assert_eq!(b.parameters(), 27_854_794_240);
    assert_eq!(b.matmul_weights(), 26_508_558_336);
    let of = |role: Role| {
        let t = b.tensors().iter().find(|t| t.role == role).unwrap();
        t.rows * t.cols
    };
    let set = [Role::Q, Role::K, Role::V, Role::Gate].map(of);
    assert_eq!(set, [27_262_976, 1_703_936, 1_703_936, 27_262_976]);
    assert_eq!(b.class(Class::AttentionSet, Some(0)).weights, 57_933_824);
    let set_as = |dtype| b.class_as(Class::AttentionSet, 0, dtype).unwrap();
    assert_eq!(set_as(DType::Q4K), 32_587_776);
    assert_eq!(set_as(DType::Q5K), 39_829_504);
    assert_eq!(set_as(DType::Q6K), 47_523_840);
}

#[test]
fn the_release_has_its_shares_and_bytes() {
    let (_file, b) = release();
    let projections: Vec<u64> = Class::ALL
        .iter()
        .filter(|c| c.is_layer_projection())
        .map(|c| b.class(*c, Some(1)).weights)
        .collect();
    let all: u64 = projections.iter().sum();
    assert_eq!(all, 483_917_824);
    let percent = |weights: u64| (100 * weights + all / 2) / all;
    let ffn = projections[2..].iter().sum::<u64>();
    assert_eq!(projections[2..], [132_907_008; 3]);
    let shares = [projections[0], projections[1], ffn].map(percent);
    assert_eq!(shares, [12, 6, 82]);

    let token = b.token().bytes;
    assert_eq!(token / 10_000_000, 1_598, "15.99 GB, of {token}");
    let by = |parts: Vec<u64>| parts.iter().sum::<u64>();
    assert_eq!(
        by(Class::ALL.map(|c| b.class(c, None).bytes).to_vec()),
        token
    );
    assert_eq!(by(b.by_dtype().iter().map(|d| d.1.bytes).collect()), token);
    let own = [Class::EmbeddingRow, Class::Head].map(|c| b.class(c, None).bytes);
    let output_norm = 6656 * 4;
    let layers = (0..52).map(|i| b.layer(i).bytes);
    assert_eq!(layers.sum::<u64>() + own[0] + own[1] + output_norm, token);
    let six = (0..52).filter(|&i| b.dtypes(Class::FfnDown, Some(i)) == [DType::Q6K]);
    assert_eq!(six.count(), 26);
}

#[test]
fn the_release_has_its_kv_slot() {
    let (_file, b) = release();
    assert_eq!(b.position_bytes(), 52 * 1024);
    assert_eq!(b.kv_slot(131_072), 1_826_619_392);
    let slot = |c: u64| (39 * c.min(2048) + 13 * c) * 1024;
    for c in [0, 1, 2047, 2048, 2049, 32_768] {
        assert_eq!(b.kv_slot(c as usize), slot(c));
    }
    // Rings have room for a micro-batch of 256 and two partial chunks.
    assert_eq!(
        b.kv_held(131_072),
        (39 * (2048 + 256 + 64) + 13 * 131_072) * 1024
    );
}

#[test]
fn one_token_is_the_sum_of_its_parts() {
    let (_file, b) = release();
    for depth in [1, 100, 5000] {
        let pass = b.forward(depth - 1, 1, Want::Last);
        assert_eq!(pass.weight_bytes, b.token().bytes);
        assert_eq!(pass.kv_read, b.kv_slot(depth));
        assert_eq!(pass.kv_written, 52 * 1024);
        // One query head sees what its KV head has: 32 : 2, so 16 · 4 flops for
        // every 2 · 2 bytes.
        let attention = b.kv_slot(depth) * 16;
        assert_eq!(pass.flops, 2 * b.matmul_weights() + attention);
        assert_eq!(pass, b.forward(depth - 1, 1, Want::All));
        let seconds = pass.bytes() as f64 / 33.4e9;
        assert!((pass.roofline(33.4e9) * seconds - 1.0).abs() < 1e-12);
        assert!((pass.intensity() * pass.bytes() as f64 / pass.flops as f64 - 1.0).abs() < 1e-12);
    }
}

#[test]
fn wide_passes_read_weights_once_a_micro_batch() {
    let (_file, b) = release();
    let token = b.token().bytes;
    let row = b.class(Class::EmbeddingRow, None).bytes;
    let head = b.class(Class::Head, None).bytes + 6656 * 4;
    let one = |rows, want| b.forward(0, rows, want).weight_bytes;
    assert_eq!(one(64, Want::All), token + 63 * row);
    // The logits of 72 rows come in two slices, each of which reads the head;
    // up to seven rows go with the slice before them.
    assert_eq!(one(71, Want::All), token + 70 * row);
    assert_eq!(one(72, Want::All), token + 71 * row + head);
    assert_eq!(one(256, Want::Last), token + 255 * row);
    // Without logits the last layer stops at K and V, and there is no head.
    let kept = [Role::AttnNorm, Role::KNorm, Role::K, Role::V];
    let of_last = |t: &&muser_model::Tensor| t.layer == Some(51);
    let skipped: u64 = b
        .tensors()
        .iter()
        .filter(of_last)
        .filter(|t| !kept.contains(&t.role))
        .map(|t| t.bytes)
        .sum();
    assert_eq!(one(256, Want::Nothing), token + 255 * row - head - skipped);
    assert_eq!(
        one(512, Want::Last),
        one(256, Want::Nothing) + one(256, Want::Last)
    );
}

#[test]
fn a_file_that_does_not_load_has_no_budget() {
    let geometry = Geometry::named("glimmer-tiny").unwrap();
    let file = common::synthetic(&geometry, Mix::Q4KM);
    let at = file.windows(11).position(|w| w == b"blk.1.ffn_u").unwrap();
    let mut renamed = file.clone();
    renamed[at + 4] = b'7';
    let error = Budget::of(&Gguf::from_vec(renamed).unwrap()).unwrap_err();
    assert!(error.to_string().contains("blk.1.ffn_up.weight"), "{error}");
    assert!(Budget::of(&Gguf::from_vec(file).unwrap()).is_ok());
}
