//! Q4_K rows with AVX-512 and VNNI.
//!
//! For a superblock of a row: 4 loads that broadcast 32 packed bytes to both
//! halves of a register, a variable shift that brings the high nibbles down in
//! the upper half, a mask: 64 codes in natural order, no permutation of the
//! activations. Then 4 `vpdpbusd` (quads of products), 2
//! packs to i16 and 2 `vpdpwssd` with the scales: 8 instructions for 256
//! multiply-adds, against 8 `vpmulld` and 8 adds if the scales were applied in
//! i32. Scales and minima of four rows are unpacked in one register.

use crate::kernels::matvec::with_minima;
use muser_quant::q4_k::BYTES;
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
    let mut out = [_mm512_setzero_si512(); 4];
    for (g, out) in out.iter_mut().enumerate() {
        let packed = _mm512_broadcast_i64x4(v::load256(w, 16 + 32 * g));
        *out = _mm512_and_si512(_mm512_srlv_epi64(packed, shift), nibble);
    }
    out
}
