//! Multiplies a weight row by a narrow batch (one to seven columns) in the pinned lane
//! (llama.cpp's arithmetic) with AVX-512. 4 `vpdpbusd` compute the sums of four
//! products (quads). The sums of two vectors are combined in the 16-bit words of one,
//! so that 2 `vpmaddwd` scale and add them. One fold by halves leaves the contract's
//! eight partial sums. A quad is at most 4 · 63 · 127 = 32,004, which fits in i16.

use super::{AHEAD, minima};
use crate::kernels::codes::avx512::of_superblock;
use crate::kernels::quantize::Block;
use crate::simd::avx2 as v;
use crate::simd::avx512::{dot_partials, scales_for_partials};
use muser_levels::level;
use muser_quant::Superblock;
use std::arch::x86_64::*;

/// Computes the dot products of one row of K-quant weights (superblocks of 256) with N
/// columns of activations.
#[inline]
#[level(avx512)]
pub(crate) fn row<F: Superblock, const B: usize, const N: usize, const MINIMA: u8>(
    w: &[u8],
    x: [&[Block]; N],
) -> [f32; N] {
    match F::SIGNED {
        true => signed_row::<F, B, N>(w, x),
        false => row_with_minima::<F, B, N, MINIMA>(w, x),
    }
}

/// Computes the dot products of one row of Q4_K or Q5_K weights with N columns of
/// activations.
#[inline]
#[level(avx512)]
fn row_with_minima<F: Superblock, const B: usize, const N: usize, const MINIMA: u8>(
    w: &[u8],
    x: [&[Block]; N],
) -> [f32; N] {
    let mut acc = [v::splat(0.0); N];
    let mut low = [v::zero4(); N];
    let blocks = x[0].len();
    for (b, bytes) in w.as_chunks::<B>().0.iter().take(blocks).enumerate() {
        v::prefetch(w, b * B + AHEAD, B);
        let codes = of_superblock::<F, B>(bytes);
        let header = v::scales_mins_bytes(bytes);
        let scales = scales_for_partials(header);
        let mins = _mm_cvtepu8_epi16(_mm_srli_si128::<8>(header));
        let (d, dmin) = (v::factor_at(bytes, 0), v::factor_at(bytes, 2));
        for n in 0..N {
            let x = &x[n][b];
            let sum = dot_partials(codes, scales, &x.q);
            let factor = v::splat(x.d * d);
            acc[n] = v::fma(factor, _mm256_cvtepi32_ps(sum), acc[n]);
            let min = _mm_madd_epi16(mins, v::load_sums8(&x.sums32));
            let min = match MINIMA {
                minima::FOUR_CHAINS => min,
                _ => v::sum_all4(min),
            };
            let factor = _mm_set1_ps(-x.d * dmin);
            low[n] = _mm_fmadd_ps(factor, _mm_cvtepi32_ps(min), low[n]);
        }
    }
    let mut sums = [0.0; N];
    for n in 0..N {
        let low = match MINIMA {
            minima::FOUR_CHAINS => v::fold4(low[n]),
            _ => _mm_cvtss_f32(low[n]),
        };
        sums[n] = v::halve(acc[n]) + low;
    }
    sums
}

/// Computes the dot products of one row of Q6_K weights with N columns of activations.
#[inline]
#[level(avx512)]
fn signed_row<F: Superblock, const B: usize, const N: usize>(
    w: &[u8],
    x: [&[Block]; N],
) -> [f32; N] {
    let mut acc = [v::splat(0.0); N];
    let blocks = x[0].len();
    for (b, bytes) in w.as_chunks::<B>().0.iter().take(blocks).enumerate() {
        v::prefetch(w, b * B + AHEAD, B);
        let codes = of_superblock::<F, B>(bytes);
        let scales = _mm256_cvtepi8_epi16(v::load128(bytes, B - 18));
        let for_partials = signed_scales_for_partials(scales);
        let d = v::factor_at(bytes, B - 2);
        for n in 0..N {
            let x = &x[n][b];
            let bias = _mm256_madd_epi16(scales, v::load_sums16(&x.sums16));
            let dot = dot_partials(codes, for_partials, &x.q);
            let sum = _mm256_sub_epi32(dot, _mm256_slli_epi32::<5>(bias));
            acc[n] = v::fma(v::splat(x.d * d), _mm256_cvtepi32_ps(sum), acc[n]);
        }
    }
    let mut sums = [0.0; N];
    for (sum, acc) in sums.iter_mut().zip(acc) {
        *sum = v::halve(acc);
    }
    sums
}

/// Arranges the scales of a Q6_K superblock (256 weights) as [`dot_partials`] needs them.
/// 128-bit quarter k of the first vector has pairs of the scales of sub-blocks k and 4 +
/// k, that of the second pairs of those of 8 + k and 12 + k.
#[inline]
#[level(avx512)]
fn signed_scales_for_partials(scales: __m256i) -> [__m512i; 2] {
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
