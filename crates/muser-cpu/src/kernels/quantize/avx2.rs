//! Quantises f32 activations to int8 codes with AVX2, in vectors of 8.
//!
//! `vcvtps2dq` rounds to nearest even, as the definition of the bits demands. The
//! product before it is a separate multiplication, never an fma.

use super::{Block, Groups};
use crate::simd::avx2 as v;
use muser_levels::level;
use muser_quant::{GROUP, QK};
use std::arch::x86_64::*;

/// Quantises 256 f32 activations to one Q8_K block: int8 codes with one scale.
#[level(avx2)]
pub(crate) fn quantize(x: &[f32; QK]) -> Block {
    let magnitude = _mm256_set1_epi32(0x7fff_ffff);
    let mut top = _mm256_setzero_si256();
    for at in (0..QK).step_by(8) {
        let bits = _mm256_and_si256(_mm256_castps_si256(v::load(x, at)), magnitude);
        top = _mm256_max_epu32(top, bits);
    }
    let max_bits = largest(top);
    if let Some(block) = Block::special(max_bits) {
        return block;
    }
    let iscale = -127.0 / first_of_magnitude(x, max_bits);
    let mut block = Block::zeros(1.0 / iscale);
    let factor = _mm256_set1_ps(iscale);
    let order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    for at in (0..QK).step_by(32) {
        let mut i = [_mm256_setzero_si256(); 4];
        for (j, i) in i.iter_mut().enumerate() {
            let scaled = _mm256_mul_ps(v::load(x, at + 8 * j), factor);
            *i = _mm256_min_epi32(_mm256_cvtps_epi32(scaled), _mm256_set1_epi32(127));
        }
        let low = _mm256_packs_epi32(i[0], i[1]);
        let high = _mm256_packs_epi32(i[2], i[3]);
        // The pack instructions work within 128-bit halves; the permutation puts the
        // eight parts in order.
        let q = _mm256_permutevar8x32_epi32(_mm256_packs_epi16(low, high), order);
        v::store_codes(&mut block.q, at, q);
        let pairs = _mm256_maddubs_epi16(_mm256_set1_epi8(1), q);
        let quads = _mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
        let s = _mm256_hadd_epi32(quads, quads);
        let s = _mm256_hadd_epi32(s, s);
        block.sums16[at / 16] = _mm256_extract_epi32::<0>(s) as i16;
        block.sums16[at / 16 + 1] = _mm256_extract_epi32::<4>(s) as i16;
    }
    block.pair_sums();
    block
}

/// Finds the first of 256 values whose magnitude |x| has the f32 bits `max_bits`.
#[inline]
#[level(avx2)]
fn first_of_magnitude(x: &[f32; QK], max_bits: u32) -> f32 {
    let want = _mm256_set1_epi32(max_bits.cast_signed());
    let magnitude = _mm256_set1_epi32(0x7fff_ffff);
    for at in (0..QK).step_by(8) {
        let bits = _mm256_and_si256(_mm256_castps_si256(v::load(x, at)), magnitude);
        let equal = _mm256_castsi256_ps(_mm256_cmpeq_epi32(bits, want));
        let mask = _mm256_movemask_ps(equal);
        if mask != 0 {
            return x[at + mask.trailing_zeros() as usize];
        }
    }
    0.0
}

/// Quantises 256 f32 activations to eight Q8 groups: 32 int8 codes and a scale each.
#[level(avx2)]
pub(crate) fn quantize_groups(x: &[f32; QK]) -> Groups {
    let magnitude = _mm256_set1_epi32(0x7fff_ffff);
    let order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    let mut out = Groups::ZERO;
    for g in 0..QK / GROUP {
        let at = GROUP * g;
        let mut top = _mm256_setzero_si256();
        for j in 0..4 {
            let bits = _mm256_castps_si256(v::load(x, at + 8 * j));
            top = _mm256_max_epu32(top, _mm256_and_si256(bits, magnitude));
        }
        let Some(iscale) = out.scale(g, largest(top)) else {
            continue;
        };
        let factor = _mm256_set1_ps(iscale);
        let mut i = [_mm256_setzero_si256(); 4];
        for (j, i) in i.iter_mut().enumerate() {
            *i = _mm256_cvtps_epi32(_mm256_mul_ps(v::load(x, at + 8 * j), factor));
        }
        let low = _mm256_packs_epi32(i[0], i[1]);
        let high = _mm256_packs_epi32(i[2], i[3]);
        let q = _mm256_permutevar8x32_epi32(_mm256_packs_epi16(low, high), order);
        v::store_codes(&mut out.q, at, q);
        let pairs = _mm256_maddubs_epi16(_mm256_set1_epi8(1), q);
        let quads = _mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
        let s = _mm256_hadd_epi32(quads, quads);
        let s = _mm256_hadd_epi32(s, s);
        out.sums[g] = (_mm256_extract_epi32::<0>(s) + _mm256_extract_epi32::<4>(s)) as i16;
    }
    out
}

/// Returns the largest of the eight u32 in a vector.
#[inline]
#[level(avx2)]
fn largest(top: __m256i) -> u32 {
    let four = _mm_max_epu32(
        _mm256_castsi256_si128(top),
        _mm256_extracti128_si256::<1>(top),
    );
    let two = _mm_max_epu32(four, _mm_shuffle_epi32::<0b01_00_11_10>(four));
    let one = _mm_max_epu32(two, _mm_shuffle_epi32::<0b10_11_00_01>(two));
    _mm_cvtsi128_si32(one).cast_unsigned()
}
