//! Multiplies rows of weights in superblocks of 256 by one vector with AVX-512 and VNNI,
//! four rows side by side.
//!
//! A superblock of a row takes 4 `vpdpbusd` (quads of products), 2 packs to i16 and 2
//! `vpdpwssd` with the scales: 8 instructions for 256 multiply-adds. Applying the scales in
//! i32 would take 8 `vpmulld` and 8 additions instead. Scales and minima of four rows are
//! unpacked in one register. Q6_K's codes have a bias of 32, which one `vpmaddwd` of
//! scales and sums subtracts.

use super::SIDE;
use crate::kernels::codes::avx512::of_superblock;
use crate::kernels::quantize::Block;
use crate::rows::Tile;
use crate::simd::avx2::{
    chain4, difference, factors4, load_sums8, load_sums16, load128, prefetch, to_array4, zero4,
};
use crate::simd::avx512 as v;
use muser_levels::level;
use muser_quant::Superblock;
use std::arch::x86_64::*;

/// Computes one tile of a matrix product: rows `w` of `blocks` superblocks of 256
/// weights, times `columns` vectors of Q8_K activations.
#[level(avx512)]
pub(crate) fn matvec<F: Superblock, const B: usize>(
    w: &[u8],
    x: &[Block],
    blocks: usize,
    columns: usize,
    tile: &mut Tile<'_>,
) {
    let row_bytes = blocks * B;
    for (c, x) in x.chunks_exact(blocks).take(columns).enumerate() {
        for r in (0..tile.rows()).step_by(SIDE) {
            let rows: [&[[u8; B]]; SIDE] = std::array::from_fn(|i| {
                let row = (r + i).min(tile.rows() - 1);
                w[row * row_bytes..][..row_bytes].as_chunks().0
            });
            let ahead = &w[r * row_bytes..];
            let values = match F::SIGNED {
                true => signed_quad::<F, B>(rows, x, ahead),
                false => quad_with_minima::<F, B>(rows, x, ahead),
            };
            tile.set(c, r, &values);
        }
    }
}

/// Computes the dot products of four rows of Q4_K or Q5_K weights with one column of
/// activations.
#[inline]
#[level(avx512)]
fn quad_with_minima<F: Superblock, const B: usize>(
    rows: [&[[u8; B]]; SIDE],
    x: &[Block],
    ahead: &[u8],
) -> [f32; SIDE] {
    let blocks = rows[0].len();
    let (mut acc, mut accm) = (zero4(), zero4());
    for (b, x) in x.iter().enumerate().take(blocks) {
        prefetch(ahead, (blocks + b) * SIDE * B, SIDE * B);
        let w: [&[u8; B]; SIDE] = std::array::from_fn(|r| &rows[r][b]);
        let header = v::headers4([w[0], w[1], w[2], w[3]]);
        let factors = v::factors4(header);
        let scales_mins = v::scales_mins4(header);
        let mins = _mm512_unpackhi_epi8(scales_mins, _mm512_setzero_si512());
        let mut sums = [_mm512_setzero_si512(); SIDE];
        for r in 0..SIDE {
            let scales = v::scales_for_packs(scales_mins, r);
            sums[r] = v::dot_scaled(of_superblock::<F, B>(w[r]), scales, &x.q);
        }
        let sums32 = _mm512_broadcast_i32x4(load_sums8(&x.sums32));
        let min = v::sum_quarters(_mm512_madd_epi16(mins, sums32));
        acc = chain4(v::sum4(sums), factors.0, x.d, acc);
        accm = chain4(min, factors.1, x.d, accm);
    }
    difference(acc, accm)
}

/// Computes the dot products of four rows of Q6_K weights with one column of activations.
#[inline]
#[level(avx512)]
fn signed_quad<F: Superblock, const B: usize>(
    rows: [&[[u8; B]]; SIDE],
    x: &[Block],
    ahead: &[u8],
) -> [f32; SIDE] {
    let blocks = rows[0].len();
    let mut acc = zero4();
    for (b, x) in x.iter().enumerate().take(blocks) {
        prefetch(ahead, (blocks + b) * SIDE * B, SIDE * B);
        let w: [&[u8; B]; SIDE] = std::array::from_fn(|r| &rows[r][b]);
        let d = factors4([w[0], w[1], w[2], w[3]], B - 2);
        let mut sums = [_mm512_setzero_si512(); SIDE];
        for r in 0..SIDE {
            let scales = _mm256_cvtepi8_epi16(load128(w[r], B - 18));
            let dot = v::dot_scaled(
                of_superblock::<F, B>(w[r]),
                signed_scales_for_packs(scales),
                &x.q,
            );
            let bias = _mm256_madd_epi16(scales, load_sums16(&x.sums16));
            let bias = _mm512_zextsi256_si512(_mm256_slli_epi32::<5>(bias));
            sums[r] = _mm512_sub_epi32(dot, bias);
        }
        acc = chain4(v::sum4(sums), d, x.d, acc);
    }
    to_array4(acc)
}

/// Arranges the scales of a Q6_K superblock (256 weights) as [`v::dot_scaled`] needs
/// them. 128-bit quarter k of the first vector has the scales of sub-blocks k and 4 + k,
/// that of the second those of 8 + k and 12 + k.
#[inline]
#[level(avx512)]
fn signed_scales_for_packs(scales: __m256i) -> [__m512i; 2] {
    let scales = _mm512_castsi256_si512(scales);
    let first = _mm512_set_epi16(
        7, 7, 7, 7, 3, 3, 3, 3, 6, 6, 6, 6, 2, 2, 2, 2, 5, 5, 5, 5, 1, 1, 1, 1, 4, 4, 4, 4, 0, 0,
        0, 0,
    );
    let second = _mm512_add_epi16(first, _mm512_set1_epi16(8));
    [
        _mm512_permutexvar_epi16(first, scales),
        _mm512_permutexvar_epi16(second, scales),
    ]
}
