//! The one order in which floats are summed: 256 lanes, then halving.
//!
//! ```text
//! lane l takes the elements i ≡ l (mod 256), ascending:
//!     p_l = fma(x_i, y_i, p_l)          from +0
//! then p_l + p_{l+128} for l < 128, then + 64, 32, 16, 8, 4, 2, 1
//! ```
//!
//! 256 lanes are 16 AVX-512 registers, or 32 of AVX2 in passes: wide enough
//! that no level waits for the latency of an fma, fixed so that all agree. A
//! vector shorter than 256 uses the same tree, its missing lanes +0.

/// Lanes of the reduction.
pub const PARTIALS: usize = 256;

/// Σ x_i · y_i in the order of this module. The shorter of the two ends it.
pub fn dot(x: &[f32], y: &[f32]) -> f32 {
    dot_by(x.len().min(y.len()), |i| x[i], |i| y[i])
}

/// Σ x_i² in the order of this module.
pub fn sum_of_squares(x: &[f32]) -> f32 {
    dot(x, x)
}

/// [`dot`] over values that are decoded as they are read.
pub fn dot_by(n: usize, x: impl Fn(usize) -> f32, y: impl Fn(usize) -> f32) -> f32 {
    let mut p = [0.0f32; PARTIALS];
    for i in 0..n {
        let l = i % PARTIALS;
        p[l] = x(i).mul_add(y(i), p[l]);
    }
    halve(&mut p)
}

/// The halving tree over the lanes.
pub fn halve(p: &mut [f32; PARTIALS]) -> f32 {
    let mut width = PARTIALS / 2;
    while width > 0 {
        for l in 0..width {
            p[l] += p[l + width];
        }
        width /= 2;
    }
    p[0]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_order_is_the_written_one() {
        // Three values whose sum depends on the order: 1 and 2^-24 meet in one
        // lane (the small one is lost), or in different lanes with another
        // small one (kept).
        let tiny = 2f32.powi(-24);
        let mut x = vec![0.0f32; 513];
        x[0] = 1.0;
        x[256] = tiny;
        x[512] = tiny;
        assert_eq!(dot(&x, &vec![1.0; 513]), 1.0);
        let mut x = vec![0.0f32; 513];
        x[0] = 1.0;
        x[1] = tiny;
        x[129] = tiny;
        assert_eq!(dot(&x, &vec![1.0; 513]), 1.0 + 2.0 * tiny);
    }

    #[test]
    fn short_vectors_use_the_same_tree() {
        let x = [3.0f32, 4.0];
        assert_eq!(sum_of_squares(&x), 25.0);
        assert_eq!(sum_of_squares(&[]).to_bits(), 0);
        // A missing lane is +0, and -0 + +0 is +0.
        let u = f32::from_bits(1);
        assert_eq!(dot(&[-u], &[u]).to_bits(), 0);
    }
}
