//! Q6_K slabs with AVX-512 and VNNI: what is packed is transposed, nibbles and
//! pairs of bits.

use std::arch::x86_64::*;

crate::kernels::slab::driver!(
    avx512,
    "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c";
    slab = STRICT, slab_tiled = TILED
);

/// A superblock of each row: codes `0..=63`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
fn build(rows: v::Rows<'_, BYTES>, ahead: Ahead<'_>, to: &mut Slab<{ v::LANES }>) {
    v::signed_header(rows, to);
    let nibble = _mm512_set1_epi8(15);
    let pair = _mm512_set1_epi8(0x30);
    // 53 lines ahead.
    for h in 0..2 {
        v::ask::<3>(ahead, 27 * h + 24);
        v::ask_near::<BYTES, 8>(rows, 8 * h);
        let a = v::turn8(rows, 64 * h);
        let b = v::turn8(rows, 64 * h + 32);
        let bits = v::turn8(rows, 128 + 32 * h);
        for e in 0..8 {
            v::ask::<3>(ahead, 27 * h + 3 * e);
            let low = [
                _mm512_and_si512(a[e], nibble),
                _mm512_and_si512(b[e], nibble),
                _mm512_and_si512(_mm512_srli_epi32::<4>(a[e]), nibble),
                _mm512_and_si512(_mm512_srli_epi32::<4>(b[e]), nibble),
            ];
            let high = [
                _mm512_slli_epi32::<4>(bits[e]),
                _mm512_slli_epi32::<2>(bits[e]),
                bits[e],
                _mm512_srli_epi32::<2>(bits[e]),
            ];
            for i in 0..4 {
                // nibble | (bits & 0x30)
                let code = _mm512_ternarylogic_epi32::<0b1111_1000>(low[i], high[i], pair);
                v::store_line(&mut to.codes[32 * h + 8 * i + e], code);
            }
        }
    }
}
