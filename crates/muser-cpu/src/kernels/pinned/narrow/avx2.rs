//! Multiplies a weight row by a narrow batch (one to seven columns) in the pinned lane
//! (llama.cpp's arithmetic) with AVX2. `vpmaddubsw` and `vpmaddwd` leave the sum of
//! four products (a quad) in element l, where the contract's partial sum l has it.
//! Q6_K's `vpmaddwd` of scales and sums leaves the bias of the codes 32 l .. 32 l + 32
//! in element l, as the definition of the bits demands.

use super::{AHEAD, minima};
use crate::kernels::codes::avx2::of_superblock;
use crate::kernels::matvec::superblocks::avx2::dot_signed;
use crate::kernels::quantize::Block;
use crate::simd::avx2 as v;
use muser_levels::level;
use muser_quant::Superblock;
use std::arch::x86_64::*;

/// Computes the dot products of one row of K-quant weights (superblocks of 256) with N
/// columns of activations.
#[inline]
#[level(avx2)]
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
#[level(avx2)]
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
        let (scales, mins) = v::scales_mins(bytes);
        let (d, dmin) = (v::factor_at(bytes, 0), v::factor_at(bytes, 2));
        for n in 0..N {
            let x = &x[n][b];
            let sum = v::dot_scaled(&codes, scales, &x.q);
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
#[level(avx2)]
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
        let d = v::factor_at(bytes, B - 2);
        for n in 0..N {
            let x = &x[n][b];
            let bias = _mm256_madd_epi16(scales, v::load_sums16(&x.sums16));
            let dot = dot_signed(&codes, scales, &x.q);
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
