//! Q4_K rows with AVX2.
//!
//! For a superblock of a row: 8 `vpmaddubsw` (pairs of products, at most
//! 2 · 15 · 127 = 3,810 in magnitude: no saturation), 8 `vpmaddwd` with the
//! sub-block's scale, 8 adds.

use crate::kernels::matvec::with_minima;
use muser_quant::q4_k::BYTES;
use std::arch::x86_64::*;

with_minima!(avx2, "avx2,fma,f16c");

/// The 256 codes in natural order.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) fn codes(w: &[u8; BYTES]) -> [__m256i; 8] {
    let nibble = _mm256_set1_epi8(15);
    let mut out = [_mm256_setzero_si256(); 8];
    for g in 0..4 {
        let packed = v::load256(w, 16 + 32 * g);
        out[2 * g] = _mm256_and_si256(packed, nibble);
        out[2 * g + 1] = _mm256_and_si256(_mm256_srli_epi16::<4>(packed), nibble);
    }
    out
}
