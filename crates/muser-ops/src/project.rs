//! Projections: one input, a *set* of matrices, disjoint outputs.
//!
//! Q, K, V and the attention gate read one vector; so do the FFN's gate and
//! up. Such matrices are one descriptor: the input is quantised once and the
//! rows of all of them are one pool of work.
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
//! `y` is the activation's scale; each product of factors is rounded to
//! f32, and so is each integer, to nearest even. A batch is this for each of
//! its vectors: the width of the batch changes no bit.

use crate::{Weight, reduce};
use muser_quant::q8::BlockQ8;
use muser_quant::q8_k::BlockQ8K;
use muser_quant::{Arithmetic, DType, Float, GROUP, Group, QK, Superblock, formats};

/// Groups whose products are folded into one: 256 values.
pub const FOLD: usize = QK / GROUP;

/// One vector in the form that weights of an arithmetic meet.
#[derive(Clone, Debug, PartialEq)]
pub enum Operand {
    /// Blocks of 32 values.
    Groups(Vec<BlockQ8>),
    /// Blocks of 256 values.
    Superblocks(Vec<BlockQ8K>),
    /// The values.
    Floats(Vec<f32>),
}

impl Operand {
    /// The vector as weights of this arithmetic meet it.
    pub fn new(arithmetic: Arithmetic, x: &[f32]) -> Self {
        match arithmetic {
            Arithmetic::Groups => Self::Groups(quantize_groups(x)),
            Arithmetic::Superblocks => Self::Superblocks(quantize(x)),
            Arithmetic::Floats => Self::Floats(x.to_vec()),
        }
    }
}

/// The Q8_K blocks of one vector. What is left after whole blocks of 256 is
/// not quantised: rows of superblocks have none.
pub fn quantize(x: &[f32]) -> Vec<BlockQ8K> {
    x.as_chunks::<QK>()
        .0
        .iter()
        .map(BlockQ8K::quantize)
        .collect()
}

/// The Q8 blocks of one vector. What is left after whole blocks of 32 is not
/// quantised: rows of groups have none.
pub fn quantize_groups(x: &[f32]) -> Vec<BlockQ8> {
    x.as_chunks::<GROUP>()
        .0
        .iter()
        .map(BlockQ8::quantize)
        .collect()
}

/// One row of a matrix with a vector.
///
/// # Panics
/// If the vector has the form of another arithmetic.
pub fn dot(dtype: DType, row: &[u8], x: &Operand) -> f32 {
    /// A match of every format with the function of its arithmetic.
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

/// The end of a product with an operand of another arithmetic.
fn no_form(dtype: DType) -> ! {
    panic!("dot: the vector has no form that {dtype} meets")
}

/// The two chains of superblocks.
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

/// The sum of folds of groups.
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

/// The reduction of floats.
fn floats<F: Float>(row: &[u8], x: &[f32]) -> f32 {
    let value = |i: usize| F::value(&row[i * F::BYTES..][..F::BYTES]);
    reduce::dot_by(x.len(), value, |i| x[i])
}

/// One row of a matrix of superblocks with a quantised vector.
///
/// # Panics
/// If `dtype` has no superblocks.
pub fn dot_quantized(dtype: DType, row: &[u8], y: &[BlockQ8K]) -> f32 {
    dot(dtype, row, &Operand::Superblocks(y.to_vec()))
}

/// One row of a float matrix with a vector.
///
/// # Panics
/// If `dtype` meets quantised activations.
pub fn dot_float(dtype: DType, row: &[u8], x: &[f32]) -> f32 {
    dot(dtype, row, &Operand::Floats(x.to_vec()))
}

/// `out = W x` for one vector.
pub fn project(weight: &Weight, x: &[f32], out: &mut [f32]) {
    let dtype = weight.dtype();
    let x = Operand::new(dtype.arithmetic(), x);
    for (r, o) in out.iter_mut().enumerate() {
        *o = dot(dtype, weight.row(r), &x);
    }
}
