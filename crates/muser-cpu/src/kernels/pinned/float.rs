//! Products of float weights with activations in the pinned lane (llama.cpp's
//! arithmetic).
//!
//! Contract (the scalar functions that define the bits): [`muser_ops::pinned::dot`]:
//! the order of tinyBLAS from two columns on if the number of rows is a multiple of
//! four, else the order of `vec_dot`. An element of the contract's vectors is an
//! element of a register. At avx2, a vector of the 16-wide profile is two registers; at
//! avx512, the 8-wide profile uses the avx2 kernel.
//!
//! ```text
//! vectors    a row and a column: four vectors of partial sums, folded once
//! tinyBLAS   two rows and four columns: eight vectors of partial sums
//! ```
//!
//! Activations are f32 values rounded to the precision of the weights. Traffic: the
//! weights are read once for each four columns.

use muser_levels::levels;
use muser_ops::Profile;

/// The order in which llama.cpp adds the products of float weights: it depends on the
/// vector width of the build, and on the routine, `vec_dot` or tinyBLAS.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Order {
    pub(crate) profile: Profile,
    /// Whether products of float weights are added in the order of llama.cpp's tinyBLAS,
    /// and not in that of its `vec_dot`.
    pub(crate) tiny_blas: bool,
}

/// The product kernel for float weights of the pinned lane (llama.cpp's arithmetic),
/// compiled for each instruction-set level; a vector of llama.cpp's build is `K`
/// registers of the level.
#[levels]
pub(crate) mod kernels {
    use super::Order;
    use crate::kernels::matvec::floats::level::{WIDEST, load};
    use crate::rows::Tile;
    use crate::simd::level as v;
    use muser_ops::Profile;
    use muser_ops::pinned::dot::{fold_vectors, rest};
    use muser_quant::{DType, Float};

    /// Computes one tile of a matrix product in an order of llama.cpp: rows `w` of `cols`
    /// float weights, times `columns` vectors of f32 activations.
    pub(crate) fn ggml_dot<F: Float, const B: usize>(
        w: &[u8],
        x: &[f32],
        cols: usize,
        columns: usize,
        order: Order,
        tile: &mut Tile<'_>,
    ) {
        match order.profile {
            Profile::LlamaCppAvx512 => {
                products::<F, B, { 16 / v::ELEMENTS }>(w, x, cols, columns, order, tile);
            }
            Profile::LlamaCppAvx2 => eight_wide::<F, B>(w, x, cols, columns, order, tile),
        }
    }

    /// Computes one tile of a product of float weights for the profile (build of
    /// llama.cpp) of vector width 8.
    #[only(scalar, avx2)]
    fn eight_wide<F: Float, const B: usize>(
        w: &[u8],
        x: &[f32],
        cols: usize,
        columns: usize,
        order: Order,
        tile: &mut Tile<'_>,
    ) {
        products::<F, B, { 8 / v::ELEMENTS }>(w, x, cols, columns, order, tile);
    }

    /// Computes one tile of a product of float weights for the profile (build of
    /// llama.cpp) of vector width 8 by the kernel of avx2, because its vectors are half a
    /// register at avx512.
    #[only(avx512)]
    use super::avx2::ggml_dot as eight_wide;

    /// Computes one tile of a product of float weights in an order of llama.cpp, where a
    /// vector of its build is `K` registers.
    fn products<F: Float, const B: usize, const K: usize>(
        w: &[u8],
        x: &[f32],
        cols: usize,
        columns: usize,
        order: Order,
        tile: &mut Tile<'_>,
    ) {
        let count = tile.rows();
        let row = |r: usize| &w[r.min(count - 1) * cols * B..][..cols * B];
        if !order.tiny_blas {
            for r in 0..count {
                for c in 0..columns {
                    let sum = vectors::<F, B, K>(row(r), &x[c * cols..][..cols], order.profile);
                    tile.set(c, r, &[sum]);
                }
            }
            return;
        }
        for r in (0..count).step_by(2) {
            let rows = [row(r), row(r + 1)];
            let mut c = 0;
            while c < columns {
                let x = &x[c * cols..];
                c += match columns - c {
                    1 => tiny_blas::<F, B, K, 1>(rows, x, cols, (r, c), tile),
                    2 | 3 => tiny_blas::<F, B, K, 2>(rows, x, cols, (r, c), tile),
                    _ => tiny_blas::<F, B, K, 4>(rows, x, cols, (r, c), tile),
                };
            }
        }
    }

    /// Multiplies two rows of float weights with N columns of activations in the order of
    /// llama.cpp's tinyBLAS. Returns N.
    #[inline]
    fn tiny_blas<F: Float, const B: usize, const K: usize, const N: usize>(
        rows: [&[u8]; 2],
        x: &[f32],
        cols: usize,
        (r, c): (usize, usize),
        tile: &mut Tile<'_>,
    ) -> usize {
        let x: [&[f32]; N] = std::array::from_fn(|n| &x[n * cols..][..cols]);
        let mut acc = [[[v::splat(0.0); K]; N]; 2];
        let wide = K * v::ELEMENTS;
        let whole = cols / wide * wide;
        for i in (0..whole).step_by(wide) {
            for k in 0..K {
                let at = i + k * v::ELEMENTS;
                let w = [load::<F>(rows[0], at), load::<F>(rows[1], at)];
                for n in 0..N {
                    let x = v::load(x[n], at);
                    acc[0][n][k] = v::fma(w[0], x, acc[0][n][k]);
                    acc[1][n][k] = v::fma(w[1], x, acc[1][n][k]);
                }
            }
        }
        let left = cols - whole;
        if left > 0 {
            // Elements without a value take fma(0, 0, sum). The contract demands it: it
            // turns -0 into +0.
            let mut xs = [[0.0f32; 16]; N];
            for n in 0..N {
                xs[n][..left].copy_from_slice(&x[n][whole..]);
            }
            for h in 0..2 {
                let mut ws = [0u8; 16 * WIDEST];
                ws[..left * B].copy_from_slice(&rows[h][whole * B..]);
                for n in 0..N {
                    for k in 0..K {
                        let at = k * v::ELEMENTS;
                        let (w, x) = (load::<F>(&ws, at), v::load(&xs[n], at));
                        acc[h][n][k] = v::fma(w, x, acc[h][n][k]);
                    }
                }
            }
        }
        for n in 0..N {
            let sums = [fold::<K>(acc[0][n]), fold::<K>(acc[1][n])];
            tile.set(c + n, r, &sums);
        }
        N
    }

    /// Computes the dot product of one row of float weights with one column in the order
    /// of llama.cpp's `vec_dot`.
    #[inline]
    fn vectors<F: Float, const B: usize, const K: usize>(
        w: &[u8],
        x: &[f32],
        profile: Profile,
    ) -> f32 {
        let width = K * v::ELEMENTS;
        // BF16 uses as many vectors as hold 32 values, the other formats four.
        let count = if F::DTYPE == DType::BF16 {
            32 / width
        } else {
            4
        };
        let group = count * width;
        let whole = x.len() / group * group;
        let mut acc = [[v::splat(0.0); K]; 4];
        for i in (0..whole).step_by(group) {
            for (j, acc) in acc.iter_mut().enumerate().take(count) {
                for (k, acc) in acc.iter_mut().enumerate() {
                    let at = i + j * width + k * v::ELEMENTS;
                    *acc = v::fma(load::<F>(w, at), v::load(x, at), *acc);
                }
            }
        }
        let sum = if count == 2 {
            f64::from(fold::<K>(acc[0])) + f64::from(fold::<K>(acc[1]))
        } else {
            let mut s = [v::splat(0.0); K];
            for (k, s) in s.iter_mut().enumerate() {
                let (even, odd) = (v::add(acc[0][k], acc[2][k]), v::add(acc[1][k], acc[3][k]));
                *s = v::add(even, odd);
            }
            if width == 16 || F::DTYPE == DType::BF16 {
                fold::<K>(s).into()
            } else {
                let mut values = [0.0; 16];
                for (k, s) in s.into_iter().enumerate() {
                    v::store(&mut values, k * v::ELEMENTS, s);
                }
                fold_vectors(profile, &values).into()
            }
        };
        if whole == x.len() {
            return sum as f32;
        }
        let mut ws = [0u8; v::ELEMENTS * WIDEST];
        let mut values = [0.0; v::ELEMENTS];
        let mut value = |i: usize| {
            ws[..B].copy_from_slice(&w[i * B..][..B]);
            v::store(&mut values, 0, load::<F>(&ws, 0));
            values[0]
        };
        let decoded: Vec<f32> = (whole..x.len()).map(&mut value).collect();
        let w = |i: usize| decoded[i - whole];
        rest(profile, F::DTYPE, whole..x.len(), sum, w, |i| x[i])
    }

    /// Adds the elements of `K` registers to one value, by halves: the upper half to the
    /// lower one until one is left.
    #[inline]
    fn fold<const K: usize>(mut x: [v::V; K]) -> f32 {
        let mut width = K / 2;
        while width > 0 {
            for k in 0..width {
                x[k] = v::add(x[k], x[k + width]);
            }
            width /= 2;
        }
        v::halve(x[0])
    }
}
