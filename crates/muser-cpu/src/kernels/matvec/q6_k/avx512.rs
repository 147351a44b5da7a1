//! Q6_K rows with AVX-512 and VNNI.
//!
//! For a superblock of a row: 2 loads of 64 packed bytes give four vectors of
//! low nibbles in natural order, 2 broadcast loads of 32 bytes and a variable
//! shift each give the high pairs. Then 4 `vpdpbusd`, 2 packs,
//! 2 `vpdpwssd` with the signed scales; the 32 that each code is too large is
//! taken off with one `vpmaddwd` of scales and sums.

use crate::kernels::matvec::{SIDE, by_quads};
use crate::kernels::quantize::Block;
use crate::rows::Tile;
use crate::simd::avx2::{chain4, factors4, load_sums16, load128, prefetch, to_array4, zero4};
use crate::simd::avx512 as v;
use muser_quant::q6_k::BYTES;
use std::arch::x86_64::*;

by_quads!("avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c");

/// Four rows with a column.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
fn quad(rows: [&[[u8; BYTES]]; SIDE], x: &[Block], ahead: &[u8]) -> [f32; SIDE] {
    let blocks = rows[0].len();
    let mut acc = zero4();
    for (b, x) in x.iter().enumerate().take(blocks) {
        prefetch(ahead, (blocks + b) * SIDE * BYTES, SIDE * BYTES);
        let w: [&[u8; BYTES]; SIDE] = std::array::from_fn(|r| &rows[r][b]);
        let d = factors4([w[0], w[1], w[2], w[3]], 208);
        let mut sums = [_mm512_setzero_si512(); SIDE];
        for r in 0..SIDE {
            let scales = _mm256_cvtepi8_epi16(load128(w[r], 192));
            let dot = v::dot_scaled(codes(w[r]), scales_for_packs(scales), &x.q);
            let bias = _mm256_madd_epi16(scales, load_sums16(&x.sums16));
            let bias = _mm512_zextsi256_si512(_mm256_slli_epi32::<5>(bias));
            sums[r] = _mm512_sub_epi32(dot, bias);
        }
        acc = chain4(v::sum4(sums), d, x.d, acc);
    }
    to_array4(acc)
}

/// The 256 codes, `0..=63`, in natural order.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
pub(crate) fn codes(w: &[u8; BYTES]) -> [__m512i; 4] {
    let nibble = _mm512_set1_epi8(15);
    let pair = _mm512_set1_epi8(0x30);
    let mut out = [_mm512_setzero_si512(); 4];
    for h in 0..2 {
        let low = v::load512(w, 64 * h);
        let high = _mm512_broadcast_i64x4(v::load256(w, 128 + 32 * h));
        // Bits 1..0 (lower half) and 3..2 (upper half) to bits 5..4; then
        // bits 5..4 and 7..6.
        let first = _mm512_sllv_epi64(high, _mm512_setr_epi64(4, 4, 4, 4, 2, 2, 2, 2));
        let second = _mm512_srlv_epi64(high, _mm512_setr_epi64(0, 0, 0, 0, 2, 2, 2, 2));
        let low_nibbles = _mm512_and_si512(low, nibble);
        let high_nibbles = _mm512_and_si512(_mm512_srli_epi16::<4>(low), nibble);
        // nibble | (bits & 0x30)
        out[2 * h] = _mm512_ternarylogic_epi64::<0b1111_1000>(low_nibbles, first, pair);
        out[2 * h + 1] = _mm512_ternarylogic_epi64::<0b1111_1000>(high_nibbles, second, pair);
    }
    out
}

/// The scales where the packs of [`v::dot_scaled`] put the quads: 128-bit lane
/// k of the first holds sub-block k and sub-block 4 + k, of the second 8 more.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
fn scales_for_packs(scales: __m256i) -> [__m512i; 2] {
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
