//! Measures the peak int8 rate with `vpmaddubsw`, `vpmaddwd` and `vpaddd`, as the avx2
//! matvec kernels use them: three instructions for 32 multiply-adds.

use muser_levels::level;
use std::arch::x86_64::*;
use std::hint::black_box;

/// The number of independent chains of multiply-adds. A step of a chain has a latency of
/// at most eleven cycles and two multiplications, of which two start in a cycle; twelve
/// chains hide the latency.
const CHAINS: usize = 12;

/// Runs `rounds` rounds of int8 multiply-adds in registers and returns the number of
/// multiply-adds.
#[level(avx2)]
pub(crate) fn int8_peak(rounds: u32) -> u64 {
    let w = _mm256_set1_epi8(black_box(1));
    let ones = _mm256_set1_epi16(black_box(1));
    let mut chains: [__m256i; CHAINS] =
        std::array::from_fn(|i| _mm256_set1_epi32(black_box(i as i32)));
    for _ in 0..rounds {
        for chain in &mut chains {
            let pairs = _mm256_maddubs_epi16(*chain, w);
            *chain = _mm256_add_epi32(*chain, _mm256_madd_epi16(pairs, ones));
        }
    }
    black_box(chains);
    u64::from(rounds) * (CHAINS * 32) as u64
}
