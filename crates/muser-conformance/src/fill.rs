//! Generates the conformance suite's inputs: activations and weight bytes of every kind
//! that some kernel has computed wrong.

use super::rng::Rng;
use muser_quant::{DType, Layout, QK, bf16, f16};

/// The random distributions that 256 test activations (one block) are drawn from. Each
/// aims at a rule of the quantisation, of the reductions or of the conversion to f16.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Normal,
    /// Test activations that are normally distributed, some of them thousands of times
    /// larger than the rest.
    HeavyTail,
    /// Test activations of one magnitude with both signs: the first one decides the
    /// sign of the quantised block's scale.
    Ties,
    /// Test activations halfway between two quantised values (codes) of the 8-bit
    /// quantisation, whose scale is 1.
    HalfCodes,
    Zeros,
    NegativeZeros,
    Subnormals,
    /// Test activations around 3.7e-37, the magnitude below which the quantisation
    /// takes a block as zeros; the block's scale is subnormal.
    Tiny,
    Huge,
    Equal,
    /// Test activations of which one, at a random place or at the end, is far larger
    /// than the rest.
    OneMax,
    /// Test activations that are mostly zeros of both signs, with some normally
    /// distributed values.
    Sparse,
    /// Test activations around the largest f16, and halfway between two f16.
    HalfRange,
}

const FINITE: [Kind; 13] = [
    Kind::Normal,
    Kind::HeavyTail,
    Kind::Ties,
    Kind::HalfCodes,
    Kind::Zeros,
    Kind::NegativeZeros,
    Kind::Subnormals,
    Kind::Tiny,
    Kind::Huge,
    Kind::Equal,
    Kind::OneMax,
    Kind::Sparse,
    Kind::HalfRange,
];

/// The number of turns after which [`activations`] repeats the random distributions
/// that it draws rows of test activations from.
pub(super) const KINDS: usize = FINITE.len() + 5;

/// Returns a row of `n` random test activations; `turn` picks their distribution: each
/// one alone, blocks of mixed ones, normally distributed ones, and last a row with a
/// single NaN or infinity.
pub(super) fn activations(rng: &mut Rng, turn: usize, n: usize) -> Vec<f32> {
    let turn = turn % KINDS;
    let mut x = vec![0.0; n];
    for block in x.chunks_mut(QK) {
        let kind = match turn {
            t if t < FINITE.len() => FINITE[t],
            t if t < FINITE.len() + 2 => rng.pick(&FINITE),
            _ => Kind::Normal,
        };
        fill(rng, kind, block);
    }
    if turn == KINDS - 1 {
        let at = rng.below(n);
        x[at] = rng.pick(&[f32::NAN, f32::INFINITY, f32::NEG_INFINITY, -f32::NAN]);
    }
    x
}

/// Returns `n` normally distributed test activations, such as a model has.
pub(super) fn plain(rng: &mut Rng, n: usize) -> Vec<f32> {
    (0..n).map(|_| rng.normal()).collect()
}

fn fill(rng: &mut Rng, kind: Kind, x: &mut [f32]) {
    let level = rng.pick(&[1.0f32, 0.03, 70.0]);
    let last = x.len() - 1;
    let at = if rng.below(4) == 0 {
        last
    } else {
        rng.below(last + 1)
    };
    let tiny = 3.732e-37 * rng.pick(&[0.999f32, 1.0, 1.001, 3.0]);
    for (i, v) in x.iter_mut().enumerate() {
        *v = match kind {
            Kind::Normal => rng.normal() * level,
            Kind::HeavyTail => rng.normal() * rng.pick(&[1.0, 1.0, 1.0, 1e-3, 4096.0]),
            Kind::Ties => rng.sign(level),
            Kind::HalfCodes if i == at => rng.sign(127.0),
            Kind::HalfCodes => rng.below(254) as f32 - 126.5,
            Kind::Zeros => 0.0,
            Kind::NegativeZeros => -0.0,
            Kind::Subnormals => f32::from_bits(rng.bits() as u32 & 0x807f_ffff),
            Kind::Tiny if i == at => rng.sign(tiny),
            Kind::Tiny => rng.signed() * tiny,
            Kind::Huge => rng.pick_signed(&[1e38, 3e38, f32::MAX, 1e37, 1.0]),
            Kind::Equal => level,
            Kind::OneMax if i == at => rng.sign(1000.0),
            Kind::OneMax => rng.normal(),
            Kind::Sparse if rng.below(8) == 0 => rng.normal(),
            Kind::Sparse => rng.sign(0.0),
            Kind::HalfRange => rng.pick_signed(&[
                65504.0,
                65519.99,
                65520.0,
                1e6,
                5.96e-8,
                2.98e-8,
                2.99e-8,
                6.1e-5,
                1.000_488_3,
                1.0,
            ]),
        };
    }
}

/// The random distributions that a row of test weights is drawn from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Style {
    /// Weights with scales of similar size, so that every rounding affects the result.
    Plain,
    /// Weights with any finite scale, including zeros, subnormals and the largest.
    Mixed,
    /// Weights whose quantised values (codes) and sub-block scales are at the ends of
    /// their ranges, which gives the largest integer sums.
    Extreme,
    /// Weights of which one block, or one value of a float format, is infinite or NaN.
    NotFinite,
}

const STYLES: [Style; 7] = [
    Style::Plain,
    Style::Mixed,
    Style::Plain,
    Style::Extreme,
    Style::Mixed,
    Style::NotFinite,
    Style::Extreme,
];

/// Returns the bytes of `rows × cols` test weights, random wherever the format allows
/// any byte. Successive rows have different random distributions; `turn` sets the first
/// one.
pub(super) fn weights(
    rng: &mut Rng,
    dtype: DType,
    rows: usize,
    cols: usize,
    turn: usize,
) -> Vec<u8> {
    let mut out = Vec::new();
    for r in 0..rows {
        let style = STYLES[(turn + r) % STYLES.len()];
        if dtype == DType::F32 {
            for x in floats(rng, style, cols) {
                out.extend(x.to_le_bytes());
            }
        } else if dtype == DType::F16 {
            halves(rng, style, cols, f16_bits(style), &mut out);
        } else if dtype == DType::BF16 {
            halves(rng, style, cols, bf16_bits(style), &mut out);
        } else {
            blocks(rng, style, dtype, cols / dtype.block_values(), &mut out);
        }
    }
    out
}

fn floats(rng: &mut Rng, style: Style, n: usize) -> Vec<f32> {
    let mut x: Vec<f32> = (0..n)
        .map(|_| match style {
            Style::Mixed => finite(rng.bits() as u32),
            Style::Extreme => rng.pick_signed(&[f32::MAX, f32::MIN_POSITIVE, 1e-45, 0.0, 1.0]),
            Style::Plain | Style::NotFinite => rng.normal(),
        })
        .collect();
    if style == Style::NotFinite {
        let at = rng.below(n);
        x[at] = rng.pick(&[f32::NAN, f32::INFINITY, f32::NEG_INFINITY]);
    }
    x
}

/// Returns the f32 of these bits, with a smaller exponent if they stand for an infinity
/// or a NaN.
fn finite(bits: u32) -> f32 {
    let x = f32::from_bits(bits);
    if x.is_finite() {
        x
    } else {
        f32::from_bits(bits ^ 1 << 30)
    }
}

fn halves(
    rng: &mut Rng,
    style: Style,
    n: usize,
    mut bits: impl FnMut(&mut Rng) -> u16,
    out: &mut Vec<u8>,
) {
    let bad = (style == Style::NotFinite).then(|| rng.below(n));
    for i in 0..n {
        // Infinities and NaNs: the first four as F16, the others as BF16 (as F16 those
        // are NaNs too).
        let v = if bad == Some(i) {
            rng.pick(&[0x7c00, 0xfc00, 0x7e00, 0x7c01, 0x7f80, 0xff80, 0x7fff])
        } else {
            bits(rng)
        };
        out.extend(v.to_le_bytes());
    }
}

fn f16_bits(style: Style) -> impl FnMut(&mut Rng) -> u16 {
    move |rng| match style {
        Style::Mixed => f16_finite(rng),
        Style::Extreme => rng.pick(&[0x7bff, 0xfbff, 0x0001, 0x83ff, 0x0400, 0x8000]),
        Style::Plain | Style::NotFinite => f16::from_f32(rng.normal()),
    }
}

fn bf16_bits(style: Style) -> impl FnMut(&mut Rng) -> u16 {
    move |rng| match style {
        Style::Mixed => {
            let bits = (rng.bits() as u32) << 16;
            (finite(bits).to_bits() >> 16) as u16
        }
        Style::Extreme => rng.pick(&[0x7f7f, 0xff7f, 0x0001, 0x807f, 0x0080, 0x8000]),
        Style::Plain | Style::NotFinite => bf16::from_f32(rng.normal()),
    }
}

/// Returns the bits of a random finite f16.
fn f16_finite(rng: &mut Rng) -> u16 {
    let bits = rng.bits() as u16;
    if bits & 0x7c00 == 0x7c00 {
        bits ^ 0x4000
    } else {
        bits
    }
}

/// Returns the bits of a random f16 scale for a quantised block of test weights.
fn scale(rng: &mut Rng, style: Style) -> u16 {
    match style {
        Style::Mixed => {
            let any = f16_finite(rng);
            let subnormal = rng.below(0x400) as u16;
            rng.pick(&[any, any, 0, 0x8000, 0xa666, subnormal, 0x7bff, 0xfbff])
        }
        // Positive scales from 2^-10 to 2^-5.
        _ => ((5 + rng.below(5)) << 10 | rng.below(1 << 10)) as u16,
    }
}

fn blocks(rng: &mut Rng, style: Style, dtype: DType, n: usize, out: &mut Vec<u8>) {
    let Layout {
        factors,
        scales,
        codes,
        ..
    } = dtype.layout();
    let bad = (style == Style::NotFinite).then(|| rng.below(n));
    for i in 0..n {
        let mut b: Vec<u8> = (0..dtype.block_bytes()).map(|_| rng.byte()).collect();
        if style == Style::Extreme {
            let (s, c) = (rng.pick(&[0xff, 0, 0x7f, 0x80, 0x3f]), rng.pick(&[0xff, 0]));
            b[scales.clone()].fill(s);
            b[codes.clone()].fill(c);
        }
        for &at in factors {
            let d = scale(rng, style);
            b[at..at + 2].copy_from_slice(&d.to_le_bytes());
        }
        if bad == Some(i) {
            let at = rng.pick(factors);
            let d: u16 = rng.pick(&[0x7c00, 0xfc00, 0x7e00, 0x7c01, 0xffff]);
            b[at..at + 2].copy_from_slice(&d.to_le_bytes());
        }
        out.extend(b);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_kind_in_each_round_is_not_finite_and_no_other() {
        let mut rng = Rng::new(3, "fill");
        for turn in 0..3 * KINDS {
            let x = activations(&mut rng, turn, 700);
            let bad = x.iter().filter(|v| !v.is_finite()).count();
            assert_eq!(bad, usize::from(turn % KINDS == KINDS - 1), "turn {turn}");
        }
    }

    #[test]
    fn weights_have_the_size_of_their_format() {
        let mut rng = Rng::new(3, "fill");
        for dtype in DType::ALL {
            let bytes = weights(&mut rng, dtype, 9, 512, 0);
            assert_eq!(Some(bytes.len()), dtype.row_bytes(512).map(|n| 9 * n));
            let mut out = vec![0.0; 512];
            for (r, row) in bytes.chunks(bytes.len() / 9).enumerate() {
                dtype.decode_row(row, &mut out).unwrap();
                let finite = out.iter().all(|x| x.is_finite());
                let expected = STYLES[r % STYLES.len()] != Style::NotFinite;
                // The bits of an infinity or NaN in F16 can be a finite number in BF16.
                assert!(finite == expected || dtype == DType::BF16, "{dtype} {r}");
            }
        }
    }
}
