//! Slab kernels with AVX2 for weights in groups of 32 (Q4_0, Q8_0): unpacking to a slab
//! (weight rows transposed, one vector element per row) and multiplying. Transposing 16
//! bytes of each row makes 4 lines of bytes, or 8 lines of nibbles. Bytes stay signed;
//! the bias of nibbles is not subtracted.

use super::{Slab, fold};
use crate::kernels::quantize::Groups;
use crate::kernels::slab::superblocks::Ahead;
use crate::simd::avx2::slab as v;
use crate::simd::avx2::{add, load, load_f16, mul, splat, store};
use muser_levels::level;
use muser_quant::{Group, GroupCodes};
use std::arch::x86_64::*;
use std::array::from_fn;

/// Unpacks eight groups (256 weights) of each row and transposes them to a slab, in
/// which each vector element holds one row's weights.
#[inline]
#[level(avx2)]
pub(crate) fn transpose<F: Group, const B: usize>(
    rows: v::SlabRows<'_, B>,
    ahead: Ahead<'_>,
    to: &mut Slab<{ v::ROWS }>,
) {
    // The number of cache lines that the next slab's 256 weights of `ROWS` rows take.
    let lines = B * v::ROWS / 64;
    let nibble = _mm256_set1_epi8(15);
    for g in 0..8 {
        for line in lines * g / 8..lines * (g + 1) / 8 {
            v::prefetch_lines::<1>(ahead, line);
        }
        let block = g * F::BYTES;
        let codes = &mut to.codes[8 * g..][..8];
        match F::CODES {
            GroupCodes::Bytes { at } => {
                for half in 0..2 {
                    let lines = v::transpose4(rows, block + at + 16 * half);
                    for (to, line) in codes[4 * half..].iter_mut().zip(lines) {
                        v::store_line(to, line);
                    }
                }
            }
            GroupCodes::Nibbles { at, .. } => {
                for (e, packed) in v::transpose4(rows, block + at).into_iter().enumerate() {
                    let high = _mm256_srli_epi32::<4>(packed);
                    v::store_line(&mut codes[e], _mm256_and_si256(packed, nibble));
                    v::store_line(&mut codes[4 + e], _mm256_and_si256(high, nibble));
                }
            }
        }
        let mut halves = [0; v::ROWS];
        for (r, half) in halves.iter_mut().enumerate() {
            *half = u16::from_le_bytes(*rows.bytes(r, block));
        }
        store(&mut to.d[g], 0, load_f16(&halves, 0));
    }
}

/// Multiplies eight groups (256 weights) of `S` slabs (weight rows transposed, one
/// vector element per row) with `N` columns of activations and adds the products, eight
/// folded to one for each row and column, to `sums`. The activations of column n are
/// `x[n * apart]`.
#[inline]
#[level(avx2)]
pub(crate) fn step<F: Group, const S: usize, const N: usize>(
    slabs: &[Slab<{ v::ROWS }>; S],
    x: &[Groups],
    apart: usize,
    sums: &mut [[[f32; v::ROWS]; S]; N],
) {
    let x: [&Groups; N] = from_fn(|n| &x[n * apart]);
    for (s, slab) in slabs.iter().enumerate() {
        let mut p = [[splat(0.0); 8]; N];
        for g in 0..8 {
            let dots = dots::<F, N>(slab, x, g);
            let d = load(&slab.d[g], 0);
            for n in 0..N {
                let factor = mul(d, splat(x[n].d[g]));
                p[n][g] = mul(_mm256_cvtepi32_ps(dots[n]), factor);
            }
        }
        for n in 0..N {
            let sum = add(load(&sums[n][s], 0), fold!(add, p[n]));
            store(&mut sums[n][s], 0, sum);
        }
    }
}

/// Computes the integer dot products of weight group `g` of each row with each column of
/// activations, minus the bias (zero point) of the codes.
///
/// Sums of two products are added in i16: the sum of eight fits for nibbles, each at most
/// 2 · 15 · 127 = 3,810; only one fits for bytes, at most 2 · 128 · 127 = 32,512.
#[inline]
#[level(avx2)]
fn dots<F: Group, const N: usize>(
    slab: &Slab<{ v::ROWS }>,
    x: [&Groups; N],
    g: usize,
) -> [__m256i; N] {
    let ones = _mm256_set1_epi16(1);
    let mut sums = [_mm256_setzero_si256(); N];
    match F::CODES {
        GroupCodes::Bytes { .. } => {
            for k in 8 * g..8 * (g + 1) {
                let w = v::line(&slab.codes[k]);
                let magnitude = _mm256_abs_epi8(w);
                for n in 0..N {
                    let q = _mm256_sign_epi8(v::quad(&x[n].q, k), w);
                    let quads = _mm256_madd_epi16(_mm256_maddubs_epi16(magnitude, q), ones);
                    sums[n] = _mm256_add_epi32(sums[n], quads);
                }
            }
        }
        GroupCodes::Nibbles { bias, .. } => {
            for k in 8 * g..8 * (g + 1) {
                let w = v::line(&slab.codes[k]);
                for n in 0..N {
                    let pairs = _mm256_maddubs_epi16(w, v::quad(&x[n].q, k));
                    sums[n] = _mm256_add_epi16(sums[n], pairs);
                }
            }
            for n in 0..N {
                let bias = i32::from(bias) * i32::from(x[n].sums[g]);
                let wide = _mm256_madd_epi16(sums[n], ones);
                sums[n] = _mm256_sub_epi32(wide, _mm256_set1_epi32(bias));
            }
        }
    }
    sums
}
