//! Reads memory in loads of 64 bytes (AVX-512), to measure the bandwidth.

use super::{AHEAD, STEP};
use crate::simd::avx2::prefetch;
use crate::simd::avx512 as v;
use muser_levels::level;
use std::arch::x86_64::*;

/// Reads a slice of bytes, in whole steps of 512, and combines them to one word by xor,
/// to measure the read bandwidth.
#[level(avx512)]
pub(crate) fn read(bytes: &[u8]) -> u64 {
    let mut sums = [_mm512_setzero_si512(); 4];
    for step in bytes.as_chunks::<STEP>().0 {
        prefetch(step, AHEAD, STEP);
        for i in 0..STEP / 64 {
            sums[i % 4] = _mm512_xor_si512(sums[i % 4], v::load512(step, 64 * i));
        }
    }
    let two = _mm512_xor_si512(sums[0], sums[1]);
    let all = _mm512_xor_si512(two, _mm512_xor_si512(sums[2], sums[3]));
    let half = _mm512_castsi512_si256(all);
    let half = _mm256_xor_si256(half, _mm512_extracti64x4_epi64::<1>(all));
    let quarter = _mm256_castsi256_si128(half);
    let quarter = _mm_xor_si128(quarter, _mm256_extracti128_si256::<1>(half));
    let (low, high) = (_mm_cvtsi128_si64(quarter), _mm_extract_epi64::<1>(quarter));
    (low ^ high).cast_unsigned()
}
