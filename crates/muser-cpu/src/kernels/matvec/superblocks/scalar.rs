//! Multiplies rows of weights in superblocks of 256 by vectors in portable code: a
//! superblock is unpacked once for all columns.

use crate::kernels::codes::scalar::unpack;
use crate::kernels::quantize::Block;
use crate::rows::Tile;
use crate::unpacked::Unpacked;
use muser_quant::{QK, Superblock};

/// Computes one tile of a matrix product: rows `w` of `blocks` superblocks of 256
/// weights, times `columns` vectors of Q8_K activations.
pub(crate) fn matvec<F: Superblock, const B: usize>(
    w: &[u8],
    x: &[Block],
    blocks: usize,
    columns: usize,
    tile: &mut Tile<'_>,
) {
    let row_bytes = blocks * B;
    let mut chains = vec![[0.0f32; 2]; columns];
    let mut block = Unpacked::ZERO;
    for r in 0..tile.rows() {
        chains.fill([0.0; 2]);
        let row = w[r * row_bytes..][..row_bytes].as_chunks::<B>().0;
        for (b, bytes) in row.iter().enumerate() {
            unpack::<F, B>(bytes, &mut block);
            for (c, [acc, accm]) in chains.iter_mut().enumerate() {
                let x = &x[c * blocks + b];
                let (sum, min) = dot::<F>(&block, x);
                *acc = (sum as f32).mul_add(block.d * x.d, *acc);
                if !F::SIGNED {
                    *accm = (min as f32).mul_add(block.dmin * x.d, *accm);
                }
            }
        }
        for (c, [acc, accm]) in chains.iter().enumerate() {
            let value = if F::SIGNED { *acc } else { acc - accm };
            tile.set(c, r, &[value]);
        }
    }
}

/// Computes the two integer sums of one superblock (256 weights) with activations: S, of
/// scaled products, with the codes' bias (zero point) subtracted, and M, of minima times
/// the activations' sums.
fn dot<F: Superblock>(block: &Unpacked, x: &Block) -> (i32, i32) {
    let each = QK / F::SUB_BLOCKS;
    let codes = block.codes.as_flattened().chunks_exact(each);
    let sub_blocks = codes.zip(x.q.chunks_exact(each)).zip(&block.scales);
    let mut sum = 0;
    for ((codes, q), scale) in sub_blocks {
        let products = codes.iter().zip(q);
        let dot: i32 = products.map(|(&c, &q)| i32::from(c) * i32::from(q)).sum();
        sum += scale * dot;
    }
    let sums: &[i16] = if F::SIGNED { &x.sums16 } else { &x.sums32 };
    let pairs = block.pairs.as_flattened().iter().zip(sums);
    let met: i32 = pairs.map(|(&p, &s)| i32::from(p) * i32::from(s)).sum();
    match F::SIGNED {
        true => (sum - (met << 5), 0),
        false => (sum, met),
    }
}
