//! Portable slab kernels for weights in groups of 32 (Q4_0, Q8_0): loops over the
//! transposed rows, which the compiler vectorises as far as the target allows. Codes are
//! signed bytes whose bias is subtracted.

use super::{Slab, fold};
use crate::kernels::codes::scalar::of_group;
use crate::kernels::quantize::Groups;
use crate::kernels::slab::superblocks::Ahead;
use crate::simd::scalar::add;
use crate::simd::scalar::slab as v;
use muser_quant::{GROUP, Group};
use std::array::from_fn;

/// Unpacks eight groups (256 weights) of each row and transposes them to a slab, in
/// which each vector element holds one row's weights. Prefetches nothing.
pub(crate) fn transpose<F: Group, const B: usize>(
    rows: v::SlabRows<'_, B>,
    _: Ahead<'_>,
    to: &mut Slab<{ v::ROWS }>,
) {
    for r in 0..v::ROWS {
        let row: &[u8; B] = rows.bytes(r, 0);
        for (g, block) in row.chunks_exact(F::BYTES).enumerate() {
            let codes = of_group::<F>(block).map(i8::cast_unsigned);
            for (line, codes) in to.codes[8 * g..].iter_mut().zip(codes.as_chunks().0) {
                line[r] = *codes;
            }
            to.d[g][r] = F::factor(block);
        }
    }
}

/// Multiplies eight groups (256 weights) of `S` slabs (weight rows transposed, one
/// vector element per row) with `N` columns of activations and adds the products, eight
/// folded to one for each row and column, to `sums`. The activations of column n are
/// `x[n * apart]`.
#[expect(
    clippy::extra_unused_type_parameters,
    reason = "the `step` functions of all levels have the same signature"
)]
pub(crate) fn step<F: Group, const S: usize, const N: usize>(
    slabs: &[Slab<{ v::ROWS }>; S],
    x: &[Groups],
    apart: usize,
    sums: &mut [[[f32; v::ROWS]; S]; N],
) {
    for (n, sums) in sums.iter_mut().enumerate() {
        let x = &x[n * apart];
        for (slab, sums) in slabs.iter().zip(sums) {
            let p: [[f32; v::ROWS]; 8] = from_fn(|g| products(slab, x, g));
            for (r, sum) in sums.iter_mut().enumerate() {
                *sum += fold!(add, p.map(|p| p[r]));
            }
        }
    }
}

/// Computes the product of weight group `g` of each row with the activations `x`: the
/// integer dot product times both scales.
fn products(slab: &Slab<{ v::ROWS }>, x: &Groups, g: usize) -> [f32; v::ROWS] {
    let mut dots = [0i32; v::ROWS];
    let q = x.q[GROUP * g..][..GROUP].as_chunks::<4>().0;
    for (line, q) in slab.codes[8 * g..].iter().zip(q) {
        for (dot, codes) in dots.iter_mut().zip(line) {
            for (&code, &q) in codes.iter().zip(q) {
                *dot += i32::from(code.cast_signed()) * i32::from(q);
            }
        }
    }
    from_fn(|r| dots[r] as f32 * (slab.d[g][r] * x.d[g]))
}
