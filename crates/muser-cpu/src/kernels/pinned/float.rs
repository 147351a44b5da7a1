//! Products of float weights in the pinned lane.
//!
//! Contract: [`muser_ops::pinned::dot`]: *by vectors* for one column, *by lanes*
//! from two columns on where the rows are a multiple of four. A float lane of
//! the contract is a lane of a register: the 16-lane profile at the avx2 level
//! takes two registers for each of its vectors, and the 8-lane profile at the
//! avx512 level is the avx2 kernel.
//!
//! ```text
//! by vectors   a row and a column: four vectors of sums, folded once
//! by lanes     two rows and four columns: eight vectors of sums
//! ```
//!
//! Activations come rounded to the weights' format, as f32. Traffic: the weights
//! once for each four columns.

use muser_levels::levels;
use muser_ops::Profile;

/// Which sums to take.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Order {
    pub(crate) profile: Profile,
    /// By lanes, and not by vectors.
    pub(crate) tiny_blas: bool,
}

/// The kernel of one level: `K` registers are a vector of the contract.
#[levels]
pub(crate) mod kernels {
    use super::Order;
    use crate::kernels::matvec::floats::level::{WIDEST, load};
    use crate::rows::Tile;
    use crate::simd::level as v;
    use muser_ops::Profile;
    use muser_ops::pinned::dot::{fold_vectors, rest};
    use muser_quant::{DType, Float};

    /// A tile of rows (`w`) with `columns` vectors of `cols` values.
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

    /// The profile of 8 lanes.
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

    /// The profile of 8 lanes, whose vectors are half a register here: the kernel
    /// of the level below.
    #[only(avx512)]
    use super::avx2::ggml_dot as eight_wide;

    /// Sums of `K` registers a vector.
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

    /// Two rows with N columns by lanes; gives N.
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
            // The missing lanes take fma(0, 0, sum), which is part of the
            // contract: it makes a +0 of a -0.
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

    /// One row with one column by vectors.
    #[inline]
    fn vectors<F: Float, const B: usize, const K: usize>(
        w: &[u8],
        x: &[f32],
        profile: Profile,
    ) -> f32 {
        let width = K * v::ELEMENTS;
        // BF16 has vectors for 32 values, the others four.
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

    /// The fold by halves over `K` registers.
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
