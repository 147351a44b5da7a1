//! Q6_K rows by lanes with AVX-512: 4 `vpdpbusd` leave the sums of quads, two
//! groups of them share dwords so that 2 `vpmaddwd` scale and add them, and one
//! fold by halves makes the contract's eight lanes. A quad is at most 4 · 63 ·
//! 127 = 32,004: it fits a word.

use crate::kernels::lanes::AHEAD;
use crate::kernels::matvec::q6_k::avx512::codes;
use crate::kernels::quantize::Block;
use crate::rows::Tile;
use crate::simd::avx2 as v;
use crate::simd::avx512::dot_lanes;
use muser_quant::q6_k::BYTES;
use std::arch::x86_64::*;

crate::kernels::lanes::driver!("avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c");

/// One row with N columns.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
fn row<const N: usize>(w: &[u8], x: [&[Block]; N]) -> [f32; N] {
    let mut acc = [v::splat(0.0); N];
    let blocks = x[0].len();
    for (b, bytes) in w.as_chunks::<BYTES>().0.iter().take(blocks).enumerate() {
        v::prefetch(w, b * BYTES + AHEAD, BYTES);
        let codes = codes(bytes);
        let scales = _mm256_cvtepi8_epi16(v::load128(bytes, 192));
        let for_lanes = scales_for_lanes(scales);
        let d = v::factor_at(bytes, 208);
        for n in 0..N {
            let x = &x[n][b];
            let bias = _mm256_madd_epi16(scales, v::load_sums16(&x.sums16));
            let dot = dot_lanes(codes, for_lanes, &x.q);
            let sum = _mm256_sub_epi32(dot, _mm256_slli_epi32::<5>(bias));
            acc[n] = v::fma(v::splat(x.d * d), _mm256_cvtepi32_ps(sum), acc[n]);
        }
    }
    let mut sums = [0.0; N];
    for (sum, acc) in sums.iter_mut().zip(acc) {
        *sum = v::halve_lanes(acc);
    }
    sums
}

/// The scales where [`dot_lanes`] wants them: 128-bit lane k of the first holds
/// the pairs of sub-blocks k and 4 + k, of the second 8 more.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
fn scales_for_lanes(scales: __m256i) -> [__m512i; 2] {
    let scales = _mm512_castsi256_si512(scales);
    let first = _mm512_set_epi16(
        7, 3, 7, 3, 7, 3, 7, 3, 6, 2, 6, 2, 6, 2, 6, 2, 5, 1, 5, 1, 5, 1, 5, 1, 4, 0, 4, 0, 4, 0,
        4, 0,
    );
    let second = _mm512_add_epi16(first, _mm512_set1_epi16(8));
    [
        _mm512_permutexvar_epi16(first, scales),
        _mm512_permutexvar_epi16(second, scales),
    ]
}
