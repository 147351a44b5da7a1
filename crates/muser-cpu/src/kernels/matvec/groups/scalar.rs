//! Multiplies rows of weights in groups of 32 (Q4_0, Q8_0) by one vector, in portable
//! code.

use super::FOLD;
use crate::kernels::codes::scalar::of_group;
use crate::kernels::quantize::Groups;
use crate::rows::Tile;
use muser_quant::{GROUP, Group, QK};

/// Computes one tile of a matrix product: rows `w` of `cols` weights in groups of 32,
/// times `columns` vectors of Q8 activations.
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
fn row<F: Group, const B: usize>(w: &[u8], x: &[Groups]) -> f32 {
    let mut acc = 0.0;
    for (w, x) in w.chunks(B).zip(x) {
        let mut p = [0.0f32; FOLD];
        for (g, block) in w.chunks_exact(F::BYTES).enumerate() {
            let codes = of_group::<F>(block);
            let products = codes.iter().zip(&x.q[GROUP * g..][..GROUP]);
            let sum: i32 = products.map(|(&c, &q)| i32::from(c) * i32::from(q)).sum();
            p[g] = sum as f32 * (F::factor(block) * x.d[g]);
        }
        for width in [4, 2, 1] {
            for g in 0..width {
                p[g] += p[g + width];
            }
        }
        acc += p[0];
    }
    acc
}
