//! Unpacks the codes of quantised weights with AVX-512, in vectors of 64 codes.
//!
//! A load broadcasts 32 packed bytes to both halves of a register, a variable shift moves
//! the high nibbles of the upper half down, and a mask leaves 64 codes in natural order,
//! so that activations need no permutation. Bits that are stored separately are shifted
//! in the same way and merged by a ternary logic instruction.

use crate::simd::avx2::load128;
use crate::simd::avx512 as v;
use muser_levels::level;
use muser_quant::{Group, GroupCodes, SuperCodes, Superblock};
use std::arch::x86_64::*;

/// Unpacks the 256 quantised values (codes) of a superblock of weights, in natural
/// order; their bias (zero point) is not subtracted.
#[inline]
#[level(avx512)]
pub(crate) fn of_superblock<F: Superblock, const B: usize>(w: &[u8; B]) -> [__m512i; 4] {
    match F::CODES {
        SuperCodes::Nibbles => nibbles(w),
        SuperCodes::NibblesAndBits => nibbles_and_bits(w),
        SuperCodes::NibblesAndPairs => nibbles_and_pairs(w),
    }
}

/// Unpacks the 256 quantised values (codes) of a Q4_K superblock, stored as nibbles.
#[inline]
#[level(avx512)]
fn nibbles<const B: usize>(w: &[u8; B]) -> [__m512i; 4] {
    let shift = _mm512_setr_epi64(0, 0, 0, 0, 4, 4, 4, 4);
    let nibble = _mm512_set1_epi8(15);
    let mut out = [_mm512_setzero_si512(); 4];
    for (g, out) in out.iter_mut().enumerate() {
        let packed = _mm512_broadcast_i64x4(v::load256(w, 16 + 32 * g));
        *out = _mm512_and_si512(_mm512_srlv_epi64(packed, shift), nibble);
    }
    out
}

/// Unpacks the 256 quantised values (codes) of a Q5_K superblock, stored as nibbles and
/// separate fifth bits.
#[inline]
#[level(avx512)]
fn nibbles_and_bits<const B: usize>(w: &[u8; B]) -> [__m512i; 4] {
    let shift = _mm512_setr_epi64(0, 0, 0, 0, 4, 4, 4, 4);
    let nibble = _mm512_set1_epi8(15);
    let high = _mm512_broadcast_i64x4(v::load256(w, 16));
    let bit4 = _mm512_set1_epi8(16);
    // Moves bit 2 g (lower half) and bit 2 g + 1 (upper half) to bit 4.
    let fifth = [
        _mm512_sllv_epi64(high, _mm512_setr_epi64(4, 4, 4, 4, 3, 3, 3, 3)),
        _mm512_sllv_epi64(high, _mm512_setr_epi64(2, 2, 2, 2, 1, 1, 1, 1)),
        _mm512_srlv_epi64(high, _mm512_setr_epi64(0, 0, 0, 0, 1, 1, 1, 1)),
        _mm512_srlv_epi64(high, _mm512_setr_epi64(2, 2, 2, 2, 3, 3, 3, 3)),
    ];
    let mut out = [_mm512_setzero_si512(); 4];
    for g in 0..4 {
        let packed = _mm512_broadcast_i64x4(v::load256(w, 48 + 32 * g));
        let low = _mm512_and_si512(_mm512_srlv_epi64(packed, shift), nibble);
        // low | (fifth & 16)
        out[g] = _mm512_ternarylogic_epi64::<0b1111_1000>(low, fifth[g], bit4);
    }
    out
}

/// Unpacks the 256 quantised values (codes, `0..=63`) of a Q6_K superblock, stored as
/// nibbles and separate pairs of bits.
#[inline]
#[level(avx512)]
fn nibbles_and_pairs<const B: usize>(w: &[u8; B]) -> [__m512i; 4] {
    let nibble = _mm512_set1_epi8(15);
    let pair = _mm512_set1_epi8(0x30);
    let mut out = [_mm512_setzero_si512(); 4];
    for h in 0..2 {
        let low = v::load512(w, 64 * h);
        let high = _mm512_broadcast_i64x4(v::load256(w, 128 + 32 * h));
        // Moves bits 1..0 (lower half) and 3..2 (upper half) to bits 5..4; `second` does
        // so with bits 5..4 and 7..6.
        let first = _mm512_sllv_epi64(high, _mm512_setr_epi64(4, 4, 4, 4, 2, 2, 2, 2));
        let second = _mm512_srlv_epi64(high, _mm512_setr_epi64(0, 0, 0, 0, 2, 2, 2, 2));
        let low_nibbles = _mm512_and_si512(low, nibble);
        let high_nibbles = _mm512_and_si512(_mm512_srli_epi16::<4>(low), nibble);
        // nibble | (bits & 0x30)
        out[2 * h] = _mm512_ternarylogic_epi64::<0b1111_1000>(low_nibbles, first, pair);
        out[2 * h + 1] = _mm512_ternarylogic_epi64::<0b1111_1000>(high_nibbles, second, pair);
    }
    out
}

/// Unpacks the 64 quantised values (codes) of two weight groups, which begin at the
/// bytes `first` and `second`, in natural order. The codes are unsigned: their zero
/// point [`bias`] is not subtracted.
#[inline]
#[level(avx512)]
pub(crate) fn of_two_groups<F: Group>(w: &[u8], first: usize, second: usize) -> __m512i {
    match F::CODES {
        GroupCodes::Bytes { at } => {
            let low = _mm512_castsi256_si512(v::load256(w, first + at));
            let both = _mm512_inserti64x4::<1>(low, v::load256(w, second + at));
            _mm512_xor_si512(both, _mm512_set1_epi8(i8::MIN))
        }
        GroupCodes::Nibbles { at, .. } => {
            let low = _mm256_broadcastsi128_si256(load128(w, first + at));
            let high = _mm256_broadcastsi128_si256(load128(w, second + at));
            let both = _mm512_inserti64x4::<1>(_mm512_castsi256_si512(low), high);
            let shift = _mm512_setr_epi64(0, 0, 4, 4, 0, 0, 4, 4);
            _mm512_and_si512(_mm512_srlv_epi64(both, shift), _mm512_set1_epi8(15))
        }
    }
}

/// Returns the bias (zero point) to subtract from the unsigned weight codes of
/// [`of_two_groups`]. Codes are unsigned because VNNI multiplies unsigned bytes with
/// signed ones.
pub(crate) const fn bias<F: Group>() -> i32 {
    match F::CODES {
        GroupCodes::Bytes { .. } => 128,
        GroupCodes::Nibbles { bias, .. } => bias as i32,
    }
}
