//! Q5_K rows with AVX-512 and VNNI.
//!
//! For a superblock of a row: 4 loads that broadcast 32 packed bytes to both
//! halves of a register, a variable shift that brings the high nibbles down in
//! the upper half, a mask: 64 codes in natural order, no permutation of the
//! activations. The fifth bits come the same way, shifted to bit 4. Then 4
//! `vpdpbusd` (quads of products), 2 packs to i16 and 2 `vpdpwssd` with the
//! scales: 8 instructions for 256 multiply-adds, against 8 `vpmulld` and 8 adds if
//! the scales were applied in i32. Scales and minima of four rows are unpacked in one register.

use crate::kernels::matvec::with_minima;
use muser_quant::q5_k::BYTES;
use std::arch::x86_64::*;

with_minima!(
    avx512,
    "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c"
);

/// The 256 codes in natural order.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
pub(crate) fn codes(w: &[u8; BYTES]) -> [__m512i; 4] {
    let shift = _mm512_setr_epi64(0, 0, 0, 0, 4, 4, 4, 4);
    let nibble = _mm512_set1_epi8(15);
    let high = _mm512_broadcast_i64x4(v::load256(w, 16));
    let bit4 = _mm512_set1_epi8(16);
    // Bit 2 g (lower half) and 2 g + 1 (upper half) to bit 4.
    let fifth = [
        _mm512_sllv_epi64(high, _mm512_setr_epi64(4, 4, 4, 4, 3, 3, 3, 3)),
        _mm512_sllv_epi64(high, _mm512_setr_epi64(2, 2, 2, 2, 1, 1, 1, 1)),
        _mm512_srlv_epi64(high, _mm512_setr_epi64(0, 0, 0, 0, 1, 1, 1, 1)),
        _mm512_srlv_epi64(high, _mm512_setr_epi64(2, 2, 2, 2, 3, 3, 3, 3)),
    ];
    let mut out = [_mm512_setzero_si512(); 4];
    for g in 0..4 {
        let packed = _mm512_broadcast_i64x4(v::load256(w, 48 + 32 * g));
        let low = _mm512_and_si512(_mm512_srlv_epi64(packed, shift), nibble);
        // low | (fifth & 16)
        out[g] = _mm512_ternarylogic_epi64::<0b1111_1000>(low, fifth[g], bit4);
    }
    out
}
