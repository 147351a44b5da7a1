//! Reads memory in loads of 32 bytes (AVX2), to measure the bandwidth.

use super::{AHEAD, STEP};
use crate::simd::avx2 as v;
use muser_levels::level;
use std::arch::x86_64::*;

/// Reads a slice of bytes, in whole steps of 512, and combines them to one word by xor,
/// to measure the read bandwidth.
#[level(avx2)]
pub(crate) fn read(bytes: &[u8]) -> u64 {
    let mut sums = [_mm256_setzero_si256(); 4];
    for step in bytes.as_chunks::<STEP>().0 {
        v::prefetch(step, AHEAD, STEP);
        for i in 0..STEP / 32 {
            sums[i % 4] = _mm256_xor_si256(sums[i % 4], v::load256(step, 32 * i));
        }
    }
    let two = _mm256_xor_si256(sums[0], sums[1]);
    let all = _mm256_xor_si256(two, _mm256_xor_si256(sums[2], sums[3]));
    let half = _mm256_castsi256_si128(all);
    let half = _mm_xor_si128(half, _mm256_extracti128_si256::<1>(all));
    let (low, high) = (_mm_cvtsi128_si64(half), _mm_extract_epi64::<1>(half));
    (low ^ high).cast_unsigned()
}
