//! Multiplies rows of weights in groups of 32 (Q4_0, Q8_0) by one vector with AVX-512 and
//! VNNI.
//!
//! Eight groups of a row are four vectors of two groups, with a `vpdpbusd` each. 13
//! instructions compute the eight horizontal sums. The rest is the code of avx2, whose
//! vectors have an element for each of the eight groups.

use super::{AHEAD, filled};
use crate::kernels::codes::avx512::{bias, of_two_groups};
use crate::kernels::matvec::groups::avx2::{folded, less_bias};
use crate::kernels::quantize::Groups;
use crate::rows::Tile;
use crate::simd::avx2::prefetch;
use crate::simd::avx512 as v;
use muser_levels::level;
use muser_quant::{GROUP, Group, QK};
use std::arch::x86_64::*;

/// Computes one tile of a matrix product: rows `w` of `cols` weights in groups of 32,
/// times `columns` vectors of Q8 activations.
#[level(avx512)]
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
#[level(avx512)]
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
#[level(avx512)]
fn fold<F: Group, const B: usize>(w: &[u8; B], x: &Groups) -> f32 {
    let mut quads = [_mm512_setzero_si512(); 4];
    for (k, quads) in quads.iter_mut().enumerate() {
        let (first, second) = (2 * k * F::BYTES, (2 * k + 1) * F::BYTES);
        let codes = of_two_groups::<F>(w, first, second);
        *quads = _mm512_dpbusd_epi32(*quads, codes, v::load_codes(&x.q, 2 * GROUP * k));
    }
    folded::<F, B>(less_bias(v::sum_halves(quads), x, bias::<F>()), w, x)
}
