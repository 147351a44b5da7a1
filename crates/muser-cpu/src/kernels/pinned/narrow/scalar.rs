//! Multiplies a weight row by a narrow batch (one to seven columns) in the pinned lane
//! (llama.cpp's arithmetic), in portable code.

use super::minima;
use crate::kernels::codes::scalar::unpack;
use crate::kernels::quantize::Block;
use crate::unpacked::Unpacked;
use muser_quant::Superblock;

/// Computes the dot products of one row of K-quant weights (superblocks of 256) with N
/// columns of activations.
pub(crate) fn row<F: Superblock, const B: usize, const N: usize, const MINIMA: u8>(
    w: &[u8],
    x: [&[Block]; N],
) -> [f32; N] {
    let mut acc = [[0.0f32; 8]; N];
    let mut low = [[0.0f32; 4]; N];
    let mut u = Unpacked::ZERO;
    let blocks = x[0].len();
    for (b, bytes) in w.as_chunks::<B>().0.iter().take(blocks).enumerate() {
        unpack::<F, B>(bytes, &mut u);
        for n in 0..N {
            let x = &x[n][b];
            let d = x.d * u.d;
            for (acc, sum) in acc[n].iter_mut().zip(sums::<F>(&u, x)) {
                *acc = d.mul_add(sum as f32, *acc);
            }
            let dmin = -x.d * u.dmin;
            match MINIMA {
                minima::FOUR_CHAINS => {
                    for (low, min) in low[n].iter_mut().zip(mins(&u, x)) {
                        *low = dmin.mul_add(min as f32, *low);
                    }
                }
                minima::ONE_CHAIN => {
                    let min: i32 = mins(&u, x).iter().sum();
                    low[n][0] = dmin.mul_add(min as f32, low[n][0]);
                }
                _ => {}
            }
        }
    }
    std::array::from_fn(|n| {
        let a: [f32; 4] = std::array::from_fn(|l| acc[n][l + 4] + acc[n][l]);
        let (sum, m) = ((a[0] + a[2]) + (a[1] + a[3]), low[n]);
        match MINIMA {
            minima::FOUR_CHAINS => sum + ((m[0] + m[2]) + (m[1] + m[3])),
            minima::ONE_CHAIN => sum + m[0],
            _ => sum,
        }
    })
}

/// Computes eight integer sums of a superblock (256 weights) times activations, with the
/// scales applied: the products are taken in 64 quads of four, and sum l has every eighth
/// quad.
fn sums<F: Superblock>(u: &Unpacked, x: &Block) -> [i32; 8] {
    let mut sums = [0; 8];
    for (k, (codes, q)) in u.codes.iter().zip(x.q.as_chunks::<4>().0).enumerate() {
        let products = codes.iter().zip(q);
        let quad: i32 = products.map(|(&c, &q)| i32::from(c) * i32::from(q)).sum();
        sums[k % 8] += u.scales[k * F::SUB_BLOCKS / 64] * quad;
    }
    if F::SIGNED {
        for (l, sum) in sums.iter_mut().enumerate() {
            let [a, b] = u.pairs[l].map(i32::from);
            let s = &x.sums16[2 * l..];
            *sum -= (a * i32::from(s[0]) + b * i32::from(s[1])) << 5;
        }
    }
    sums
}

/// Computes the products of a superblock's minima and the sums of activations, added by
/// pairs of sub-blocks.
fn mins(u: &Unpacked, x: &Block) -> [i32; 4] {
    std::array::from_fn(|t| {
        let [a, b] = u.pairs[t].map(i32::from);
        a * i32::from(x.sums32[2 * t]) + b * i32::from(x.sums32[2 * t + 1])
    })
}
