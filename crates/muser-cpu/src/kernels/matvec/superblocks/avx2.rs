//! Multiplies rows of weights in superblocks of 256 by one vector with AVX2, one row at a
//! time.
//!
//! A superblock of a row takes 8 `vpmaddubsw` of the unsigned codes (pairs of products,
//! at most 2 · 63 · 127 = 16,002 in magnitude, so nothing saturates), 8 `vpmaddwd` with
//! the scales, and 8 additions. Q6_K's codes have a bias of 32, which one `vpmaddwd` of
//! scales and sums subtracts.

use super::{AHEAD, SIDE};
use crate::kernels::codes::avx2::of_superblock;
use crate::kernels::quantize::Block;
use crate::rows::Tile;
use crate::simd::avx2::{self as v, factors4, load_sums8, load_sums16, load128, prefetch};
use muser_levels::level;
use muser_quant::Superblock;
use std::arch::x86_64::*;

/// Computes one tile of a matrix product: rows `w` of `blocks` superblocks of 256
/// weights, times `columns` vectors of Q8_K activations.
#[level(avx2)]
pub(crate) fn matvec<F: Superblock, const B: usize>(
    w: &[u8],
    x: &[Block],
    blocks: usize,
    columns: usize,
    tile: &mut Tile<'_>,
) {
    for (c, x) in x.chunks_exact(blocks).take(columns).enumerate() {
        for r in 0..tile.rows() {
            let w = &w[r * blocks * B..];
            let value = match F::SIGNED {
                true => signed_row::<F, B>(w, x),
                false => row_with_minima::<F, B>(w, x),
            };
            tile.set(c, r, &[value]);
        }
    }
}

/// Computes the dot product of one row of Q4_K or Q5_K weights with one column of
/// activations.
#[inline]
#[level(avx2)]
fn row_with_minima<F: Superblock, const B: usize>(w: &[u8], x: &[Block]) -> f32 {
    let w = &w.as_chunks::<B>().0[..x.len()];
    let mut chains = v::zero4();
    for (w, x) in w.chunks(SIDE).zip(x.chunks(SIDE)) {
        prefetch(w.as_flattened(), AHEAD, SIDE * B);
        let mut sums = [_mm256_setzero_si256(); SIDE];
        let mut mins = [_mm_setzero_si128(); SIDE];
        for (i, (w, x)) in w.iter().zip(x).enumerate() {
            let (scales, minima) = v::scales_mins(w);
            sums[i] = v::dot_scaled(&of_superblock::<F, B>(w), scales, &x.q);
            mins[i] = _mm_madd_epi16(minima, load_sums8(&x.sums32));
        }
        let sums = (v::sum4(sums), v::sum4_narrow(mins));
        let four = v::four(w);
        let factors = (factors4(four, 0), factors4(four, 2));
        chains = v::links(sums, factors, v::scales_of(x), x.len(), chains);
    }
    v::minus_second(chains)
}

/// Computes the dot product of one row of Q6_K weights with one column of activations.
#[inline]
#[level(avx2)]
fn signed_row<F: Superblock, const B: usize>(w: &[u8], x: &[Block]) -> f32 {
    let w = &w.as_chunks::<B>().0[..x.len()];
    let mut chains = v::zero4();
    for (w, x) in w.chunks(SIDE).zip(x.chunks(SIDE)) {
        prefetch(w.as_flattened(), AHEAD, SIDE * B);
        let mut sums = [_mm256_setzero_si256(); SIDE];
        for (i, (w, x)) in w.iter().zip(x).enumerate() {
            let scales = _mm256_cvtepi8_epi16(load128(w, B - 18));
            let bias = _mm256_madd_epi16(scales, load_sums16(&x.sums16));
            let dot = dot_signed(&of_superblock::<F, B>(w), scales, &x.q);
            sums[i] = _mm256_sub_epi32(dot, _mm256_slli_epi32::<5>(bias));
        }
        let none = (_mm_setzero_si128(), v::zero4());
        let (sums, factors) = (v::sum4(sums), factors4(v::four(w), B - 2));
        chains = v::links(
            (sums, none.0),
            (factors, none.1),
            v::scales_of(x),
            x.len(),
            chains,
        );
    }
    v::first(chains)
}

/// Computes Σ scale · code · activation of a Q6_K superblock (256 weights), in 8 partial
/// sums. The bias (zero point) of the codes is not subtracted.
#[inline]
#[level(avx2)]
pub(crate) fn dot_signed(codes: &[__m256i; 8], scales: __m256i, q: &[i8; 256]) -> __m256i {
    let low = _mm256_permute2x128_si256::<0x00>(scales, scales);
    let high = _mm256_permute2x128_si256::<0x11>(scales, scales);
    let mut sum = _mm256_setzero_si256();
    for (g, &codes) in codes.iter().enumerate() {
        // Vector g has sub-block 2 g in its lower half and 2 g + 1 in its upper half.
        let k = (2 * g % 8) as i16;
        let (a, b) = (i16::from_le_bytes([2 * k as u8, 2 * k as u8 + 1]), 0x0202);
        let pick = _mm256_set_m128i(_mm_set1_epi16(a + b), _mm_set1_epi16(a));
        let scale = _mm256_shuffle_epi8(if g < 4 { low } else { high }, pick);
        let pairs = _mm256_maddubs_epi16(codes, v::load_codes(q, 32 * g));
        sum = _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, scale));
    }
    sum
}
