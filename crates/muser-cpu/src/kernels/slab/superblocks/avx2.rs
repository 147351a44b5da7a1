//! Transposes superblocks (256 quantised weights) of several rows to slabs with AVX2.
//! Codes are transposed while they are packed: transposing 16 bytes of each row makes 4
//! lines of packed codes.

use super::{Ahead, Slab};
use crate::simd::avx2::slab as v;
use muser_levels::level;
use muser_quant::{SuperCodes, Superblock};
use std::arch::x86_64::*;

/// Transposes and unpacks one superblock (256 quantised weights) of each row to a slab,
/// in which each vector element holds one row's weights.
#[inline]
#[level(avx2)]
pub(crate) fn transpose<F: Superblock, const B: usize>(
    rows: v::SlabRows<'_, B>,
    ahead: Ahead<'_>,
    to: &mut Slab<{ v::ROWS }>,
) {
    match F::CODES {
        SuperCodes::Nibbles => nibbles(rows, ahead, to),
        SuperCodes::NibblesAndBits => nibbles_and_bits(rows, ahead, to),
        SuperCodes::NibblesAndPairs => nibbles_and_pairs(rows, ahead, to),
    }
}

/// Unpacks a Q4_K superblock of each row to a slab (weight rows transposed, one vector
/// element per row): a line of packed nibbles makes two lines of codes.
#[inline]
#[level(avx2)]
fn nibbles<const B: usize>(rows: v::SlabRows<'_, B>, ahead: Ahead<'_>, to: &mut Slab<{ v::ROWS }>) {
    let nibble = _mm256_set1_epi8(15);
    v::header_with_minima(rows, to);
    for part in 0..8 {
        // Each of the 8 parts prefetches 3 of 18 cache lines; some overlap.
        v::prefetch_lines::<3>(ahead, 9 * part / 4);
        let packed = v::transpose4(rows, 16 + 16 * part);
        let first = part / 2 * 16 + part % 2 * 4;
        for (e, packed) in packed.into_iter().enumerate() {
            let high = _mm256_srli_epi32::<4>(packed);
            v::store_line(&mut to.codes[first + e], _mm256_and_si256(packed, nibble));
            v::store_line(&mut to.codes[first + 8 + e], _mm256_and_si256(high, nibble));
        }
    }
}

/// Unpacks a Q5_K superblock of each row to a slab (weight rows transposed, one vector
/// element per row), from the low nibbles and the fifth bits of all codes.
#[inline]
#[level(avx2)]
fn nibbles_and_bits<const B: usize>(
    rows: v::SlabRows<'_, B>,
    ahead: Ahead<'_>,
    to: &mut Slab<{ v::ROWS }>,
) {
    v::header_with_minima(rows, to);
    // Prefetches 22 cache lines, 11 in each half.
    for half in 0..2 {
        let fifth = v::transpose4(rows, 16 + 16 * half);
        v::prefetch_lines::<3>(ahead, 11 * half);
        group::<0>(v::transpose4(rows, 48 + 16 * half), fifth, half, to);
        v::prefetch_lines::<3>(ahead, 11 * half + 2);
        group::<1>(v::transpose4(rows, 80 + 16 * half), fifth, half, to);
        v::prefetch_lines::<3>(ahead, 11 * half + 5);
        group::<2>(v::transpose4(rows, 112 + 16 * half), fifth, half, to);
        v::prefetch_lines::<3>(ahead, 11 * half + 8);
        group::<3>(v::transpose4(rows, 144 + 16 * half), fifth, half, to);
    }
}

/// Unpacks half of the 64 quantised values (codes) of group G of a Q5_K superblock, for
/// each row. Bit 2 G of the fifth bits belongs to the low nibbles, bit 2 G + 1 to the
/// high nibbles.
#[inline]
#[level(avx2)]
fn group<const G: usize>(
    packed: [__m256i; 4],
    fifth: [__m256i; 4],
    half: usize,
    to: &mut Slab<{ v::ROWS }>,
) {
    let nibble = _mm256_set1_epi8(15);
    let bit4 = _mm256_set1_epi8(16);
    let first = 16 * G + 4 * half;
    for e in 0..4 {
        // Moves bits 2 G and 2 G + 1 to bit 4.
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

/// Unpacks a Q6_K superblock of each row to a slab (weight rows transposed, one vector
/// element per row): nibbles and pairs of bits become codes in `0..=63`.
#[inline]
#[level(avx2)]
fn nibbles_and_pairs<const B: usize>(
    rows: v::SlabRows<'_, B>,
    ahead: Ahead<'_>,
    to: &mut Slab<{ v::ROWS }>,
) {
    v::signed_header(rows, to);
    let nibble = _mm256_set1_epi8(15);
    let pair = _mm256_set1_epi8(0x30);
    for part in 0..4 {
        // Half h of the superblock; 16 of each 32 bytes.
        let (h, half) = (part / 2, part % 2);
        let a = v::transpose4(rows, 64 * h + 16 * half);
        let b = v::transpose4(rows, 64 * h + 32 + 16 * half);
        let bits = v::transpose4(rows, 128 + 32 * h + 16 * half);
        for e in 0..4 {
            // The 16 steps prefetch 2 of 27 cache lines each; some overlap.
            v::prefetch_lines::<2>(ahead, 7 * part + 7 * e / 4);
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
