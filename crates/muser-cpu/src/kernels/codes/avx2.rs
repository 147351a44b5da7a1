//! Unpacks the codes of quantised weights with AVX2, in vectors of 32 codes.
//!
//! Nibbles take four instructions for 64 codes. Codes whose high bits are stored
//! separately take a shift, a mask and an or more for each vector.

use crate::simd::avx2 as v;
use muser_levels::level;
use muser_quant::{Group, GroupCodes, SuperCodes, Superblock};
use std::arch::x86_64::*;

/// Unpacks the 256 quantised values (codes) of a superblock of weights, in natural
/// order; their bias (zero point) is not subtracted.
#[inline]
#[level(avx2)]
pub(crate) fn of_superblock<F: Superblock, const B: usize>(w: &[u8; B]) -> [__m256i; 8] {
    match F::CODES {
        SuperCodes::Nibbles => nibbles(w),
        SuperCodes::NibblesAndBits => nibbles_and_bits(w),
        SuperCodes::NibblesAndPairs => nibbles_and_pairs(w),
    }
}

/// Unpacks the 256 quantised values (codes) of a Q4_K superblock, stored as nibbles.
#[inline]
#[level(avx2)]
fn nibbles<const B: usize>(w: &[u8; B]) -> [__m256i; 8] {
    let nibble = _mm256_set1_epi8(15);
    let mut out = [_mm256_setzero_si256(); 8];
    for g in 0..4 {
        let packed = v::load256(w, 16 + 32 * g);
        out[2 * g] = _mm256_and_si256(packed, nibble);
        out[2 * g + 1] = _mm256_and_si256(_mm256_srli_epi16::<4>(packed), nibble);
    }
    out
}

/// Unpacks the 256 quantised values (codes) of a Q5_K superblock, stored as nibbles and
/// separate fifth bits.
#[inline]
#[level(avx2)]
fn nibbles_and_bits<const B: usize>(w: &[u8; B]) -> [__m256i; 8] {
    let nibble = _mm256_set1_epi8(15);
    let high = v::load256(w, 16);
    let bit4 = _mm256_set1_epi8(16);
    let mut out = [_mm256_setzero_si256(); 8];
    // Bit j of each byte belongs to sub-block j; the shifts move it to bit 4.
    let fifth = [
        _mm256_slli_epi16::<4>(high),
        _mm256_slli_epi16::<3>(high),
        _mm256_slli_epi16::<2>(high),
        _mm256_slli_epi16::<1>(high),
        high,
        _mm256_srli_epi16::<1>(high),
        _mm256_srli_epi16::<2>(high),
        _mm256_srli_epi16::<3>(high),
    ];
    for g in 0..4 {
        let packed = v::load256(w, 48 + 32 * g);
        let low = _mm256_and_si256(packed, nibble);
        let up = _mm256_and_si256(_mm256_srli_epi16::<4>(packed), nibble);
        out[2 * g] = _mm256_or_si256(low, _mm256_and_si256(fifth[2 * g], bit4));
        out[2 * g + 1] = _mm256_or_si256(up, _mm256_and_si256(fifth[2 * g + 1], bit4));
    }
    out
}

/// Unpacks the 256 quantised values (codes, `0..=63`) of a Q6_K superblock, stored as
/// nibbles and separate pairs of bits.
#[inline]
#[level(avx2)]
fn nibbles_and_pairs<const B: usize>(w: &[u8; B]) -> [__m256i; 8] {
    let nibble = _mm256_set1_epi8(15);
    let pair = _mm256_set1_epi8(0x30);
    let mut out = [_mm256_setzero_si256(); 8];
    for h in 0..2 {
        let (a, b) = (v::load256(w, 64 * h), v::load256(w, 64 * h + 32));
        let high = v::load256(w, 128 + 32 * h);
        let low = [
            _mm256_and_si256(a, nibble),
            _mm256_and_si256(b, nibble),
            _mm256_and_si256(_mm256_srli_epi16::<4>(a), nibble),
            _mm256_and_si256(_mm256_srli_epi16::<4>(b), nibble),
        ];
        let bits = [
            _mm256_slli_epi16::<4>(high),
            _mm256_slli_epi16::<2>(high),
            high,
            _mm256_srli_epi16::<2>(high),
        ];
        for i in 0..4 {
            out[4 * h + i] = _mm256_or_si256(low[i], _mm256_and_si256(bits[i], pair));
        }
    }
    out
}

/// Unpacks the 32 quantised values (codes) of the weight group that begins at byte
/// `at`, in natural order: signed bytes, or nibbles whose bias (zero point) is not
/// subtracted.
#[inline]
#[level(avx2)]
pub(crate) fn of_group<F: Group>(w: &[u8], at: usize) -> __m256i {
    match F::CODES {
        GroupCodes::Bytes { at: codes } => v::load256(w, at + codes),
        GroupCodes::Nibbles { at: codes, .. } => {
            let packed = v::load128(w, at + codes);
            let both = _mm256_set_m128i(_mm_srli_epi16::<4>(packed), packed);
            _mm256_and_si256(both, _mm256_set1_epi8(15))
        }
    }
}
