//! Q4_K slabs with AVX2: what is packed is transposed, so that one
//! transposition of 16 bytes a row gives 8 lines.

use std::arch::x86_64::*;

crate::kernels::slab::driver!(
    avx2,
    "avx2,fma,f16c";
    slab = STRICT, slab_tiled = TILED, slab_fours = FOURS
);

/// A superblock of each row.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn build(rows: v::Rows<'_, BYTES>, ahead: Ahead<'_>, to: &mut Slab<{ v::LANES }>) {
    let nibble = _mm256_set1_epi8(15);
    v::header_with_minima(rows, to);
    for part in 0..8 {
        // Of 18 lines ahead.
        v::ask::<3>(ahead, 9 * part / 4);
        let packed = v::turn4(rows, 16 + 16 * part);
        let first = part / 2 * 16 + part % 2 * 4;
        for (e, packed) in packed.into_iter().enumerate() {
            let high = _mm256_srli_epi32::<4>(packed);
            v::store_line(&mut to.codes[first + e], _mm256_and_si256(packed, nibble));
            v::store_line(&mut to.codes[first + 8 + e], _mm256_and_si256(high, nibble));
        }
    }
}
