//! Multiplies rows of weights in groups of 32 (Q4_0, Q8_0) by one vector with AVX2.
//!
//! Each group takes a load and, for nibbles, three instructions; then `vpmaddubsw` and
//! `vpmaddwd` (bytes: also `vpabsb` and `vpsignb`). Eight groups together take 9
//! instructions for the horizontal sums, 8 insertions for the factors, 3 multiplications
//! and conversions, and 6 for the fold.

use super::{AHEAD, filled};
use crate::kernels::codes::avx2::of_group;
use crate::kernels::quantize::Groups;
use crate::rows::Tile;
use crate::simd::avx2::{self as v, prefetch};
use muser_levels::level;
use muser_quant::{GROUP, Group, GroupCodes, QK};
use std::arch::x86_64::*;

/// Computes one tile of a matrix product: rows `w` of `cols` weights in groups of 32,
/// times `columns` vectors of Q8 activations.
#[level(avx2)]
pub(crate) fn matvec<F: Group, const B: usize>(
    w: &[u8],
    x: &[Groups],
    cols: usize,
    columns: usize,
    tile: &mut Tile<'_>,
) {
    let row_bytes = cols / GROUP * F::BYTES;
    for (c, x) in x.chunks_exact(cols.div_ceil(QK)).take(columns).enumerate() {
        for r in 0..tile.rows() {
            let value = row::<F, B>(&w[r * row_bytes..][..row_bytes], x);
            tile.set(c, r, &[value]);
        }
    }
}

/// Computes the dot product of one row of weights with one column of Q8 activations.
#[inline]
#[level(avx2)]
fn row<F: Group, const B: usize>(w: &[u8], x: &[Groups]) -> f32 {
    let (folds, left) = w.as_chunks::<B>();
    let mut acc = 0.0;
    for (w, x) in folds.iter().zip(x) {
        prefetch(w, AHEAD, B);
        acc += fold::<F, B>(w, x);
    }
    if !left.is_empty() {
        acc += fold::<F, B>(&filled(left), &x[folds.len()]);
    }
    acc
}

/// Computes the products of eight groups (256 weights) with activations and adds the
/// eight by halves to one f32.
#[inline]
#[level(avx2)]
fn fold<F: Group, const B: usize>(w: &[u8; B], x: &Groups) -> f32 {
    let mut sums = [_mm256_setzero_si256(); 8];
    for (g, sum) in sums.iter_mut().enumerate() {
        let codes = of_group::<F>(w, g * F::BYTES);
        *sum = dot::<F>(codes, v::load_codes(&x.q, GROUP * g));
    }
    let sums = match F::CODES {
        GroupCodes::Bytes { .. } => v::sum8(sums),
        GroupCodes::Nibbles { bias, .. } => less_bias(v::sum8(sums), x, i32::from(bias)),
    };
    folded::<F, B>(sums, w, x)
}

/// Multiplies the 32 quantised values (codes) of a weight group with 32 quantised
/// activations. Each of the 8 elements of the result is the sum of four products.
#[inline]
#[level(avx2)]
fn dot<F: Group>(codes: __m256i, q: __m256i) -> __m256i {
    let pairs = match F::CODES {
        GroupCodes::Bytes { .. } => {
            _mm256_maddubs_epi16(_mm256_abs_epi8(codes), _mm256_sign_epi8(q, codes))
        }
        GroupCodes::Nibbles { .. } => _mm256_maddubs_epi16(codes, q),
    };
    _mm256_madd_epi16(pairs, _mm256_set1_epi16(1))
}

/// Subtracts the bias (zero point) of the quantised weights, times the sum of the
/// quantised activations, from the integer sum of each of eight groups.
#[inline]
#[level(avx2)]
pub(crate) fn less_bias(sums: __m256i, x: &Groups, bias: i32) -> __m256i {
    let of_codes = _mm256_cvtepi16_epi32(v::load_sums8(&x.sums));
    _mm256_sub_epi32(sums, _mm256_mullo_epi32(of_codes, _mm256_set1_epi32(bias)))
}

/// Computes f32(S) · (d · y) for eight groups, one in each element, and adds the products
/// by halves. S: the group's integer sum; d and y: the scales of its weights and
/// activations.
#[inline]
#[level(avx2)]
pub(crate) fn folded<F: Group, const B: usize>(sums: __m256i, w: &[u8; B], x: &Groups) -> f32 {
    let mut halves = [0; 8];
    for (g, half) in halves.iter_mut().enumerate() {
        *half = u16::from_le_bytes([w[g * F::BYTES], w[g * F::BYTES + 1]]);
    }
    let factors = v::mul(v::load_f16(&halves, 0), v::load(&x.d, 0));
    v::halve(v::mul(_mm256_cvtepi32_ps(sums), factors))
}
