//! Q6_K rows with AVX2.
//!
//! For a superblock of a row and each column: 8 `vpmaddubsw` of the unsigned
//! codes (pairs of products, at most 2 · 63 · 127 = 16,002: no saturation), 8
//! `vpmaddwd` with the scales of two sub-blocks, 8 adds; the 32 that each code
//! is too large is taken off with one `vpmaddwd` of scales and sums.

use crate::kernels::matmul::Unpacked;
use crate::kernels::matvec::{ROWS, k_quant_driver};
use crate::kernels::quantize::Block;
use crate::rows::Tile;
use crate::simd::avx2::{
    self as v, chain4, factors4, load_sums16, load128, prefetch, tiled4, to_arrays,
    unpack_signed_header, zero4,
};
use muser_quant::q6_k::BYTES;
use std::arch::x86_64::*;

k_quant_driver!("avx2,fma,f16c");

/// Four rows with N columns.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn quad<const N: usize, const LINK: u8>(
    rows: [&[[u8; BYTES]]; ROWS],
    x: [&[Block]; N],
    ahead: &[u8],
) -> [[f32; ROWS]; N] {
    let blocks = rows[0].len();
    let mut acc = [zero4(); N];
    for b in 0..blocks {
        prefetch(ahead, (blocks + b) * ROWS * BYTES, ROWS * BYTES);
        let w: [&[u8; BYTES]; ROWS] = std::array::from_fn(|r| &rows[r][b]);
        let mut sums = [[_mm256_setzero_si256(); ROWS]; N];
        for r in 0..ROWS {
            let codes = codes(w[r]);
            let scales = _mm256_cvtepi8_epi16(load128(w[r], 192));
            for n in 0..N {
                let x = &x[n][b];
                let bias = _mm256_madd_epi16(scales, load_sums16(&x.sums16));
                let dot = dot_scaled(&codes, scales, &x.q);
                sums[n][r] = _mm256_sub_epi32(dot, _mm256_slli_epi32::<5>(bias));
            }
        }
        let d = factors4([&w[0][..], &w[1][..], &w[2][..], &w[3][..]], 208);
        for n in 0..N {
            let (sum, y) = (v::sum4(sums[n]), x[n][b].d);
            acc[n] = match LINK {
                link::TILED => tiled4(sum, d, y, acc[n]),
                _ => chain4(sum, d, y, acc[n]),
            };
        }
    }
    to_arrays(acc)
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

/// Unpacks a superblock for the matrix-matrix rung: codes `0..=63`.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) fn unpack_to(w: &[u8; BYTES], to: &mut Unpacked) {
    v::store_unpacked(codes(w), to);
    unpack_signed_header(w, to);
}
