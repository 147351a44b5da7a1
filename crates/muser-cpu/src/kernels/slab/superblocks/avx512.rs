//! Transposes superblocks (256 quantised weights) of several rows to slabs with AVX-512.
//! Codes are transposed while they are packed: transposing 32 bytes of each row makes 8
//! lines of packed codes.

use super::{Ahead, Slab};
use crate::simd::avx512::slab as v;
use muser_levels::level;
use muser_quant::{SuperCodes, Superblock};
use std::arch::x86_64::*;

/// Transposes and unpacks one superblock (256 quantised weights) of each row to a slab,
/// in which each vector element holds one row's weights.
#[inline]
#[level(avx512)]
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
#[level(avx512)]
fn nibbles<const B: usize>(rows: v::SlabRows<'_, B>, ahead: Ahead<'_>, to: &mut Slab<{ v::ROWS }>) {
    let nibble = _mm512_set1_epi8(15);
    v::header_with_minima(rows, to);
    // Prefetches 36 cache lines, 9 in each of 4 groups.
    for g in 0..4 {
        v::prefetch_lines::<1>(ahead, 9 * g);
        v::prefetch_next_block::<B, 4>(rows, 4 * g);
        let packed = v::transpose8(rows, 16 + 32 * g);
        for (e, packed) in packed.into_iter().enumerate() {
            v::prefetch_lines::<1>(ahead, 9 * g + 1 + e);
            let high = _mm512_srli_epi32::<4>(packed);
            v::store_line(&mut to.codes[16 * g + e], _mm512_and_si512(packed, nibble));
            v::store_line(
                &mut to.codes[16 * g + 8 + e],
                _mm512_and_si512(high, nibble),
            );
        }
    }
}

/// Unpacks a Q5_K superblock of each row to a slab (weight rows transposed, one vector
/// element per row), from the low nibbles and the fifth bits of all codes.
#[inline]
#[level(avx512)]
fn nibbles_and_bits<const B: usize>(
    rows: v::SlabRows<'_, B>,
    ahead: Ahead<'_>,
    to: &mut Slab<{ v::ROWS }>,
) {
    v::header_with_minima(rows, to);
    let fifth = v::transpose8(rows, 16);
    group::<0, B>(v::transpose8(rows, 48), fifth, rows, ahead, to);
    group::<1, B>(v::transpose8(rows, 80), fifth, rows, ahead, to);
    group::<2, B>(v::transpose8(rows, 112), fifth, rows, ahead, to);
    group::<3, B>(v::transpose8(rows, 144), fifth, rows, ahead, to);
}

/// Unpacks the 64 quantised values (codes) of group G of a Q5_K superblock, for each
/// row. Bit 2 G of the fifth bits belongs to the low nibbles, bit 2 G + 1 to the high
/// nibbles.
#[inline]
#[level(avx512)]
fn group<const G: usize, const B: usize>(
    packed: [__m512i; 8],
    fifth: [__m512i; 8],
    rows: v::SlabRows<'_, B>,
    ahead: Ahead<'_>,
    to: &mut Slab<{ v::ROWS }>,
) {
    let nibble = _mm512_set1_epi8(15);
    let bit4 = _mm512_set1_epi8(16);
    // Prefetches 11 of 44 cache lines.
    v::prefetch_lines::<3>(ahead, 11 * G);
    v::prefetch_next_block::<B, 4>(rows, 4 * G);
    for e in 0..8 {
        v::prefetch_lines::<1>(ahead, 11 * G + 3 + e);
        // Moves bits 2 G and 2 G + 1 to bit 4.
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

/// Unpacks a Q6_K superblock of each row to a slab (weight rows transposed, one vector
/// element per row): nibbles and pairs of bits become codes in `0..=63`.
#[inline]
#[level(avx512)]
fn nibbles_and_pairs<const B: usize>(
    rows: v::SlabRows<'_, B>,
    ahead: Ahead<'_>,
    to: &mut Slab<{ v::ROWS }>,
) {
    v::signed_header(rows, to);
    let nibble = _mm512_set1_epi8(15);
    let pair = _mm512_set1_epi8(0x30);
    // Prefetches 53 cache lines, 27 in each half; one more than needed.
    for h in 0..2 {
        v::prefetch_lines::<3>(ahead, 27 * h + 24);
        v::prefetch_next_block::<B, 8>(rows, 8 * h);
        let a = v::transpose8(rows, 64 * h);
        let b = v::transpose8(rows, 64 * h + 32);
        let bits = v::transpose8(rows, 128 + 32 * h);
        for e in 0..8 {
            v::prefetch_lines::<3>(ahead, 27 * h + 3 * e);
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
