//! Dot products of floats in the pinned lane (llama.cpp's arithmetic), in the two orders
//! in which llama.cpp's library ggml sums them.
//!
//! With L the number of elements in the float vectors of the profile (a build of
//! llama.cpp), value i of a row is added as follows:
//!
//! ```text
//! vectors      to vector (i / L) % 4, element i % L: fma, ascending, over whole groups
//!   (vec_dot)  of 4 L values;  s_l = (v0_l + v2_l) + (v1_l + v3_l)
//!              AVX-512: s folded by 8, 4, 2, 1
//!              AVX2:    t_l = s_l + s_l+4;  (t0 + t1) + (t2 + t3)
//!              then the remaining values in order, see below
//! tinyBLAS     to element i % L of one vector: fma, ascending; elements without a value
//!              in the last step take fma(0, 0, ·); folded by L / 2, …, 1
//! ```
//!
//! The remaining values of the order of `vec_dot`: for F16 and BF16 the products,
//! rounded, are added in f64. For F32, GCC vectorises the products of L and of L / 2
//! values, adds them one by one, and fuses the last few. BF16 uses two vectors of 16 and
//! folds each (AVX-512), or four of 8 folded by 4, 2, 1 (AVX2).
//!
//! Activations are rounded to F16 for products with F16 weights, and to BF16 for
//! products with BF16 weights.

use crate::Profile;
use muser_quant::{DType, bf16, f16};

/// Rounds an activation to the precision in which llama.cpp multiplies it with weights
/// of this format: F16, BF16, or f32 unchanged.
pub fn activation(dtype: DType, x: f32) -> f32 {
    if dtype == DType::F16 {
        f16::to_f32(f16::from_f32(x))
    } else if dtype == DType::BF16 {
        bf16::to_f32(bf16::from_f32(x))
    } else {
        x
    }
}

/// Returns whether llama.cpp computes a product of `rows` rows of float weights with
/// `columns` vectors by its matrix library tinyBLAS, and not by `vec_dot`.
pub fn is_tiny_blas(rows: usize, columns: usize) -> bool {
    columns >= 2 && rows.is_multiple_of(4)
}

/// Adds the first `width` floats by halves: the upper half to the lower one until one
/// value is left. `width` is a power of two, at most 16.
pub fn fold(x: &[f32], mut width: usize) -> f32 {
    let mut t = [0.0f32; 16];
    t[..width].copy_from_slice(&x[..width]);
    while width > 1 {
        width /= 2;
        for l in 0..width {
            t[l] += t[l + width];
        }
    }
    t[0]
}

/// Adds the elements of a vector of partial sums to one float, in the order of `vec_dot`
/// in this profile (build of llama.cpp).
pub fn fold_vectors(profile: Profile, s: &[f32]) -> f32 {
    match profile {
        Profile::LlamaCppAvx512 => fold(s, 16),
        Profile::LlamaCppAvx2 => {
            let t: [f32; 4] = std::array::from_fn(|l| s[l] + s[l + 4]);
            (t[0] + t[1]) + (t[2] + t[3])
        }
    }
}

/// Computes the dot product Σ w_i · x_i of `n` float weights and activations, in the
/// order of llama.cpp's tinyBLAS.
pub fn tiny_blas(
    profile: Profile,
    n: usize,
    w: impl Fn(usize) -> f32,
    x: impl Fn(usize) -> f32,
) -> f32 {
    let l = profile.vector_width();
    let mut c = [0.0f32; 16];
    for i in 0..n.next_multiple_of(l) {
        let (w, x) = if i < n { (w(i), x(i)) } else { (0.0, 0.0) };
        c[i % l] = w.mul_add(x, c[i % l]);
    }
    fold(&c, l)
}

/// Computes the dot product Σ w_i · x_i of `n` float weights of this format and
/// activations, in the order of llama.cpp's `vec_dot`.
pub fn vectors(
    profile: Profile,
    dtype: DType,
    n: usize,
    w: impl Fn(usize) -> f32,
    x: impl Fn(usize) -> f32,
) -> f32 {
    if dtype == DType::BF16 {
        return vectors_bf16(profile, n, w, x);
    }
    let l = profile.vector_width();
    let whole = n / (4 * l) * (4 * l);
    let mut v = [[0.0f32; 16]; 4];
    for i in 0..whole {
        let a = &mut v[i / l % 4][i % l];
        *a = w(i).mul_add(x(i), *a);
    }
    let s: [f32; 16] = std::array::from_fn(|l| (v[0][l] + v[2][l]) + (v[1][l] + v[3][l]));
    rest(
        profile,
        dtype,
        whole..n,
        fold_vectors(profile, &s).into(),
        w,
        x,
    )
}

/// Adds the products of a row's last values, `left`, to `sum`, the sum of the values
/// before them, as llama.cpp's `vec_dot` does.
pub fn rest(
    profile: Profile,
    dtype: DType,
    left: std::ops::Range<usize>,
    sum: f64,
    w: impl Fn(usize) -> f32,
    x: impl Fn(usize) -> f32,
) -> f32 {
    if dtype == DType::F32 {
        return rest_f32(profile.vector_width(), left, sum as f32, w, x);
    }
    left.fold(sum, |s, i| s + f64::from(w(i) * x(i))) as f32
}

/// Adds the products of the last F32 values of a row to a sum, in the order in which GCC
/// vectorises that loop of llama.cpp.
fn rest_f32(
    l: usize,
    left: std::ops::Range<usize>,
    mut sum: f32,
    w: impl Fn(usize) -> f32,
    x: impl Fn(usize) -> f32,
) -> f32 {
    let mut i = left.start;
    for group in [l, l / 2] {
        while left.end - i >= group {
            for k in i..i + group {
                let product = w(k) * x(k);
                sum += product;
            }
            i += group;
        }
    }
    (i..left.end).fold(sum, |s, i| w(i).mul_add(x(i), s))
}

/// Computes the dot product of BF16 weights with activations in the order of llama.cpp's
/// `vec_dot`, as [`vectors`] does for other formats.
fn vectors_bf16(
    profile: Profile,
    n: usize,
    w: impl Fn(usize) -> f32,
    x: impl Fn(usize) -> f32,
) -> f32 {
    let l = profile.vector_width();
    let whole = n / 32 * 32;
    let mut c = [[0.0f32; 16]; 4];
    for i in 0..whole {
        let a = &mut c[i % 32 / l][i % l];
        *a = w(i).mul_add(x(i), *a);
    }
    let sum = match profile {
        Profile::LlamaCppAvx512 => f64::from(fold(&c[0], 16)) + f64::from(fold(&c[1], 16)),
        Profile::LlamaCppAvx2 => {
            let s: [f32; 8] = std::array::from_fn(|l| (c[0][l] + c[2][l]) + (c[1][l] + c[3][l]));
            f64::from(fold(&s, 8))
        }
    };
    rest(profile, DType::BF16, whole..n, sum, w, x)
}
