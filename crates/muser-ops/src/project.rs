//! Projections, in the strict lane (muser's own arithmetic): products of one input with
//! a *set* of weight matrices.
//!
//! Q, K, V and the attention gate read the same vector; so do the gate and up matrices
//! of the FFN. Such matrices are bound as one set, so that a backend quantises the
//! input once and shares the rows of all matrices among its threads.
//!
//! ```text
//! superblocks (Q4_K, Q5_K, Q6_K) · Q8_K vector, superblocks b ascending, from zero:
//!     S_b = Σ_j s_j Σ_i q_ij a_ij        exact integer, |S_b| < 2^27
//!     M_b = Σ_j m_j Σ_i a_ij             exact integer (Q4_K, Q5_K)
//!     acc  = fma(f32(S_b), f32(d_b)    · y_b, acc)
//!     accm = fma(f32(M_b), f32(dmin_b) · y_b, accm)
//! result acc - accm                      (Q6_K: acc)
//!
//! groups (Q4_0, Q8_0) · Q8 vector, eight groups g of 256 values at a time,
//! ascending, from zero:
//!     S_g = Σ_i q_i a_i                  exact integer, |S_g| < 2^20
//!     p_g = f32(S_g) · (f32(d_g) · y_g)  +0 where the row has ended
//!     t   = the fold of p by halves: (p_g + p_g+4), then + 2, then + 1
//!     acc = acc + t
//! result acc
//!
//! floats (F16, BF16, F32) · f32 vector: Σ w_i · x_i in the order of `reduce`
//! ```
//!
//! Here `s_j` and `m_j` are the scale and the minimum of sub-block j, `q` the codes of
//! weights minus their bias, `a` the codes of activations, `d` and `dmin` the float
//! factors of a block of weights, and `y` the scale of the quantised activations. Each
//! product of factors is rounded to f32, and each integer is converted to f32, to
//! nearest even. A batch is computed as one such product for each of its vectors: its
//! width changes no bit.

use crate::{Weight, reduce};
use muser_quant::q8::BlockQ8;
use muser_quant::q8_k::BlockQ8K;
use muser_quant::{Arithmetic, DType, Float, GROUP, Group, QK, Superblock, formats};

/// The number of groups (of 32 weights each) whose products are folded into one sum: 8,
/// the groups of 256 values.
pub const FOLD: usize = QK / GROUP;

/// One vector of activations in the form that an arithmetic multiplies with weights.
#[derive(Clone, Debug, PartialEq)]
pub enum Operand {
    /// The activations quantised in blocks of 32 values, for weights in groups (Q4_0,
    /// Q8_0).
    Groups(Vec<BlockQ8>),
    /// The activations quantised in blocks of 256 values, for weights in superblocks
    /// (Q4_K, Q5_K, Q6_K).
    Superblocks(Vec<BlockQ8K>),
    /// The activations as they are, for float weights (F16, BF16, F32).
    Floats(Vec<f32>),
}

impl Operand {
    /// Converts a vector of activations to the form that the arithmetic (groups,
    /// superblocks or floats) multiplies with weights.
    pub fn new(arithmetic: Arithmetic, x: &[f32]) -> Self {
        match arithmetic {
            Arithmetic::Groups => Self::Groups(quantize_groups(x)),
            Arithmetic::Superblocks => Self::Superblocks(quantize(x)),
            Arithmetic::Floats => Self::Floats(x.to_vec()),
        }
    }
}

/// Quantises one vector of activations to Q8_K blocks. Values after the last whole block
/// of 256 are ignored: a row of superblocks has none.
pub fn quantize(x: &[f32]) -> Vec<BlockQ8K> {
    x.as_chunks::<QK>()
        .0
        .iter()
        .map(BlockQ8K::quantize)
        .collect()
}

/// Quantises one vector of activations to Q8 blocks. Values after the last whole block
/// of 32 are ignored: a row of groups has none.
pub fn quantize_groups(x: &[f32]) -> Vec<BlockQ8> {
    x.as_chunks::<GROUP>()
        .0
        .iter()
        .map(BlockQ8::quantize)
        .collect()
}

/// Computes the product of one row of a weight matrix with a vector of activations, in
/// the strict lane (muser's own arithmetic).
///
/// # Panics
/// If the vector is in the form of another arithmetic than that of `dtype`.
pub fn dot(dtype: DType, row: &[u8], x: &Operand) -> f32 {
    /// Expands to a `match` that, for each weight format, calls the product function of
    /// its arithmetic (groups, superblocks or floats).
    macro_rules! by_format {
        ($($arithmetic:ident { $(
            $variant:ident $module:ident $block:ident $name:literal $ggml:literal $file:literal;
        )* })*) => {
            match dtype {
                $($(DType::$variant => {
                    by_format!(@$arithmetic muser_quant::$module::$block)
                })*)*
            }
        };
        (@Groups $block:path) => {
            match x {
                Operand::Groups(x) => groups::<$block>(row, x),
                Operand::Superblocks(_) | Operand::Floats(_) => no_form(dtype),
            }
        };
        (@Superblocks $block:path) => {
            match x {
                Operand::Superblocks(x) => superblocks::<$block>(row, x),
                Operand::Groups(_) | Operand::Floats(_) => no_form(dtype),
            }
        };
        (@Floats $block:path) => {
            match x {
                Operand::Floats(x) => floats::<$block>(row, x),
                Operand::Groups(_) | Operand::Superblocks(_) => no_form(dtype),
            }
        };
    }
    formats!(by_format)
}

/// Panics because a vector of activations is not in the form that weights of this format
/// are multiplied with.
fn no_form(dtype: DType) -> ! {
    panic!("dot: the vector has no form that {dtype} meets")
}

/// Computes the product of a row of superblocks (256 weights each) with activations, as
/// two chains of multiply-adds: of the scaled sums and of the minima.
fn superblocks<F: Superblock>(row: &[u8], y: &[BlockQ8K]) -> f32 {
    let (mut acc, mut accm) = (0.0f32, 0.0f32);
    for (b, a) in row.chunks_exact(F::BYTES).zip(y) {
        let s = F::sums(b, a);
        acc = (s.sum as f32).mul_add(s.d * a.d, acc);
        if !F::SIGNED {
            accm = (s.min as f32).mul_add(s.dmin * a.d, accm);
        }
    }
    if F::SIGNED { acc } else { acc - accm }
}

/// Computes the product of a row of groups (32 weights each) with activations: each
/// eight products are folded by halves, then added.
fn groups<F: Group>(row: &[u8], y: &[BlockQ8]) -> f32 {
    let mut acc = 0.0f32;
    for (blocks, y) in row.chunks(FOLD * F::BYTES).zip(y.chunks(FOLD)) {
        let mut p = [0.0f32; FOLD];
        for ((p, b), a) in p.iter_mut().zip(blocks.chunks_exact(F::BYTES)).zip(y) {
            *p = F::dot(b, a) as f32 * (F::factor(b) * a.d);
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

/// Computes the product of a row of float weights with activations, in the order of sums
/// of [`reduce`].
fn floats<F: Float>(row: &[u8], x: &[f32]) -> f32 {
    let value = |i: usize| F::value(&row[i * F::BYTES..][..F::BYTES]);
    reduce::dot_by(x.len(), value, |i| x[i])
}

/// Computes the product of one row of superblocks (Q4_K, Q5_K, Q6_K) with a vector of
/// quantised activations.
///
/// # Panics
/// If `dtype` is not a format of superblocks.
pub fn dot_quantized(dtype: DType, row: &[u8], y: &[BlockQ8K]) -> f32 {
    dot(dtype, row, &Operand::Superblocks(y.to_vec()))
}

/// Computes the product of one row of float weights with a vector of activations.
///
/// # Panics
/// If `dtype` is not a float format.
pub fn dot_float(dtype: DType, row: &[u8], x: &[f32]) -> f32 {
    dot(dtype, row, &Operand::Floats(x.to_vec()))
}

/// Computes the projection `out = W x` of one vector of activations x by a weight matrix
/// W.
pub fn project(weight: &Weight, x: &[f32], out: &mut [f32]) {
    let dtype = weight.dtype();
    let x = Operand::new(dtype.arithmetic(), x);
    for (r, o) in out.iter_mut().enumerate() {
        *o = dot(dtype, weight.row(r), &x);
    }
}
