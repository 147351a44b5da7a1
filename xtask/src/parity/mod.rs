//! `cargo xtask parity`: the pinned lane against llama.cpp, bit for bit.
//!
//! Builds the comparator for each profile and runs the products with K-quant
//! weights over widths, shapes and inputs; prints a table of cases, values
//! compared and values different, names the first difference of each case that
//! has one, and fails if there was any or if nothing was compared. Cases of too
//! many multiply-adds for the scalar side are left out and counted. The seed is printed; `--seed` repeats or varies a run.

mod comparator;

use comparator::{Comparator, Product};
use muser_ops::pinned::project::{Route, project, route};
use muser_ops::{Profile, UnknownProfile, Weight};
use muser_quant::DType;

const PROFILES: [&str; 2] = ["llamacpp-avx2", "llamacpp-avx512"];
const WIDTHS: [usize; 19] = [
    1, 2, 3, 4, 5, 6, 7, 8, 9, 15, 16, 17, 31, 32, 33, 64, 100, 256, 512,
];
/// Rows and columns; one whole product is about a million multiply-adds.
const SHAPES: [(usize, usize); 9] = [
    (1, 256),
    (7, 512),
    (8, 256),
    (8, 6656),
    (64, 512),
    (250, 256),
    (256, 512),
    (9, 4096),
    (8, 19968),
];
/// The most multiply-adds of a case: the scalar side is slow.
const LIMIT: usize = 6 << 20;

/// The command.
pub(crate) fn command(root: &std::path::Path, options: &[&str]) -> Result<(), String> {
    let (mut profiles, mut seed, mut quick) = (PROFILES.to_vec(), 20_260_101u64, false);
    let mut options = options.iter();
    while let Some(option) = options.next() {
        match *option {
            "--quick" => quick = true,
            "--profile" => profiles = vec![*options.next().ok_or("--profile needs a name")?],
            "--seed" => {
                let text = options.next().ok_or("--seed needs a number")?;
                seed = text.parse().map_err(|e| format!("--seed {text}: {e}"))?;
            }
            other => return Err(format!("unknown option {other:?}")),
        }
    }
    let (mut different, mut compared) = (0, 0);
    for profile in profiles {
        let pinned = profile.parse().map_err(|e: UnknownProfile| e.to_string())?;
        let mut comparator = comparator::start(root, profile)?;
        println!("{profile}, seed {seed}: {}", comparator.info);
        for dtype in [DType::Q4K, DType::Q5K, DType::Q6K] {
            let (counts, left_out) = products(&mut comparator, pinned, dtype, seed, quick)?;
            println!("  matvec/{dtype}: {left_out} shapes and widths left out as too large");
            for (route, c) in counts {
                println!(
                    "  matvec/{dtype} {route:?}: {} cases, {} values compared, {} different",
                    c.cases, c.values, c.different
                );
                different += c.different;
                compared += c.values;
            }
        }
    }
    if compared == 0 {
        return Err("nothing was compared".to_owned());
    }
    if different > 0 {
        return Err(format!("{different} values differ from llama.cpp's"));
    }
    Ok(())
}

#[derive(Clone, Copy, Default)]
struct Counts {
    cases: usize,
    values: usize,
    different: usize,
}

/// All cases of one weight format, counted by route, and how many were left out.
fn products(
    comparator: &mut Comparator,
    pinned: Profile,
    dtype: DType,
    seed: u64,
    quick: bool,
) -> Result<(Vec<(Route, Counts)>, usize), String> {
    let mut left_out = 0;
    let mut counts: Vec<(Route, Counts)> = Vec::new();
    let mut rng = Rng(seed ^ dtype.block_bytes() as u64);
    for (rows, cols) in SHAPES {
        for columns in WIDTHS {
            if rows * cols * columns > if quick { LIMIT / 8 } else { LIMIT } {
                left_out += 1;
                continue;
            }
            let weights = rng.weights(dtype, rows * cols / 256);
            for input in INPUTS {
                let x = rng.input(input, columns * cols);
                let threads = 1 + rng.next() as usize % 3;
                let case = Product {
                    dtype,
                    rows,
                    cols,
                    columns,
                    weights: &weights,
                    x: &x,
                    threads,
                };
                let want = comparator.product(&case)?;
                let weight = Weight::new("w", weights.clone(), dtype, rows, cols)
                    .map_err(|e| e.to_string())?;
                let mut got = vec![f32::NAN; want.len()];
                project(pinned, &weight, &x, &mut got);
                let differ = differences(&want, &got);
                if let Some(&first) = differ.first() {
                    let (column, row) = (first / rows, first % rows);
                    let route = route(dtype, rows, columns, column);
                    println!(
                        "  {dtype} [{cols}, {rows}] x {columns} {input:?}, {threads} threads: \
                         {} values differ, first column {column} row {row} ({route:?}): \
                         llama.cpp {:08x}, ours {:08x}",
                        differ.len(),
                        want[first].to_bits(),
                        got[first].to_bits()
                    );
                }
                count(&mut counts, &case, &differ);
            }
        }
    }
    Ok((counts, left_out))
}

/// Adds a case to the routes that its columns took.
fn count(counts: &mut Vec<(Route, Counts)>, case: &Product<'_>, differ: &[usize]) {
    let mut last = None;
    for column in 0..case.columns {
        let route = route(case.dtype, case.rows, case.columns, column);
        let at = counts
            .iter()
            .position(|(r, _)| *r == route)
            .unwrap_or_else(|| {
                counts.push((route, Counts::default()));
                counts.len() - 1
            });
        let c = &mut counts[at].1;
        c.cases += usize::from(last != Some(route));
        c.values += case.rows;
        c.different += differ.iter().filter(|&&i| i / case.rows == column).count();
        last = Some(route);
    }
}

/// Where the bits differ. A missing value differs; a NaN equals a NaN.
fn differences(want: &[f32], got: &[f32]) -> Vec<usize> {
    let same = |a: f32, b: f32| a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan());
    (0..want.len().max(got.len()))
        .filter(|&i| !matches!((want.get(i), got.get(i)), (Some(&a), Some(&b)) if same(a, b)))
        .collect()
}

#[derive(Clone, Copy, Debug)]
enum Input {
    Normal,
    HeavyTailed,
    Ties,
    Zeros,
    Subnormal,
    Huge,
}

const INPUTS: [Input; 6] = [
    Input::Normal,
    Input::HeavyTailed,
    Input::Ties,
    Input::Zeros,
    Input::Subnormal,
    Input::Huge,
];

/// SplitMix64.
struct Rng(u64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// In -1 .. 1.
    fn unit(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    }

    /// Blocks of random bytes with sane factors: f16 of up to 0.1.
    fn weights(&mut self, dtype: DType, blocks: usize) -> Vec<u8> {
        let n = dtype.block_bytes();
        let mut bytes: Vec<u8> = (0..blocks * n).map(|_| self.next() as u8).collect();
        for block in bytes.chunks_exact_mut(n) {
            let factors: &[usize] = if dtype == DType::Q6K { &[208] } else { &[0, 2] };
            for &at in factors {
                let d = muser_quant::f16::from_f32(0.1 * self.unit());
                block[at..at + 2].copy_from_slice(&d.to_le_bytes());
            }
        }
        bytes
    }

    fn input(&mut self, kind: Input, n: usize) -> Vec<f32> {
        (0..n)
            .map(|i| match kind {
                Input::Normal => self.unit() + self.unit() + self.unit(),
                Input::HeavyTailed => self.unit().powi(9) * 50.0,
                Input::Ties => [1.5, -1.5, 0.75, -0.75][self.next() as usize % 4],
                Input::Zeros => match self.next() % 64 {
                    0 if i >= 256 => self.unit(),
                    1 => -0.0,
                    _ => 0.0,
                },
                Input::Subnormal => self.unit() * 1e-39,
                Input::Huge => self.unit() * 1e30,
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moved_rounding_is_a_difference() {
        let want = [1.0f32, -0.0, f32::NAN, 3.0];
        assert!(differences(&want, &want).is_empty());
        assert_eq!(differences(&want, &[1.0, 0.0, f32::NAN, 3.0]), [1]);
        let next = f32::from_bits(3.0f32.to_bits() + 1);
        assert_eq!(differences(&want, &[1.0, -0.0, 2.0, next]), [2, 3]);
        assert_eq!(differences(&want, &want[..3]), [3]);
    }
}
