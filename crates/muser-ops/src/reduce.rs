//! The order of float sums in the strict lane (muser's own arithmetic): 256 partial
//! sums, added by halves.
//!
//! ```text
//! partial sum l takes the values i ≡ l (mod 256), ascending:
//!     p_l = fma(x_i, y_i, p_l)          from +0
//! then p_l + p_{l+128} for l < 128, then + 64, 32, 16, 8, 4, 2, 1
//! ```
//!
//! The number of partial sums is fixed so that all backends agree. 256 of them fill 16
//! AVX-512 registers or 32 AVX2 registers, enough that no instruction-set level waits
//! for the latency of an fma. A vector of fewer than 256 values uses the same tree; the
//! partial sums that get no value are +0.

/// The number of partial sums that every float sum of the strict lane (muser's own
/// arithmetic) is taken in.
pub const PARTIALS: usize = 256;

/// Computes the dot product Σ x_i · y_i in the order of sums of the strict lane (muser's
/// own arithmetic): 256 partial sums, added by halves. Ends with the shorter slice.
pub fn dot(x: &[f32], y: &[f32]) -> f32 {
    dot_by(x.len().min(y.len()), |i| x[i], |i| y[i])
}

/// Computes the sum of squares Σ x_i² in the order of sums of the strict lane (muser's
/// own arithmetic): 256 partial sums, added by halves.
pub fn sum_of_squares(x: &[f32]) -> f32 {
    dot(x, x)
}

/// Computes the dot product, as [`dot`] does, of two sequences of `n` values that
/// functions give by index: for weights that are decoded as they are read.
pub fn dot_by(n: usize, x: impl Fn(usize) -> f32, y: impl Fn(usize) -> f32) -> f32 {
    let mut p = [0.0f32; PARTIALS];
    for i in 0..n {
        let l = i % PARTIALS;
        p[l] = x(i).mul_add(y(i), p[l]);
    }
    halve(&mut p)
}

/// Adds 256 partial sums by halves: the upper half to the lower one until one sum is
/// left, which is returned.
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
        // Three values whose sum depends on the order. Where 1 and 2^-24 meet in one
        // partial sum, the small one is rounded away; where the two small ones meet
        // first, their sum is kept.
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
        // A partial sum without a value is +0, and -0 + +0 is +0.
        let u = f32::from_bits(1);
        assert_eq!(dot(&[-u], &[u]).to_bits(), 0);
    }
}
