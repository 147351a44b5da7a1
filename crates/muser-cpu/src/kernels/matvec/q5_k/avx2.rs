//! Q5_K rows with AVX2.
//!
//! For a superblock of a row and each column: 8 `vpmaddubsw` (pairs of
//! products, at most 2 · 31 · 127 = 7,874 in magnitude: no saturation), 8 `vpmaddwd` with
//! the sub-block's scale, 8 adds.

use crate::kernels::matmul::Unpacked;
use crate::kernels::matvec::{ROWS, k_quant_driver};
use crate::kernels::quantize::Block;
use crate::rows::Tile;
use crate::simd::avx2::{
    self as v, chain4, difference4, factors4, load_sums8, prefetch, unpack_header, zero4,
};
use muser_quant::q5_k::BYTES;
use std::arch::x86_64::*;

k_quant_driver!("avx2,fma,f16c");

/// Four rows with N columns.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn quad<const N: usize>(
    rows: [&[[u8; BYTES]]; ROWS],
    x: [&[Block]; N],
    ahead: &[u8],
) -> [[f32; ROWS]; N] {
    let blocks = rows[0].len();
    let mut acc = [zero4(); N];
    let mut accm = [zero4(); N];
    for b in 0..blocks {
        prefetch(ahead, (blocks + b) * ROWS * BYTES, ROWS * BYTES);
        let w: [&[u8; BYTES]; ROWS] = std::array::from_fn(|r| &rows[r][b]);
        let mut sums = [[_mm256_setzero_si256(); ROWS]; N];
        let mut mins = [[_mm_setzero_si128(); ROWS]; N];
        for r in 0..ROWS {
            let codes = codes(w[r]);
            let (scales, minima) = v::scales_mins(w[r]);
            for n in 0..N {
                let x = &x[n][b];
                sums[n][r] = v::dot_scaled(&codes, scales, &x.q);
                mins[n][r] = _mm_madd_epi16(minima, load_sums8(&x.sums32));
            }
        }
        let four = [&w[0][..], &w[1][..], &w[2][..], &w[3][..]];
        let (d, dmin) = (factors4(four, 0), factors4(four, 2));
        for n in 0..N {
            let y = x[n][b].d;
            acc[n] = chain4(v::sum4(sums[n]), d, y, acc[n]);
            accm[n] = chain4(v::sum4_narrow(mins[n]), dmin, y, accm[n]);
        }
    }
    std::array::from_fn(|n| difference4(acc[n], accm[n]))
}

/// The 256 codes in natural order.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn codes(w: &[u8; BYTES]) -> [__m256i; 8] {
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

/// Unpacks a superblock for the matrix-matrix rung.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) fn unpack_to(w: &[u8; BYTES], to: &mut Unpacked) {
    v::store_unpacked(codes(w), to);
    unpack_header(w, to);
}
