//! Products of weights with a batch of vectors in the pinned lane (llama.cpp's
//! arithmetic), as ggml 0.26.0 computes them on x86-64 with AVX2 or AVX-512 (crate
//! `llama-cpp-sys-2` 0.1.161).
//!
//! A column is one vector of the batch. The weight format, the number of rows of the
//! matrix and the number of columns decide the arithmetic, which is called a route:
//!
//! | weights | columns | route |
//! |---|---|---|
//! | Q4_K, rows a multiple of 8 | whole groups of four | [`Route::InterleavedFour`] |
//! | the same | the last one to three | [`Route::Interleaved`] |
//! | Q4_K otherwise, Q5_K, Q6_K | 1 to 7 | [`Route::Narrow`] |
//! | Q4_K otherwise, Q5_K, Q6_K | 8 and more | [`Route::Tiled`] |
//! | F16, BF16, F32 | one, or rows no multiple of 4 | [`Route::Vectors`] |
//! | F16, BF16, F32 otherwise | 2 and more | [`Route::TinyBlas`] |
//!
//! [`super::dot`] defines the two float routes. All others quantise activations by
//! the rule of [`BlockQ8K::quantize`](muser_quant::q8_k::BlockQ8K::quantize). ggml's
//! quantiser for four rows, which the interleaved routes use, may pick the other sign
//! among values of the same magnitude. It then negates codes and scale alike, which
//! moves no bit of a product. Values that are not finite are not covered.
//!
//! For each output, over superblocks (256 weights) ascending; S and M are the exact
//! integers of the strict lane (the scaled sum of products and that of minima), d and m
//! the float factors of the block, y the scale of the activations:
//!
//! ```text
//! Interleaved  acc = fma(S, d · y, acc);  accm = fma(M, m · y, accm)
//!              acc - accm                          (the strict lane's own chain)
//! InterleavedFour  the same with four links a superblock, of 64 codes each
//! Tiled        acc = fma(fma(-m, M, d · S), y, acc)           (Q6_K: (d · S))
//! Narrow       eight partial sums l, each of every eighth quad of codes (S_l):
//!              acc_l = fma(S_l, d · y, acc_l)
//!              Q5_K: acc' = fma(-(m · y), M, acc');  Q4_K: four such sums of
//!              two sub-blocks each, folded (l + 2), then (l + 1)
//!              fold (l + 4), (l + 2), (l + 1), then + acc'     (Q6_K: no acc')
//! ```
//!
//! Two of these fma come from GCC's contraction of a multiply and an add: the product
//! with `y` in the tiled route and the minimum of Q5_K in the narrow route are separate
//! operations in the source.

use super::dot;
use crate::project::{dot_quantized, quantize};
use crate::{Profile, Weight};
use muser_quant::q4_k::BlockQ4K;
use muser_quant::q5_k::BlockQ5K;
use muser_quant::q6_k::BlockQ6K;
use muser_quant::q8_k::BlockQ8K;
use muser_quant::{DType, QK, f16};

/// A route: the way in which llama.cpp computes the outputs of a product of weights with
/// activations, which decides their bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Route {
    /// The route (way of computing products) of eight interleaved rows of weights: one
    /// float chain for each output, with a link for each superblock (256 weights).
    Interleaved,
    /// The route (way of computing products) of eight interleaved rows of weights with
    /// four columns (vectors of activations) at once: a link of the float chain for every
    /// 64 quantised values (codes).
    InterleavedFour,
    /// The route (way of computing products) for up to seven columns (vectors of
    /// activations): eight partial sums for each output.
    Narrow,
    /// The route (way of computing products) for eight columns (vectors of activations)
    /// and more: tiles, with one float chain for each output.
    Tiled,
    /// The route (way of computing products) of float weights by ggml's `vec_dot`: a dot
    /// product over several vectors for each output.
    Vectors,
    /// The route (way of computing products) of float weights by ggml's tinyBLAS: one
    /// vector of partial sums for each output.
    TinyBlas,
}

impl Route {
    /// Returns the name, in reports, of the route that a product takes: `interleaved`,
    /// `narrow`, …
    pub fn name(self) -> &'static str {
        match self {
            Self::Interleaved => "interleaved",
            Self::InterleavedFour => "interleaved-four",
            Self::Narrow => "narrow",
            Self::Tiled => "tiled",
            Self::Vectors => "vectors",
            Self::TinyBlas => "tinyblas",
        }
    }

    /// Returns the name of the function of llama.cpp that computes products by this
    /// route.
    pub fn reference(self) -> &'static str {
        match self {
            Self::Interleaved => "ggml_gemv_q4_K_8x8_q8_K",
            Self::InterleavedFour => "ggml_gemm_q4_K_8x8_q8_K",
            Self::Narrow => "ggml_vec_dot_q{4,5,6}_K_q8_K",
            Self::Tiled => "tiled (ggml-cpu/tiled)",
            Self::Vectors => "ggml_vec_dot_{f16,bf16,f32}",
            Self::TinyBlas => "tinyBLAS (llamafile/sgemm)",
        }
    }
}

/// The number of columns (vectors of activations in a batch) from which on llama.cpp
/// computes a product of quantised weights by tiles.
pub const TILED_FROM: usize = 8;

/// The weight formats that the pinned lane (llama.cpp's arithmetic) covers, and how each
/// is computed.
const COVERED: [(DType, Covered); 6] = [
    (DType::Q4K, Covered::FourBits),
    (DType::Q5K, Covered::FiveBits),
    (DType::Q6K, Covered::SixBits),
    (DType::F16, Covered::Floats),
    (DType::BF16, Covered::Floats),
    (DType::F32, Covered::Floats),
];

/// The way in which the pinned lane (llama.cpp's arithmetic) computes products with a
/// weight format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Covered {
    FourBits,
    FiveBits,
    SixBits,
    Floats,
}

/// Returns the way in which the pinned lane (llama.cpp's arithmetic) computes products
/// with the weight format `dtype`; `None` if it does not cover the format.
fn covered(dtype: DType) -> Option<Covered> {
    let mut found = COVERED.iter().filter(|(of, _)| *of == dtype);
    found.next().map(|(_, covered)| *covered)
}

/// Returns whether the pinned lane (llama.cpp's arithmetic) covers the weight format
/// `dtype`.
pub fn covers(dtype: DType) -> bool {
    covered(dtype).is_some()
}

/// Returns the route (llama.cpp's way of computing) that column `column` of a product
/// takes, of `rows` rows of weights with `columns` vectors of activations. `None` for a
/// weight format that the pinned lane (llama.cpp's arithmetic) does not cover.
pub fn route(dtype: DType, rows: usize, columns: usize, column: usize) -> Option<Route> {
    let eights = rows.is_multiple_of(8);
    Some(match covered(dtype)? {
        Covered::FourBits if eights && column < columns / 4 * 4 => Route::InterleavedFour,
        Covered::FourBits if eights => Route::Interleaved,
        Covered::FourBits | Covered::FiveBits | Covered::SixBits if columns < TILED_FROM => {
            Route::Narrow
        }
        Covered::FourBits | Covered::FiveBits | Covered::SixBits => Route::Tiled,
        Covered::Floats if dot::is_tiny_blas(rows, columns) => Route::TinyBlas,
        Covered::Floats => Route::Vectors,
    })
}

/// Computes the products `out[c] = W x[c]` of a weight matrix with all vectors of a
/// batch at once, in the pinned lane (llama.cpp's arithmetic): `x` is `[columns, cols]`,
/// `out` is `[columns, rows]`.
///
/// # Panics
/// If the lane does not cover the format.
pub fn project(profile: Profile, weight: &Weight, x: &[f32], out: &mut [f32]) {
    let (dtype, rows, cols) = (weight.dtype(), weight.rows(), weight.cols());
    let columns = x.len() / cols;
    let unpack = match covered(dtype) {
        Some(Covered::FourBits) => unpack_four,
        Some(Covered::FiveBits) => unpack_five,
        Some(Covered::SixBits) => unpack_six,
        Some(Covered::Floats) => return floats(profile, weight, x, out),
        None => panic!("project: {dtype} has no arithmetic in the pinned lane"),
    };
    for (c, (x, out)) in x
        .chunks_exact(cols)
        .zip(out.chunks_exact_mut(rows))
        .enumerate()
    {
        let y = quantize(x);
        for (r, out) in out.iter_mut().enumerate() {
            let row = weight.row(r);
            *out = match route(dtype, rows, columns, c) {
                Some(Route::Interleaved) => dot_quantized(dtype, row, &y),
                Some(Route::InterleavedFour) => by_quarters(&unpack(row), &y),
                Some(Route::Tiled) => tiled(&unpack(row), &y),
                Some(Route::Narrow) => narrow(dtype, &unpack(row), &y),
                Some(Route::Vectors | Route::TinyBlas) | None => {
                    unreachable!("the match above returned or panicked for these formats")
                }
            };
        }
    }
}

/// Computes the products of a matrix of float weights with a batch of vectors, as
/// [`project`] does for other formats.
fn floats(profile: Profile, weight: &Weight, x: &[f32], out: &mut [f32]) {
    let (dtype, rows, cols) = (weight.dtype(), weight.rows(), weight.cols());
    let tiny_blas = dot::is_tiny_blas(rows, x.len() / cols);
    let mut w = vec![0.0f32; cols];
    for r in 0..rows {
        dtype
            .decode_row(weight.row(r), &mut w)
            .expect("a weight's rows are whole by construction");
        for (c, x) in x.chunks_exact(cols).enumerate() {
            let x = |i: usize| dot::activation(dtype, x[i]);
            out[c * rows + r] = match tiny_blas {
                true => dot::tiny_blas(profile, cols, |i| w[i], x),
                false => dot::vectors(profile, dtype, cols, |i| w[i], x),
            };
        }
    }
}

/// One superblock (256 weights) of a row, with quantised values (codes), scales and
/// minima unpacked to integers.
struct Unpacked {
    /// The superblock's 256 quantised weights (codes), their bias not subtracted.
    codes: [i32; QK],
    /// The bias to subtract from each quantised weight (code) of the superblock: 32 for
    /// Q6_K, else 0.
    bias: i32,
    /// The superblock's integer scales, one for each 16 quantised weights.
    scales: [i32; QK / 16],
    /// The superblock's integer minima, one for each 32 quantised weights; zeros for
    /// Q6_K.
    mins: [i32; QK / 32],
    d: f32,
    dmin: f32,
}

impl Unpacked {
    /// Computes the exact scaled sum of a superblock's products with activations, Σ s ·
    /// (q - bias) · a; s: the scale, q: the quantised weight (code), a: the quantised
    /// activation.
    fn sum(&self, a: &BlockQ8K) -> i32 {
        (0..QK)
            .map(|i| self.term(a, i, self.codes[i] - self.bias))
            .sum()
    }

    /// Computes partial sum `l` of the eight that add up to the superblock's
    /// [`Self::sum`]: the products of every eighth quad of codes (quantised weights),
    /// from quad l on, minus the bias of the codes `32 l .. 32 l + 32`. llama.cpp sums in
    /// that order.
    fn partial_sum(&self, a: &BlockQ8K, l: usize) -> i32 {
        let quads = (0..QK).filter(|i| i % 32 / 4 == l);
        let codes: i32 = quads.map(|i| self.term(a, i, self.codes[i])).sum();
        let bias: i32 = (32 * l..32 * (l + 1))
            .map(|i| self.term(a, i, self.bias))
            .sum();
        codes - bias
    }

    /// Returns the product of a quantised weight's integer value `code` with its integer
    /// scale and with the quantised activation `i`.
    fn term(&self, a: &BlockQ8K, i: usize, code: i32) -> i32 {
        self.scales[i / 16] * code * i32::from(a.q[i])
    }

    /// Computes a superblock's [`Self::sum`] over one quarter of its quantised weights,
    /// `64 g .. 64 g + 64`, for a weight format without bias.
    fn quarter_sum(&self, a: &BlockQ8K, g: usize) -> i32 {
        (64 * g..64 * (g + 1))
            .map(|i| self.term(a, i, self.codes[i]))
            .sum()
    }

    /// Computes a superblock's sum of minima, Σ m · a, over the sub-blocks for which `of`
    /// is true; m: the minimum of a sub-block, a: its quantised activations.
    fn min(&self, a: &BlockQ8K, of: impl Fn(usize) -> bool) -> i32 {
        let sum = |j: usize| {
            a.q[32 * j..][..32]
                .iter()
                .map(|&q| i32::from(q))
                .sum::<i32>()
        };
        (0..8)
            .filter(|&j| of(j))
            .map(|j| self.mins[j] * sum(j))
            .sum()
    }
}

/// Unpacks the superblocks of a row of Q4_K weights to integers.
fn unpack_four(row: &[u8]) -> Vec<Unpacked> {
    let blocks = row.as_chunks().0.iter().map(BlockQ4K::from_bytes);
    let unpacked = blocks.map(|b| {
        let codes = std::array::from_fn(|i| i32::from(b.code(i)));
        with_minima(codes, b.scales_mins(), b.d, b.dmin)
    });
    unpacked.collect()
}

/// Unpacks the superblocks of a row of Q5_K weights to integers.
fn unpack_five(row: &[u8]) -> Vec<Unpacked> {
    let blocks = row.as_chunks().0.iter().map(BlockQ5K::from_bytes);
    let unpacked = blocks.map(|b| {
        let codes = std::array::from_fn(|i| i32::from(b.code(i)));
        with_minima(codes, b.scales_mins(), b.d, b.dmin)
    });
    unpacked.collect()
}

/// Unpacks the superblocks of a row of Q6_K weights to integers.
fn unpack_six(row: &[u8]) -> Vec<Unpacked> {
    let blocks = row.as_chunks().0.iter().map(BlockQ6K::from_bytes);
    let unpacked = blocks.map(|b| Unpacked {
        codes: std::array::from_fn(|i| i32::from(b.code(i))),
        bias: 32,
        scales: b.scales.map(i32::from),
        mins: [0; 8],
        d: f16::to_f32(b.d),
        dmin: 0.0,
    });
    unpacked.collect()
}

/// Makes an unpacked superblock (256 weights) with a scale and a minimum for each 32
/// quantised weights.
fn with_minima(codes: [i32; QK], (s, m): ([u8; 8], [u8; 8]), d: u16, dmin: u16) -> Unpacked {
    Unpacked {
        codes,
        bias: 0,
        scales: std::array::from_fn(|j| i32::from(s[j / 2])),
        mins: m.map(i32::from),
        d: f16::to_f32(d),
        dmin: f16::to_f32(dmin),
    }
}

/// Computes one output of a product by llama.cpp's route for four columns at once,
/// [`Route::InterleavedFour`].
fn by_quarters(row: &[Unpacked], y: &[BlockQ8K]) -> f32 {
    let (mut acc, mut accm) = (0.0f32, 0.0f32);
    for (w, a) in row.iter().zip(y) {
        for g in 0..4 {
            acc = (w.quarter_sum(a, g) as f32).mul_add(w.d * a.d, acc);
            accm = (w.min(a, |j| j / 2 == g) as f32).mul_add(w.dmin * a.d, accm);
        }
    }
    acc - accm
}

/// Computes one output of a product by llama.cpp's route for eight columns and more,
/// [`Route::Tiled`].
fn tiled(row: &[Unpacked], y: &[BlockQ8K]) -> f32 {
    row.iter().zip(y).fold(0.0, |acc, (w, a)| {
        let mut value = w.d * w.sum(a) as f32;
        if w.bias == 0 {
            value = (-w.dmin).mul_add(w.min(a, |_| true) as f32, value);
        }
        value.mul_add(a.d, acc)
    })
}

/// Computes one output of a product by llama.cpp's route for up to seven columns,
/// [`Route::Narrow`].
fn narrow(dtype: DType, row: &[Unpacked], y: &[BlockQ8K]) -> f32 {
    let (mut acc, mut low) = ([0.0f32; 8], [0.0f32; 4]);
    for (w, a) in row.iter().zip(y) {
        let factor = a.d * w.d;
        for (l, acc) in acc.iter_mut().enumerate() {
            *acc = (w.partial_sum(a, l) as f32).mul_add(factor, *acc);
        }
        let factor = -a.d * w.dmin;
        match covered(dtype) {
            Some(Covered::FourBits) => {
                for (l, low) in low.iter_mut().enumerate() {
                    *low = (w.min(a, |j| j / 2 == l) as f32).mul_add(factor, *low);
                }
            }
            Some(Covered::FiveBits) => {
                low[0] = (w.min(a, |_| true) as f32).mul_add(factor, low[0]);
            }
            Some(Covered::SixBits | Covered::Floats) | None => {}
        }
    }
    let four: [f32; 4] = std::array::from_fn(|l| acc[l + 4] + acc[l]);
    let sum = (four[0] + four[2]) + (four[1] + four[3]);
    match covered(dtype) {
        Some(Covered::FourBits) => sum + ((low[0] + low[2]) + (low[1] + low[3])),
        Some(Covered::FiveBits) => sum + low[0],
        Some(Covered::SixBits | Covered::Floats) | None => sum,
    }
}
