//! Q5_K slabs with AVX2: what is packed is transposed, the low nibbles in eight
//! parts, the fifth bits in two.

use std::arch::x86_64::*;

crate::kernels::slab::driver!(avx2, "avx2,fma,f16c"; slab = STRICT, slab_tiled = TILED);

/// A superblock of each row.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn build(rows: v::Rows<'_, BYTES>, ahead: Ahead<'_>, to: &mut Slab<{ v::LANES }>) {
    v::header_with_minima(rows, to);
    // 22 lines ahead.
    for half in 0..2 {
        let fifth = v::turn4(rows, 16 + 16 * half);
        v::ask::<3>(ahead, 11 * half);
        group::<0>(v::turn4(rows, 48 + 16 * half), fifth, half, to);
        v::ask::<3>(ahead, 11 * half + 2);
        group::<1>(v::turn4(rows, 80 + 16 * half), fifth, half, to);
        v::ask::<3>(ahead, 11 * half + 5);
        group::<2>(v::turn4(rows, 112 + 16 * half), fifth, half, to);
        v::ask::<3>(ahead, 11 * half + 8);
        group::<3>(v::turn4(rows, 144 + 16 * half), fifth, half, to);
    }
}

/// Half of the 64 codes of group G: bit 2 G of the fifth bits goes with the low
/// nibbles, bit 2 G + 1 with the high ones.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn group<const G: usize>(
    packed: [__m256i; 4],
    fifth: [__m256i; 4],
    half: usize,
    to: &mut Slab<{ v::LANES }>,
) {
    let nibble = _mm256_set1_epi8(15);
    let bit4 = _mm256_set1_epi8(16);
    let first = 16 * G + 4 * half;
    for e in 0..4 {
        // Bits 2 G and 2 G + 1 to bit 4.
        let (even, odd) = match G {
            0 => (
                _mm256_slli_epi32::<4>(fifth[e]),
                _mm256_slli_epi32::<3>(fifth[e]),
            ),
            1 => (
                _mm256_slli_epi32::<2>(fifth[e]),
                _mm256_slli_epi32::<1>(fifth[e]),
            ),
            2 => (fifth[e], _mm256_srli_epi32::<1>(fifth[e])),
            _ => (
                _mm256_srli_epi32::<2>(fifth[e]),
                _mm256_srli_epi32::<3>(fifth[e]),
            ),
        };
        let low = _mm256_and_si256(packed[e], nibble);
        let high = _mm256_and_si256(_mm256_srli_epi32::<4>(packed[e]), nibble);
        let low = _mm256_or_si256(low, _mm256_and_si256(even, bit4));
        let high = _mm256_or_si256(high, _mm256_and_si256(odd, bit4));
        v::store_line(&mut to.codes[first + e], low);
        v::store_line(&mut to.codes[first + 8 + e], high);
    }
}
