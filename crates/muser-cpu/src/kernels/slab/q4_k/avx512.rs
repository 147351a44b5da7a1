//! Q4_K slabs with AVX-512 and VNNI: what is packed is transposed, so that one
//! transposition of 32 bytes a row gives 16 lines.

use std::arch::x86_64::*;

crate::kernels::slab::driver!(
    avx512,
    "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c";
    slab = STRICT, slab_tiled = TILED, slab_fours = FOURS
);

/// A superblock of each row.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
fn build(rows: v::Rows<'_, BYTES>, ahead: Ahead<'_>, to: &mut Slab<{ v::LANES }>) {
    let nibble = _mm512_set1_epi8(15);
    v::header_with_minima(rows, to);
    // 36 lines ahead.
    for g in 0..4 {
        v::ask::<1>(ahead, 9 * g);
        v::ask_near::<BYTES, 4>(rows, 4 * g);
        let packed = v::turn8(rows, 16 + 32 * g);
        for (e, packed) in packed.into_iter().enumerate() {
            v::ask::<1>(ahead, 9 * g + 1 + e);
            let high = _mm512_srli_epi32::<4>(packed);
            v::store_line(&mut to.codes[16 * g + e], _mm512_and_si512(packed, nibble));
            v::store_line(
                &mut to.codes[16 * g + 8 + e],
                _mm512_and_si512(high, nibble),
            );
        }
    }
}
