//! Rotary position encoding in the pinned lane (llama.cpp's arithmetic): each pair's
//! angle is the one before it times a constant, and the rotation uses fma.
//!
//! ```text
//! θ_0 = f32(position);  θ_i+1 = θ_i · powf(base, -2 / d)     rounded each time
//! c, s = cosf, sinf(θ_i)                                      the math library's
//! x'_2i   = fma(x_2i, c, -(x_2i+1 · s))
//! x'_2i+1 = fma(x_2i, s, x_2i+1 · c)
//! ```
//!
//! GCC fuses the rotation in whole vectors only, so attention heads whose size is not a
//! multiple of 8 are refused.

use crate::{RopeTable, rope::table_of};

/// Computes the rotary encoding's cosines and sines as llama.cpp does, for the positions
/// `first .. first + rows` and heads of `d` values.
pub fn table(base: f32, d: usize, first: usize, rows: usize) -> RopeTable {
    let step = base.powf(-2.0 / d as f32);
    table_of(d / 2, first, rows, |position, out| {
        let mut theta = position as f32;
        for _ in 0..d / 2 {
            out(theta.cos(), theta.sin());
            theta *= step;
        }
    })
}

/// Applies the rotary encoding as llama.cpp does: rotates every head of the row `x` of
/// activations in place, by the angles in row `row` of the table.
pub fn rope(x: &mut [f32], table: &RopeTable, row: usize) {
    let (cos, sin) = table.row(row);
    for head in x.chunks_exact_mut(2 * table.pairs()) {
        for ((pair, &c), &s) in head.as_chunks_mut::<2>().0.iter_mut().zip(cos).zip(sin) {
            let [a, b] = *pair;
            *pair = [a.mul_add(c, -(b * s)), a.mul_add(s, b * c)];
        }
    }
}
