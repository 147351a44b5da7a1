//! Q4_K rows with AVX-512 and VNNI.
//!
//! For a superblock of a row: 4 loads that broadcast 32 packed bytes to both
//! halves of a register, a variable shift that brings the high nibbles down in
//! the upper half, a mask: 64 codes in natural order, no permutation of the
//! activations. Then for each column 4 `vpdpbusd` (quads of products), 2
//! packs to i16 and 2 `vpdpwssd` with the scales: 8 instructions for 256
//! multiply-adds, against 8 `vpmulld` and 8 adds if the scales were applied in
//! i32. Scales and minima of four rows are unpacked in one register.

use crate::kernels::matmul::Unpacked;
use crate::kernels::matvec::{ROWS, k_quant_driver};
use crate::kernels::quantize::Block;
use crate::rows::Tile;
use crate::simd::avx2::{chain4, difference4, load_sums8, prefetch, unpack_header, zero4};
use crate::simd::avx512 as v;
use muser_quant::q4_k::BYTES;
use std::arch::x86_64::*;

k_quant_driver!("avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c");

/// Four rows with N columns.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
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
        let header = v::headers4([w[0], w[1], w[2], w[3]]);
        let factors = v::factors4(header);
        let scales_mins = v::scales_mins4(header);
        let mut sums = [[_mm512_setzero_si512(); ROWS]; N];
        for r in 0..ROWS {
            let codes = codes(w[r]);
            let scales = v::scales_for_packs(scales_mins, r);
            for n in 0..N {
                sums[n][r] = v::dot_scaled(codes, scales, &x[n][b].q);
            }
        }
        let mins = _mm512_unpackhi_epi8(scales_mins, _mm512_setzero_si512());
        for n in 0..N {
            let x = &x[n][b];
            acc[n] = chain4(v::sum4(sums[n]), factors.0, x.d, acc[n]);
            let sums32 = _mm512_broadcast_i32x4(load_sums8(&x.sums32));
            let min = v::sum_lanes(_mm512_madd_epi16(mins, sums32));
            accm[n] = chain4(min, factors.1, x.d, accm[n]);
        }
    }
    std::array::from_fn(|n| difference4(acc[n], accm[n]))
}

/// The 256 codes in natural order.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
fn codes(w: &[u8; BYTES]) -> [__m512i; 4] {
    let shift = _mm512_setr_epi64(0, 0, 0, 0, 4, 4, 4, 4);
    let nibble = _mm512_set1_epi8(15);
    let mut out = [_mm512_setzero_si512(); 4];
    for (g, out) in out.iter_mut().enumerate() {
        let packed = _mm512_broadcast_i64x4(v::load256(w, 16 + 32 * g));
        *out = _mm512_and_si512(_mm512_srlv_epi64(packed, shift), nibble);
    }
    out
}

/// Unpacks a superblock for the matrix-matrix rung.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
pub(crate) fn unpack_to(w: &[u8; BYTES], to: &mut Unpacked) {
    v::store_unpacked(codes(w), to);
    unpack_header(w, to);
}
