//! Quantises f32 activations to int8 codes with AVX-512, in vectors of 16.
//!
//! `vpmovsdb` narrows with saturation, which also computes the `min(127, …)` of the
//! contract. `vpdpbusd` with ones sums four codes at once.

use super::{Block, Groups};
use crate::simd::avx512 as v;
use muser_levels::level;
use muser_quant::{GROUP, QK};
use std::arch::x86_64::*;

/// Quantises 256 f32 activations to one Q8_K block: int8 codes with one scale.
#[level(avx512)]
pub(crate) fn quantize(x: &[f32; QK]) -> Block {
    let magnitude = _mm512_set1_epi32(0x7fff_ffff);
    let mut top = _mm512_setzero_si512();
    for at in (0..QK).step_by(16) {
        let bits = _mm512_and_si512(_mm512_castps_si512(v::load(x, at)), magnitude);
        top = _mm512_max_epu32(top, bits);
    }
    let max_bits = _mm512_reduce_max_epu32(top);
    if let Some(block) = Block::special(max_bits) {
        return block;
    }
    let iscale = -127.0 / first_of_magnitude(x, max_bits);
    let mut block = Block::zeros(1.0 / iscale);
    let factor = _mm512_set1_ps(iscale);
    for at in (0..QK).step_by(16) {
        let scaled = _mm512_mul_ps(v::load(x, at), factor);
        let q = _mm512_cvtsepi32_epi8(_mm512_cvtps_epi32(scaled));
        v::store_codes16(&mut block.q, at, q);
    }
    let ones = _mm512_set1_epi8(1);
    for at in (0..QK).step_by(64) {
        let codes = v::load_codes(&block.q, at);
        let quads = _mm512_dpbusd_epi32(_mm512_setzero_si512(), ones, codes);
        let sums = v::sum_quarters(quads);
        let sums = [
            _mm_extract_epi32::<0>(sums),
            _mm_extract_epi32::<1>(sums),
            _mm_extract_epi32::<2>(sums),
            _mm_extract_epi32::<3>(sums),
        ];
        for (s, sum) in block.sums16[at / 16..][..4].iter_mut().zip(sums) {
            *s = sum as i16;
        }
    }
    block.pair_sums();
    block
}

/// Finds the first of 256 values whose magnitude |x| has the f32 bits `max_bits`.
#[inline]
#[level(avx512)]
fn first_of_magnitude(x: &[f32; QK], max_bits: u32) -> f32 {
    let want = _mm512_set1_epi32(max_bits.cast_signed());
    let magnitude = _mm512_set1_epi32(0x7fff_ffff);
    for at in (0..QK).step_by(16) {
        let bits = _mm512_and_si512(_mm512_castps_si512(v::load(x, at)), magnitude);
        let mask = _mm512_cmpeq_epi32_mask(bits, want);
        if mask != 0 {
            return x[at + mask.trailing_zeros() as usize];
        }
    }
    0.0
}

/// Quantises 256 f32 activations to eight Q8 groups: 32 int8 codes and a scale each.
#[level(avx512)]
pub(crate) fn quantize_groups(x: &[f32; QK]) -> Groups {
    let magnitude = _mm512_set1_epi32(0x7fff_ffff);
    let mut out = Groups::ZERO;
    for g in 0..QK / GROUP {
        let at = GROUP * g;
        let (low, high) = (v::load(x, at), v::load(x, at + 16));
        let low_bits = _mm512_and_si512(_mm512_castps_si512(low), magnitude);
        let high_bits = _mm512_and_si512(_mm512_castps_si512(high), magnitude);
        let max_bits = _mm512_reduce_max_epu32(_mm512_max_epu32(low_bits, high_bits));
        let Some(iscale) = out.scale(g, max_bits) else {
            continue;
        };
        let factor = _mm512_set1_ps(iscale);
        for (half, values) in [low, high].into_iter().enumerate() {
            let scaled = _mm512_mul_ps(values, factor);
            let q = _mm512_cvtsepi32_epi8(_mm512_cvtps_epi32(scaled));
            v::store_codes16(&mut out.q, at + 16 * half, q);
        }
    }
    let ones = _mm512_set1_epi8(1);
    for at in (0..QK).step_by(64) {
        let codes = v::load_codes(&out.q, at);
        // Four sums of 16 codes, two for each of two groups.
        let sums = v::sum_quarters(_mm512_dpbusd_epi32(_mm512_setzero_si512(), ones, codes));
        let g = at / GROUP;
        out.sums[g] = (_mm_extract_epi32::<0>(sums) + _mm_extract_epi32::<1>(sums)) as i16;
        out.sums[g + 1] = (_mm_extract_epi32::<2>(sums) + _mm_extract_epi32::<3>(sums)) as i16;
    }
    out
}
