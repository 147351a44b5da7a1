//! Q5_K slabs with AVX-512 and VNNI: what is packed is transposed, the low
//! nibbles in four parts, the fifth bits in one.

use std::arch::x86_64::*;

crate::kernels::slab::driver!(
    avx512,
    "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c";
    slab = STRICT, slab_tiled = TILED
);

/// A superblock of each row.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
fn build(rows: v::Rows<'_, BYTES>, ahead: Ahead<'_>, to: &mut Slab<{ v::LANES }>) {
    v::header_with_minima(rows, to);
    let fifth = v::turn8(rows, 16);
    group::<0>(v::turn8(rows, 48), fifth, rows, ahead, to);
    group::<1>(v::turn8(rows, 80), fifth, rows, ahead, to);
    group::<2>(v::turn8(rows, 112), fifth, rows, ahead, to);
    group::<3>(v::turn8(rows, 144), fifth, rows, ahead, to);
}

/// The 64 codes of group G: bit 2 G of the fifth bits goes with the low nibbles,
/// bit 2 G + 1 with the high ones.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
fn group<const G: usize>(
    packed: [__m512i; 8],
    fifth: [__m512i; 8],
    rows: v::Rows<'_, BYTES>,
    ahead: Ahead<'_>,
    to: &mut Slab<{ v::LANES }>,
) {
    let nibble = _mm512_set1_epi8(15);
    let bit4 = _mm512_set1_epi8(16);
    // 11 of 44 lines ahead.
    v::ask::<3>(ahead, 11 * G);
    v::ask_near::<BYTES, 4>(rows, 4 * G);
    for e in 0..8 {
        v::ask::<1>(ahead, 11 * G + 3 + e);
        // Bits 2 G and 2 G + 1 to bit 4.
        let (even, odd) = match G {
            0 => (
                _mm512_slli_epi32::<4>(fifth[e]),
                _mm512_slli_epi32::<3>(fifth[e]),
            ),
            1 => (
                _mm512_slli_epi32::<2>(fifth[e]),
                _mm512_slli_epi32::<1>(fifth[e]),
            ),
            2 => (fifth[e], _mm512_srli_epi32::<1>(fifth[e])),
            _ => (
                _mm512_srli_epi32::<2>(fifth[e]),
                _mm512_srli_epi32::<3>(fifth[e]),
            ),
        };
        let low = _mm512_and_si512(packed[e], nibble);
        let high = _mm512_and_si512(_mm512_srli_epi32::<4>(packed[e]), nibble);
        // nibble | (bits & 16)
        let low = _mm512_ternarylogic_epi32::<0b1111_1000>(low, even, bit4);
        let high = _mm512_ternarylogic_epi32::<0b1111_1000>(high, odd, bit4);
        v::store_line(&mut to.codes[16 * G + e], low);
        v::store_line(&mut to.codes[16 * G + 8 + e], high);
    }
}
