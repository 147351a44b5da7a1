//! Q5_K rows with AVX2.
//!
//! For a superblock of a row: 8 `vpmaddubsw` (pairs of products, at most
//! 2 · 31 · 127 = 7,874 in magnitude: no saturation), 8 `vpmaddwd` with the
//! sub-block's scale, 8 adds.

use crate::kernels::matvec::with_minima;
use muser_quant::q5_k::BYTES;
use std::arch::x86_64::*;

with_minima!(avx2, "avx2,fma,f16c");

/// The 256 codes in natural order.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) fn codes(w: &[u8; BYTES]) -> [__m256i; 8] {
    let nibble = _mm256_set1_epi8(15);
    let high = v::load256(w, 16);
    let bit4 = _mm256_set1_epi8(16);
    let mut out = [_mm256_setzero_si256(); 8];
    // Bit j of a byte belongs to sub-block j: brought to bit 4.
    let fifth = [
        _mm256_slli_epi16::<4>(high),
        _mm256_slli_epi16::<3>(high),
        _mm256_slli_epi16::<2>(high),
        _mm256_slli_epi16::<1>(high),
        high,
        _mm256_srli_epi16::<1>(high),
        _mm256_srli_epi16::<2>(high),
        _mm256_srli_epi16::<3>(high),
    ];
    for g in 0..4 {
        let packed = v::load256(w, 48 + 32 * g);
        let low = _mm256_and_si256(packed, nibble);
        let up = _mm256_and_si256(_mm256_srli_epi16::<4>(packed), nibble);
        out[2 * g] = _mm256_or_si256(low, _mm256_and_si256(fifth[2 * g], bit4));
        out[2 * g + 1] = _mm256_or_si256(up, _mm256_and_si256(fifth[2 * g + 1], bit4));
    }
    out
}
