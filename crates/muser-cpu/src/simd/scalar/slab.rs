//! Portable functions for slabs (superblocks of eight weight rows, transposed so that
//! each element of a line holds one row's weights): the transposition and the product.

use crate::kernels::quantize::Block;
use crate::kernels::slab::superblocks::{Chains, Slab, link};
use crate::simd::strided::Strided;
use crate::unpacked::Unpacked;
use muser_quant::Superblock;
use std::array::from_fn;

/// The number of weight rows that are transposed to one slab, one vector element per
/// row, at the scalar level.
pub(crate) const ROWS: usize = 8;
/// The number of slabs (weight rows transposed, one vector element per row) that are
/// multiplied side by side in a wide batch at the scalar level.
pub(crate) const SLABS: usize = 1;

/// The number of activation columns that are multiplied with a slab (weight rows
/// transposed, one vector element per row) together at the scalar level.
pub(crate) const COLUMNS: usize = 4;

/// The packed bytes of the weight rows that are transposed to one slab.
pub(crate) type SlabRows<'a, const B: usize> = Strided<'a, ROWS, B>;

/// Unpacks a superblock (256 weights) of each row and transposes it to a slab, in which
/// each element of a line holds one row's weights.
pub(crate) fn transpose<const B: usize>(
    rows: SlabRows<'_, B>,
    unpack: impl Fn(&[u8; B], &mut Unpacked),
    to: &mut Slab<ROWS>,
) {
    let mut row = Unpacked::ZERO;
    for r in 0..ROWS {
        unpack(rows.bytes(r, 0), &mut row);
        for (line, &codes) in to.codes.iter_mut().zip(&row.codes) {
            line[r] = codes;
        }
        for (line, &scale) in to.scales.iter_mut().zip(&row.scales) {
            line[r] = scale;
        }
        for (line, &pair) in to.pairs.iter_mut().zip(&row.pairs) {
            line[r] = pair;
        }
        (to.d[r], to.dmin[r]) = (row.d, row.dmin);
    }
}

/// Multiplies one superblock (256 weights) of `S` slabs (weight rows transposed, one
/// vector element per row) with `N` columns of activations and adds the results to the
/// rows' running f32 sums. The activations of column n are `x[n * apart]`.
pub(crate) fn step<F: Superblock, const S: usize, const N: usize, const LINK: u8>(
    slabs: &[Slab<ROWS>; S],
    x: &[Block],
    apart: usize,
    chains: &mut [[Chains<ROWS>; S]; N],
) {
    let x: [&Block; N] = from_fn(|n| &x[n * apart]);
    for (x, chains) in x.into_iter().zip(chains) {
        for (slab, chains) in slabs.iter().zip(chains) {
            step_one::<F, LINK>(slab, x, chains);
        }
    }
}

/// Multiplies one superblock (256 weights) of a slab (weight rows transposed, one
/// vector element per row) with one column of activations and adds the results to the
/// rows' running f32 sums.
fn step_one<F: Superblock, const LINK: u8>(
    slab: &Slab<ROWS>,
    x: &Block,
    [acc, accm]: &mut Chains<ROWS>,
) {
    // The number of parts of a superblock that are added to the running sum by
    // themselves.
    let parts = if LINK == link::FOURS { 4 } else { 1 };
    for part in 0..parts {
        let sums = scaled_sums::<F>(slab, x, part, parts);
        let mins = minima::<F>(slab, x, part, parts);
        for r in 0..ROWS {
            let (sum, min) = match F::SIGNED {
                true => (sums[r] - (mins[r] << 5), 0.0),
                false => (sums[r], mins[r] as f32),
            };
            let (sum, d, dmin) = (sum as f32, slab.d[r], slab.dmin[r]);
            if LINK == link::TILED {
                let mut value = sum * d;
                if !F::SIGNED {
                    value = (-dmin).mul_add(min, value);
                }
                acc[r] = value.mul_add(x.d, acc[r]);
                continue;
            }
            acc[r] = sum.mul_add(d * x.d, acc[r]);
            if !F::SIGNED {
                accm[r] = min.mul_add(dmin * x.d, accm[r]);
            }
        }
    }
}

/// Computes Σ_j s_j · a_j for each row, over one part (number `part` of `parts`) of a
/// superblock. s_j: the scale of sub-block j; a_j: the integer dot product of its codes
/// with the activations.
fn scaled_sums<F: Superblock>(
    slab: &Slab<ROWS>,
    x: &Block,
    part: usize,
    parts: usize,
) -> [i32; ROWS] {
    let (words, each) = (64 / F::SUB_BLOCKS, F::SUB_BLOCKS / parts);
    let mut sums = [0; ROWS];
    for j in part * each..(part + 1) * each {
        let mut products = [0; ROWS];
        for k in j * words..(j + 1) * words {
            let q = &x.q[4 * k..][..4];
            for (product, codes) in products.iter_mut().zip(&slab.codes[k]) {
                for (&code, &q) in codes.iter().zip(q) {
                    *product += i32::from(code) * i32::from(q);
                }
            }
        }
        for r in 0..ROWS {
            sums[r] += products[r] * slab.scales[j][r];
        }
    }
    sums
}

/// Computes, for each row, the sum of minima times sums of activations over one part
/// (number `part` of `parts`) of a superblock. For Q6_K, scales take the place of
/// minima.
fn minima<F: Superblock>(slab: &Slab<ROWS>, x: &Block, part: usize, parts: usize) -> [i32; ROWS] {
    let sums: &[i16] = if F::SIGNED { &x.sums16 } else { &x.sums32 };
    let each = if F::SIGNED { 8 } else { 4 } / parts;
    let mut mins = [0; ROWS];
    for t in part * each..(part + 1) * each {
        let (a, b) = (i32::from(sums[2 * t]), i32::from(sums[2 * t + 1]));
        for (min, pair) in mins.iter_mut().zip(&slab.pairs[t]) {
            *min += i32::from(pair[0]) * a + i32::from(pair[1]) * b;
        }
    }
    mins
}
