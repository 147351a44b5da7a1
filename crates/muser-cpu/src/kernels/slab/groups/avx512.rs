//! Slab kernels with AVX-512 and VNNI for weights in groups of 32 (Q4_0, Q8_0):
//! unpacking to a slab (weight rows transposed, one vector element per row) and
//! multiplying. Transposing 16 bytes of each row makes 4 packed lines, transposing 32
//! bytes makes 8. Codes are unsigned: the bias [`bias`] is not subtracted.

use super::{Slab, fold};
use crate::kernels::codes::avx512::bias;
use crate::kernels::quantize::Groups;
use crate::kernels::slab::superblocks::Ahead;
use crate::simd::avx512::slab as v;
use crate::simd::avx512::{add, load, load_f16, mul, splat, store};
use muser_levels::level;
use muser_quant::{Group, GroupCodes};
use std::arch::x86_64::*;

/// Unpacks eight groups (256 weights) of each row and transposes them to a slab, in
/// which each vector element holds one row's weights.
#[inline]
#[level(avx512)]
pub(crate) fn transpose<F: Group, const B: usize>(
    rows: v::SlabRows<'_, B>,
    ahead: Ahead<'_>,
    to: &mut Slab<{ v::ROWS }>,
) {
    // The number of cache lines that the next slab's 256 weights of `ROWS` rows take.
    let lines = B * v::ROWS / 64;
    let nibble = _mm512_set1_epi8(15);
    let sign = _mm512_set1_epi8(i8::MIN);
    for g in 0..8 {
        for line in lines * g / 8..lines * (g + 1) / 8 {
            v::prefetch_lines::<1>(ahead, line);
        }
        v::prefetch_next_block::<B, 2>(rows, 2 * g);
        let block = g * F::BYTES;
        let codes = &mut to.codes[8 * g..][..8];
        match F::CODES {
            GroupCodes::Bytes { at } => {
                for (to, line) in codes.iter_mut().zip(v::transpose8(rows, block + at)) {
                    v::store_line(to, _mm512_xor_si512(line, sign));
                }
            }
            GroupCodes::Nibbles { at, .. } => {
                for (e, packed) in v::transpose4(rows, block + at).into_iter().enumerate() {
                    let high = _mm512_srli_epi32::<4>(packed);
                    v::store_line(&mut codes[e], _mm512_and_si512(packed, nibble));
                    v::store_line(&mut codes[4 + e], _mm512_and_si512(high, nibble));
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
#[level(avx512)]
pub(crate) fn step<F: Group, const S: usize, const N: usize>(
    slabs: &[Slab<{ v::ROWS }>; S],
    x: &[Groups],
    apart: usize,
    sums: &mut [[[f32; v::ROWS]; S]; N],
) {
    let x = v::Columns::<Groups, N>::new(x, apart);
    let mut p = [[[splat(0.0); 8]; N]; S];
    for g in 0..8 {
        let mut dots = [[_mm512_setzero_si512(); N]; S];
        for k in 8 * g..8 * (g + 1) {
            let mut w = [_mm512_setzero_si512(); S];
            for s in 0..S {
                w[s] = v::line(&slabs[s].codes[k]);
            }
            v::dot_codes(&mut dots, w, x, 4 * k);
        }
        for s in 0..S {
            let d = load(&slabs[s].d[g], 0);
            for n in 0..N {
                let x = x.block(n);
                let too_large = _mm512_set1_epi32(bias::<F>() * i32::from(x.sums[g]));
                let dot = _mm512_sub_epi32(dots[s][n], too_large);
                p[s][n][g] = mul(_mm512_cvtepi32_ps(dot), mul(d, splat(x.d[g])));
            }
        }
    }
    for s in 0..S {
        for n in 0..N {
            let sum = add(load(&sums[n][s], 0), fold!(add, p[s][n]));
            store(&mut sums[n][s], 0, sum);
        }
    }
}
