//! Rotary position encoding of interleaved pairs (2i, 2i + 1) of a head's values.
//!
//! ```text
//! f_i = base^(-2 i / d)              f64, libm's pow
//! c, s = cos, sin(position · f_i)    f64, libm's, rounded to f32
//! x'_2i   = x_2i · c - x_2i+1 · s    every product and sum rounded
//! x'_2i+1 = x_2i · s + x_2i+1 · c
//! ```
//!
//! The functions `pow` and `sincos` come from the `libm` crate, never from the platform,
//! so that the table of cosines and sines is the same everywhere. A position costs d / 2
//! evaluations, with d the number of values in a head; all layers and heads share the
//! table.

use crate::{Lane, pinned};

/// The parameters of a rotary position encoding, the same in both lanes (arithmetics).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RopeSpec {
    /// The base of the rotary encoding's frequencies: frequency i is
    /// `base^(-2 i / head_dim)`.
    pub base: f32,
    /// The number of values in an attention head, all of which are rotated; even.
    pub head_dim: usize,
}

/// The frequencies of a rotary position encoding in one lane (arithmetic).
#[derive(Clone, Debug, PartialEq)]
pub struct RopeFrequencies {
    base: f32,
    d: usize,
    /// The frequency of each rotated pair in the strict lane (muser's own arithmetic).
    /// `None` in the pinned lane (llama.cpp's), whose angles are a running product
    /// ([`pinned::rope`]).
    factors: Option<Vec<f64>>,
}

impl RopeFrequencies {
    /// Computes the `d / 2` frequencies of the rotary encoding of a head of `d` values.
    pub fn new(lane: Lane, RopeSpec { base, head_dim: d }: RopeSpec) -> Self {
        let factors = match lane {
            Lane::Strict => {
                let base = f64::from(base);
                let f = |i: usize| libm::pow(base, -((2 * i) as f64) / d as f64);
                Some((0..d / 2).map(f).collect())
            }
            Lane::Pinned(_) => None,
        };
        Self { base, d, factors }
    }

    /// Returns the number of pairs of values in an attention head that the rotary
    /// encoding rotates.
    pub fn pairs(&self) -> usize {
        self.d / 2
    }

    /// Computes the table of the rotary encoding's cosines and sines for the positions
    /// `first .. first + rows`.
    pub fn table(&self, first: usize, rows: usize) -> RopeTable {
        let Some(factors) = &self.factors else {
            return pinned::rope::table(self.base, self.d, first, rows);
        };
        table_of(self.d / 2, first, rows, |position, out| {
            for f in factors {
                let (sin, cos) = libm::sincos(position as f64 * f);
                out(cos as f32, sin as f32);
            }
        })
    }
}

/// Makes a table of the rotary encoding for the positions `first .. first + rows`. For
/// each position, `fill` passes the cosine and sine of every pair to the function that it
/// is given.
pub(crate) fn table_of(
    pairs: usize,
    first: usize,
    rows: usize,
    fill: impl Fn(usize, &mut dyn FnMut(f32, f32)),
) -> RopeTable {
    let mut table = RopeTable {
        pairs,
        cos: Vec::with_capacity(rows * pairs),
        sin: Vec::with_capacity(rows * pairs),
    };
    for position in first..first + rows {
        fill(position, &mut |cos, sin| {
            table.cos.push(cos);
            table.sin.push(sin);
        });
    }
    table
}

/// A table of the rotary encoding's cosines and sines at consecutive positions,
/// `[rows, pairs]`.
#[derive(Clone, Debug, PartialEq)]
pub struct RopeTable {
    pairs: usize,
    cos: Vec<f32>,
    sin: Vec<f32>,
}

impl RopeTable {
    /// Returns the number of pairs of values in an attention head that are rotated: the
    /// number of cosines that the table has for each position.
    pub fn pairs(&self) -> usize {
        self.pairs
    }

    /// Returns the number of positions in the table of the rotary encoding's cosines and
    /// sines.
    pub fn rows(&self) -> usize {
        self.cos.len().checked_div(self.pairs).unwrap_or(0)
    }

    /// Returns the rotary encoding's cosines and sines in row `row` of the table (one
    /// position), each `pairs` long.
    ///
    /// # Panics
    /// If there is no such row.
    pub fn row(&self, row: usize) -> (&[f32], &[f32]) {
        let at = row * self.pairs..(row + 1) * self.pairs;
        (&self.cos[at.clone()], &self.sin[at])
    }
}

/// Applies the rotary encoding: rotates every head of the row `x` of activations in
/// place, by the angles in row `row` of the table.
pub fn rope(x: &mut [f32], table: &RopeTable, row: usize) {
    let (cos, sin) = table.row(row);
    for head in x.chunks_exact_mut(2 * table.pairs) {
        for ((pair, &c), &s) in head.as_chunks_mut::<2>().0.iter_mut().zip(cos).zip(sin) {
            let [a, b] = *pair;
            *pair = [a * c - b * s, a * s + b * c];
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frequencies(base: f32, head_dim: usize) -> RopeFrequencies {
        RopeFrequencies::new(Lane::Strict, RopeSpec { base, head_dim })
    }

    #[test]
    fn position_zero_rotates_nothing_and_pairs_are_neighbours() {
        let f = frequencies(500_000.0, 4);
        let mut x = [1.0, 2.0, 3.0, 4.0];
        rope(&mut x, &f.table(0, 1), 0);
        assert_eq!(x, [1.0, 2.0, 3.0, 4.0]);
        // The first pair rotates by one radian a position: (1, 0) -> (cos, sin).
        let mut x = [1.0, 0.0, 0.0, 0.0];
        rope(&mut x, &f.table(0, 2), 1);
        assert_eq!(x, [libm::cos(1.0) as f32, libm::sin(1.0) as f32, 0.0, 0.0]);
    }

    #[test]
    fn a_table_does_not_depend_on_where_it_starts() {
        let f = frequencies(10_000.0, 128);
        let (all, part) = (f.table(0, 50), f.table(37, 3));
        assert_eq!(all.row(38), part.row(1));
        assert_eq!(part.rows(), 3);
    }
}
