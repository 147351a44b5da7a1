//! Q6_K rows with AVX2.
//!
//! For a superblock of a row: 8 `vpmaddubsw` of the unsigned codes (pairs of
//! products, at most 2 · 63 · 127 = 16,002: no saturation), 8 `vpmaddwd` with the
//! scales of two sub-blocks, 8 adds; the 32 that each code is too large is taken
//! off with one `vpmaddwd` of scales and sums.

use crate::kernels::matvec::{AHEAD, SIDE, by_rows};
use crate::kernels::quantize::Block;
use crate::rows::Tile;
use crate::simd::avx2::{self as v, factors4, load_sums16, load128, prefetch};
use muser_quant::q6_k::BYTES;
use std::arch::x86_64::*;

by_rows!("avx2,fma,f16c");

/// One row with a column.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn row(w: &[u8], x: &[Block]) -> f32 {
    let w = &w.as_chunks::<BYTES>().0[..x.len()];
    let mut chains = v::zero4();
    for (w, x) in w.chunks(SIDE).zip(x.chunks(SIDE)) {
        prefetch(w.as_flattened(), AHEAD, SIDE * BYTES);
        let mut sums = [_mm256_setzero_si256(); SIDE];
        for (i, (w, x)) in w.iter().zip(x).enumerate() {
            let scales = _mm256_cvtepi8_epi16(load128(w, 192));
            let bias = _mm256_madd_epi16(scales, load_sums16(&x.sums16));
            let dot = dot_scaled(&codes(w), scales, &x.q);
            sums[i] = _mm256_sub_epi32(dot, _mm256_slli_epi32::<5>(bias));
        }
        let none = (_mm_setzero_si128(), v::zero4());
        let (sums, factors) = (v::sum4(sums), factors4(v::four(w), 208));
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

/// Σ scale · code · activation in 8 lanes.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) fn dot_scaled(codes: &[__m256i; 8], scales: __m256i, q: &[i8; 256]) -> __m256i {
    let low = _mm256_permute2x128_si256::<0x00>(scales, scales);
    let high = _mm256_permute2x128_si256::<0x11>(scales, scales);
    let mut sum = _mm256_setzero_si256();
    for (g, &codes) in codes.iter().enumerate() {
        // Vector g holds sub-block 2 g in its lower lane, 2 g + 1 in its upper.
        let k = (2 * g % 8) as i16;
        let (a, b) = (i16::from_le_bytes([2 * k as u8, 2 * k as u8 + 1]), 0x0202);
        let pick = _mm256_set_m128i(_mm_set1_epi16(a + b), _mm_set1_epi16(a));
        let scale = _mm256_shuffle_epi8(if g < 4 { low } else { high }, pick);
        let pairs = _mm256_maddubs_epi16(codes, v::load_codes(q, 32 * g));
        sum = _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, scale));
    }
    sum
}

/// The 256 codes, `0..=63`, in natural order.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) fn codes(w: &[u8; BYTES]) -> [__m256i; 8] {
    let nibble = _mm256_set1_epi8(15);
    let pair = _mm256_set1_epi8(0x30);
    let mut out = [_mm256_setzero_si256(); 8];
    for h in 0..2 {
        let (a, b) = (v::load256(w, 64 * h), v::load256(w, 64 * h + 32));
        let high = v::load256(w, 128 + 32 * h);
        let low = [
            _mm256_and_si256(a, nibble),
            _mm256_and_si256(b, nibble),
            _mm256_and_si256(_mm256_srli_epi16::<4>(a), nibble),
            _mm256_and_si256(_mm256_srli_epi16::<4>(b), nibble),
        ];
        let bits = [
            _mm256_slli_epi16::<4>(high),
            _mm256_slli_epi16::<2>(high),
            high,
            _mm256_srli_epi16::<2>(high),
        ];
        for i in 0..4 {
            out[4 * h + i] = _mm256_or_si256(low[i], _mm256_and_si256(bits[i], pair));
        }
    }
    out
}
