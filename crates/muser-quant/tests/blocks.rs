//! Tests that block dot products equal the sums over decoded weights, on random bytes.

use muser_quant::q4_k::BlockQ4K;
use muser_quant::q5_k::BlockQ5K;
use muser_quant::q6_k::BlockQ6K;
use muser_quant::q8::BlockQ8;
use muser_quant::q8_k::BlockQ8K;
use muser_quant::{Format as _, Group as _};
use proptest::prelude::*;

fn activations() -> impl Strategy<Value = BlockQ8K> {
    proptest::collection::vec(-127i8..=127, 256).prop_map(|v| {
        let q: [i8; 256] = v.try_into().expect("256 codes are made");
        let bsums = std::array::from_fn(|k| q[16 * k..][..16].iter().map(|&c| i16::from(c)).sum());
        BlockQ8K { d: 1.0, q, bsums }
    })
}

/// Computes Σ w · a in f64. With d and dmin powers of two, every term is an integer far
/// below 2^53, so the sum is exact.
fn exact(w: &[f32; 256], a: &BlockQ8K) -> f64 {
    w.iter()
        .zip(a.q)
        .map(|(&w, a)| f64::from(w) * f64::from(a))
        .sum()
}

const ONE: [u8; 2] = 0x3c00u16.to_le_bytes();
const TWO: [u8; 2] = 0x4000u16.to_le_bytes();

proptest! {
    #[test]
    fn q4_k(bytes in proptest::collection::vec(any::<u8>(), 144), a in activations()) {
        let mut b: [u8; 144] = bytes.try_into().expect("the strategy makes a block");
        b[..2].copy_from_slice(&TWO);
        b[2..4].copy_from_slice(&ONE);
        let block = BlockQ4K::from_bytes(&b);
        let (s, m) = block.dot(&a);
        prop_assert_eq!(exact(&block.decode(), &a), 2.0 * f64::from(s) - f64::from(m));
    }

    #[test]
    fn q5_k(bytes in proptest::collection::vec(any::<u8>(), 176), a in activations()) {
        let mut b: [u8; 176] = bytes.try_into().expect("the strategy makes a block");
        b[..2].copy_from_slice(&TWO);
        b[2..4].copy_from_slice(&ONE);
        let block = BlockQ5K::from_bytes(&b);
        let (s, m) = block.dot(&a);
        prop_assert_eq!(exact(&block.decode(), &a), 2.0 * f64::from(s) - f64::from(m));
    }

    #[test]
    fn q6_k(bytes in proptest::collection::vec(any::<u8>(), 210), a in activations()) {
        let mut b: [u8; 210] = bytes.try_into().expect("the strategy makes a block");
        b[208..].copy_from_slice(&TWO);
        let block = BlockQ6K::from_bytes(&b);
        prop_assert_eq!(exact(&block.decode(), &a), 2.0 * f64::from(block.dot(&a)));
    }

    /// The bounds that the documentation states hold for blocks of extreme values.
    #[test]
    fn sums_fit(fill in any::<u8>()) {
        let a = BlockQ8K { d: 1.0, q: [-127; 256], bsums: [-127 * 16; 16] };
        let (s, m) = BlockQ5K::from_bytes(&[fill; 176]).dot(&a);
        prop_assert!(s.abs() < 1 << 26 && m.abs() < 1 << 21);
        prop_assert!(BlockQ6K::from_bytes(&[fill; 210]).dot(&a).abs() < 1 << 27);
    }
}

/// Defines the tests of each format of groups: the dot product equals the sum over
/// decoded weights, every bit of the codes changes exactly one value, and sums stay
/// within their bound.
macro_rules! groups {
    (Groups { $($variant:ident $module:ident $block:ident $name:literal $ggml:literal $file:literal;)* }
        $($others:tt)*) => {
        $(mod $module {
            use super::*;
            use muser_quant::$module::{BYTES, $block as Block};

            proptest! {
                #[test]
                fn dot_equals_the_sum_over_decoded_weights(
                    bytes in proptest::collection::vec(any::<u8>(), BYTES),
                    q in proptest::collection::vec(-127i8..=127, 32),
                ) {
                    let mut b = bytes;
                    b[..2].copy_from_slice(&TWO);
                    let a = BlockQ8 { d: 1.0, q: q.try_into().expect("32 codes are made") };
                    let mut w = [0.0; 32];
                    Block::decode(&b, &mut w);
                    let sum: f64 = w.iter().zip(a.q).map(|(&w, a)| f64::from(w) * f64::from(a)).sum();
                    prop_assert_eq!(f64::from(Block::factor(&b)), 2.0);
                    prop_assert_eq!(sum, 2.0 * f64::from(Block::dot(&b, &a)));
                }
            }

            #[test]
            fn every_code_bit_is_used_once() {
                let decoded = |b: &[u8]| {
                    let mut w = [0.0; 32];
                    Block::decode(b, &mut w);
                    w
                };
                let mut zeros = [0u8; BYTES];
                zeros[..2].copy_from_slice(&ONE);
                let codes = Block::LAYOUT.codes;
                for bit in codes.start * 8..codes.end * 8 {
                    let mut b = zeros;
                    b[bit / 8] ^= 1 << (bit % 8);
                    let (was, is) = (decoded(&zeros), decoded(&b));
                    let moved = was.iter().zip(&is).filter(|(a, b)| a != b).count();
                    assert_eq!(moved, 1, "bit {bit}");
                }
            }

            #[test]
            fn sums_fit() {
                let a = BlockQ8 { d: 1.0, q: [-127; 32] };
                for fill in [0, 0xff, 0x80, 0x7f] {
                    assert!(Block::dot(&[fill; BYTES], &a).abs() < 1 << 20);
                }
            }
        })*
    };
}
muser_quant::formats!(groups);

/// Every bit of the codes belongs to exactly one code.
#[test]
fn every_code_bit_is_used_once() {
    for bit in 0..128 * 8 {
        let mut b = [0u8; 144];
        b[16 + bit / 8] = 1 << (bit % 8);
        let block = BlockQ4K::from_bytes(&b);
        let hit: Vec<u8> = (0..256)
            .map(|i| block.code(i))
            .filter(|&c| c != 0)
            .collect();
        assert_eq!(hit.len(), 1);
        assert_eq!(hit[0].count_ones(), 1);
    }
    for bit in 0..160 * 8 {
        let mut b = [0u8; 176];
        b[16 + bit / 8] = 1 << (bit % 8);
        let block = BlockQ5K::from_bytes(&b);
        let hit: Vec<u8> = (0..256)
            .map(|i| block.code(i))
            .filter(|&c| c != 0)
            .collect();
        assert_eq!((hit.len(), hit[0].count_ones()), (1, 1));
    }
    for bit in 0..192 * 8 {
        let mut b = [0u8; 210];
        b[bit / 8] = 1 << (bit % 8);
        let block = BlockQ6K::from_bytes(&b);
        let hit: Vec<u8> = (0..256)
            .map(|i| block.code(i))
            .filter(|&c| c != 0)
            .collect();
        assert_eq!((hit.len(), hit[0].count_ones()), (1, 1));
    }
}
