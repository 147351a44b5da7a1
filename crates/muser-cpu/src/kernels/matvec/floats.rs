//! Products of rows of float weights (F16, BF16, F32) with f32 activations, in 256
//! partial sums.
//!
//! A weight has 2 bytes (F16, BF16) or 4 (F32) and needs only a conversion, so one column
//! is bound by memory. 256 / `ELEMENTS` accumulators hide the latency of the fma.

use muser_levels::levels;

#[levels]
pub(crate) mod kernels {
    use crate::rows::Tile;
    use crate::simd::level as v;
    use muser_ops::reduce::PARTIALS;
    use muser_quant::{Float, FloatCodes};

    /// The number of vector registers that hold the 256 partial sums of a dot product.
    const VECTORS: usize = PARTIALS / v::ELEMENTS;
    /// The number of bytes in the widest float weight, F32.
    pub(crate) const WIDEST: usize = 4;

    /// Computes one tile of a matrix product: rows `w` of `cols` float weights, times
    /// `columns` vectors of f32 activations.
    pub(crate) fn matvec<F: Float, const B: usize>(
        w: &[u8],
        x: &[f32],
        cols: usize,
        columns: usize,
        tile: &mut Tile<'_>,
    ) {
        for r in 0..tile.rows() {
            let row = &w[r * cols * B..][..cols * B];
            for c in 0..columns {
                let sum = dot::<F, B>(row, &x[c * cols..][..cols]);
                tile.set(c, r, &[sum]);
            }
        }
    }

    /// Computes the dot product Σ w · x of a row of float weights with activations, in
    /// the order of `muser_ops::reduce`.
    #[inline]
    fn dot<F: Float, const B: usize>(w: &[u8], x: &[f32]) -> f32 {
        let mut acc = [v::splat(0.0); VECTORS];
        let (blocks, rest) = x.as_chunks::<PARTIALS>();
        for (x, w) in blocks.iter().zip(w.chunks_exact(PARTIALS * B)) {
            for (i, a) in acc.iter_mut().enumerate() {
                let at = i * v::ELEMENTS;
                *a = v::fma(load::<F>(w, at), v::load(x, at), *a);
            }
        }
        let w = &w[blocks.len() * PARTIALS * B..];
        let whole = rest.len() / v::ELEMENTS;
        for (i, a) in acc.iter_mut().enumerate().take(whole) {
            let at = i * v::ELEMENTS;
            *a = v::fma(load::<F>(w, at), v::load(rest, at), *a);
        }
        let n = rest.len() - whole * v::ELEMENTS;
        if n > 0 {
            // A padded vector would add +0 to the elements without a value, and -0 + +0
            // is +0; so only the elements with a value are replaced.
            let at = whole * v::ELEMENTS;
            let (mut xs, mut ws) = ([0.0; v::ELEMENTS], [0; v::ELEMENTS * WIDEST]);
            xs[..n].copy_from_slice(&rest[at..]);
            ws[..n * B].copy_from_slice(&w[at * B..][..n * B]);
            let (mut sum, mut kept) = ([0.0; v::ELEMENTS], [0.0; v::ELEMENTS]);
            v::store(&mut kept, 0, acc[whole]);
            v::store(
                &mut sum,
                0,
                v::fma(load::<F>(&ws, 0), v::load(&xs, 0), acc[whole]),
            );
            kept[..n].copy_from_slice(&sum[..n]);
            acc[whole] = v::load(&kept, 0);
        }
        let mut width = VECTORS / 2;
        while width > 0 {
            for i in 0..width {
                acc[i] = v::add(acc[i], acc[i + width]);
            }
            width /= 2;
        }
        v::halve(acc[0])
    }

    /// Loads a vector of float weights from bytes, beginning with weight `at`, and
    /// converts it to f32.
    #[inline]
    pub(crate) fn load<F: Float>(w: &[u8], at: usize) -> v::V {
        match F::CODES {
            FloatCodes::F16 => v::load_f16_bytes(w, at),
            FloatCodes::BF16 => v::load_bf16_bytes(w, at),
            FloatCodes::F32 => v::load_f32_bytes(w, at),
        }
    }
}
