//! Q6_K slabs with AVX2: what is packed is transposed, nibbles and pairs of
//! bits.

use std::arch::x86_64::*;

crate::kernels::slab::driver!(avx2, "avx2,fma,f16c"; slab = STRICT, slab_tiled = TILED);

/// A superblock of each row: codes `0..=63`.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn build(rows: v::Rows<'_, BYTES>, ahead: Ahead<'_>, to: &mut Slab<{ v::LANES }>) {
    v::signed_header(rows, to);
    let nibble = _mm256_set1_epi8(15);
    let pair = _mm256_set1_epi8(0x30);
    for part in 0..4 {
        // Half h of the superblock, 16 of the 32 bytes of each stretch.
        let (h, half) = (part / 2, part % 2);
        let a = v::turn4(rows, 64 * h + 16 * half);
        let b = v::turn4(rows, 64 * h + 32 + 16 * half);
        let bits = v::turn4(rows, 128 + 32 * h + 16 * half);
        for e in 0..4 {
            // Of 27 lines ahead.
            v::ask::<2>(ahead, 7 * part + 7 * e / 4);
            let low = [
                _mm256_and_si256(a[e], nibble),
                _mm256_and_si256(b[e], nibble),
                _mm256_and_si256(_mm256_srli_epi32::<4>(a[e]), nibble),
                _mm256_and_si256(_mm256_srli_epi32::<4>(b[e]), nibble),
            ];
            let high = [
                _mm256_slli_epi32::<4>(bits[e]),
                _mm256_slli_epi32::<2>(bits[e]),
                bits[e],
                _mm256_srli_epi32::<2>(bits[e]),
            ];
            for i in 0..4 {
                let code = _mm256_or_si256(low[i], _mm256_and_si256(high[i], pair));
                v::store_line(&mut to.codes[32 * h + 8 * i + 4 * half + e], code);
            }
        }
    }
}
