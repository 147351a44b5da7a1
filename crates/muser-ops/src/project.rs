//! Projections: one input, a *set* of matrices, disjoint outputs.
//!
//! Q, K, V and the attention gate read one vector; so do the FFN's gate and
//! up. Such matrices are one descriptor: the input is quantised once and the
//! rows of all of them are one pool of work.
//!
//! ```text
//! K-quant row · Q8_K vector, superblocks b ascending, from zero:
//!     S_b = Σ_j s_j Σ_i q_ij a_ij        exact integer, |S_b| < 2^27
//!     M_b = Σ_j m_j Σ_i a_ij             exact integer (Q4_K, Q5_K)
//!     acc  = fma(f32(S_b), f32(d_b)    · y_b, acc)
//!     accm = fma(f32(M_b), f32(dmin_b) · y_b, accm)
//! result acc - accm                      (Q6_K: acc)
//!
//! F16, BF16, F32 row · f32 vector: Σ w_i · x_i in the order of `reduce`
//! ```
//!
//! `y_b` is the activation's scale; each product of factors is rounded to
//! f32, and so is each integer, to nearest even. A batch is this for each of
//! its vectors: the width of the batch changes no bit.

use crate::{Weight, reduce};
use muser_quant::q4_k::BlockQ4K;
use muser_quant::q5_k::BlockQ5K;
use muser_quant::q6_k::BlockQ6K;
use muser_quant::q8_k::BlockQ8K;
use muser_quant::{DType, QK, bf16, f16};

/// The Q8_K blocks of one vector. What is left after whole blocks of 256 is
/// not quantised: K-quant rows have none.
pub fn quantize(x: &[f32]) -> Vec<BlockQ8K> {
    x.as_chunks::<QK>()
        .0
        .iter()
        .map(BlockQ8K::quantize)
        .collect()
}

/// One row of a K-quant matrix with a quantised vector.
///
/// # Panics
/// If `dtype` is no K-quant.
pub fn dot_quantized(dtype: DType, row: &[u8], y: &[BlockQ8K]) -> f32 {
    match dtype {
        DType::Q4K => with_minimum::<144>(row, y, |b, a| {
            let b = BlockQ4K::from_bytes(b);
            (b.dot(a), b.d, b.dmin)
        }),
        DType::Q5K => with_minimum::<176>(row, y, |b, a| {
            let b = BlockQ5K::from_bytes(b);
            (b.dot(a), b.d, b.dmin)
        }),
        DType::Q6K => {
            let mut acc = 0.0f32;
            for (b, a) in row.as_chunks::<210>().0.iter().zip(y) {
                let b = BlockQ6K::from_bytes(b);
                acc = (b.dot(a) as f32).mul_add(f16::to_f32(b.d) * a.d, acc);
            }
            acc
        }
        _ => panic!("dot_quantized: {dtype} has no superblocks"),
    }
}

/// The two chains of Q4_K and Q5_K; `dot` gives ((S, M), d, dmin).
fn with_minimum<const N: usize>(
    row: &[u8],
    y: &[BlockQ8K],
    dot: impl Fn(&[u8; N], &BlockQ8K) -> ((i32, i32), u16, u16),
) -> f32 {
    let (mut acc, mut accm) = (0.0f32, 0.0f32);
    for (b, a) in row.as_chunks::<N>().0.iter().zip(y) {
        let ((s, m), d, dmin) = dot(b, a);
        acc = (s as f32).mul_add(f16::to_f32(d) * a.d, acc);
        accm = (m as f32).mul_add(f16::to_f32(dmin) * a.d, accm);
    }
    acc - accm
}

/// One row of a float matrix with a vector.
///
/// # Panics
/// If `dtype` is a K-quant.
pub fn dot_float(dtype: DType, row: &[u8], x: &[f32]) -> f32 {
    let half = |i: usize| u16::from_le_bytes([row[2 * i], row[2 * i + 1]]);
    match dtype {
        DType::F16 => reduce::dot_by(x.len(), |i| f16::to_f32(half(i)), |i| x[i]),
        DType::BF16 => reduce::dot_by(x.len(), |i| bf16::to_f32(half(i)), |i| x[i]),
        DType::F32 => reduce::dot(&muser_quant::f32::read(row), x),
        _ => panic!("dot_float: {dtype} meets quantised activations"),
    }
}

/// `out = W x` for one vector.
pub fn project(weight: &Weight, x: &[f32], out: &mut [f32]) {
    let dtype = weight.dtype();
    if dtype.is_k_quant() {
        let y = quantize(x);
        for (r, o) in out.iter_mut().enumerate() {
            *o = dot_quantized(dtype, weight.row(r), &y);
        }
    } else {
        for (r, o) in out.iter_mut().enumerate() {
            *o = dot_float(dtype, weight.row(r), x);
        }
    }
}
