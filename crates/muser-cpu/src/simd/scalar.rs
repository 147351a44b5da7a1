//! The portable level: a vector is one value.
//!
//! `mul_add` without the FMA feature is a call into the platform's `fmaf`,
//! exact by IEEE and slow (2 to 3 ns): the price of the same bits on a machine
//! without the instruction.

use crate::kernels::matmul::{PANEL, PanelBlock, Unpacked, link};
use muser_quant::{bf16, f16};

/// One value.
pub(crate) type V = f32;
/// Values in a vector.
pub(crate) const LANES: usize = 1;
/// Query heads that attention treats at once.
pub(crate) const HEAD_BLOCK: usize = 2;

pub(crate) fn load(x: &[f32], at: usize) -> V {
    x[at]
}
pub(crate) fn store(x: &mut [f32], at: usize, v: V) {
    x[at] = v;
}
pub(crate) fn load_f32_bytes(x: &[u8], at: usize) -> V {
    f32::from_le_bytes([x[4 * at], x[4 * at + 1], x[4 * at + 2], x[4 * at + 3]])
}
pub(crate) fn load_f16_bytes(x: &[u8], at: usize) -> V {
    f16::to_f32(u16::from_le_bytes([x[2 * at], x[2 * at + 1]]))
}
pub(crate) fn load_bf16_bytes(x: &[u8], at: usize) -> V {
    bf16::to_f32(u16::from_le_bytes([x[2 * at], x[2 * at + 1]]))
}
pub(crate) fn load_f16(x: &[u16], at: usize) -> V {
    f16::to_f32(x[at])
}
pub(crate) fn store_f16(x: &mut [u16], at: usize, v: V) {
    x[at] = f16::from_f32(v);
}
/// Rounded to f16 and back.
pub(crate) fn half(x: V) -> V {
    f16::to_f32(f16::from_f32(x))
}
pub(crate) fn splat(x: f32) -> V {
    x
}
pub(crate) fn add(a: V, b: V) -> V {
    a + b
}
pub(crate) fn sub(a: V, b: V) -> V {
    a - b
}
pub(crate) fn mul(a: V, b: V) -> V {
    a * b
}
pub(crate) fn div(a: V, b: V) -> V {
    a / b
}
/// a · b + c, rounded once.
pub(crate) fn fma(a: V, b: V, c: V) -> V {
    a.mul_add(b, c)
}
/// a > b ? a : b, lane by lane: the second if they do not compare.
pub(crate) fn max(a: V, b: V) -> V {
    if a > b { a } else { b }
}
/// a < b ? a : b, lane by lane: the second if they do not compare.
pub(crate) fn min(a: V, b: V) -> V {
    if a < b { a } else { b }
}
pub(crate) fn round(a: V) -> V {
    a.round_ties_even()
}
pub(crate) fn trunc(a: V) -> V {
    a.trunc()
}
/// `muser_ops::pinned::glibc::expf`.
pub(crate) fn exp_glibc(x: V) -> V {
    muser_ops::pinned::glibc::expf(x)
}
pub(crate) fn abs(a: V) -> V {
    a.abs()
}
/// The magnitude of `a` with the sign of `s`.
pub(crate) fn copysign(a: V, s: V) -> V {
    a.copysign(s)
}
/// a < b ? x : y, lane by lane.
pub(crate) fn select_lt(a: V, b: V, x: V, y: V) -> V {
    if a < b { x } else { y }
}
/// p · 2^(n >> 1) · 2^(n - (n >> 1)) for integral n, |n| <= 152.
pub(crate) fn scale_by_power(p: V, n: V) -> V {
    let n = n as i32;
    let half = n >> 1;
    let power = |k: i32| f32::from_bits(((k + 127) as u32) << 23);
    p * power(half) * power(n - half)
}
/// Interleaved pairs (x0, y0, x1, y1, …) turned by the angles of each pair.
pub(crate) fn rotate_pairs(x: &mut [f32], cos: &[f32], sin: &[f32]) -> usize {
    let _ = (x, cos, sin);
    0 // the body's tail loop does them all
}
/// The halving tree over the lanes of one vector.
pub(crate) fn halve_lanes(v: V) -> f32 {
    v
}

/// The fold by halves of the `L` values from `at` on.
pub(crate) fn fold_group<const L: usize>(x: &[f32], at: usize) -> f32 {
    muser_ops::pinned::dot::fold(&x[at..at + L], L)
}

/// Rows side by side of the matrix-matrix rung at 16 columns, and at 32.
pub(crate) const ROWS_NARROW: usize = 1;
/// See [`ROWS_NARROW`].
pub(crate) const ROWS_WIDE: usize = 1;
/// The same with a link every 64 codes.
pub(crate) const FOURS_NARROW: usize = ROWS_NARROW;
/// See [`FOURS_NARROW`].
pub(crate) const FOURS_WIDE: usize = ROWS_WIDE;

/// Nothing to do: portable code leaves the cache to the hardware.
pub(crate) fn prefetch(_: &[u8], _: usize, _: usize) {}

/// One superblock of `R` rows with `C` panels, added to their chains.
pub(crate) fn panel_step<
    const R: usize,
    const C: usize,
    const S: usize,
    const SIGNED: bool,
    const LINK: u8,
>(
    rows: &[Unpacked; R],
    panels: [&PanelBlock; C],
    acc: &mut [[[[f32; PANEL]; 2]; C]; R],
) {
    // Parts of a superblock with a link of their own.
    let parts = if LINK == link::FOURS { 4 } else { 1 };
    for (row, acc) in rows.iter().zip(acc) {
        for (panel, acc) in panels.iter().zip(acc) {
            for part in 0..parts {
                panel_part::<S, SIGNED, LINK>(row, panel, part, parts, acc);
            }
        }
    }
}

/// The codes and minima of one part.
fn panel_part<const S: usize, const SIGNED: bool, const LINK: u8>(
    row: &Unpacked,
    panel: &PanelBlock,
    part: usize,
    parts: usize,
    [acc, accm]: &mut [[f32; PANEL]; 2],
) {
    let (mut sum, mut min) = ([0i32; PANEL], [0i32; PANEL]);
    for k in part * 64 / parts..(part + 1) * 64 / parts {
        let scale = row.scales[k * S / 64];
        for (sum, q) in sum.iter_mut().zip(&panel.q[k]) {
            let products = row.codes[k].iter().zip(q);
            let products = products.map(|(&w, &q)| i32::from(w) * i32::from(q));
            *sum += scale * products.sum::<i32>();
        }
    }
    let sums: &[[[i16; 2]; PANEL]] = if SIGNED { &panel.sums16 } else { &panel.sums32 };
    let of_part = part * sums.len() / parts..(part + 1) * sums.len() / parts;
    for (pair, sums) in row.pairs[of_part.clone()].iter().zip(&sums[of_part]) {
        for (min, s) in min.iter_mut().zip(sums) {
            *min += i32::from(pair[0]) * i32::from(s[0]) + i32::from(pair[1]) * i32::from(s[1]);
        }
    }
    for lane in 0..PANEL {
        let y = panel.d[lane];
        let sum = match SIGNED {
            true => sum[lane] - (min[lane] << 5),
            false => sum[lane],
        };
        if LINK == link::TILED {
            let value = row.d * sum as f32;
            let value = match SIGNED {
                true => value,
                false => (-row.dmin).mul_add(min[lane] as f32, value),
            };
            acc[lane] = value.mul_add(y, acc[lane]);
            continue;
        }
        acc[lane] = (sum as f32).mul_add(row.d * y, acc[lane]);
        if !SIGNED {
            accm[lane] = (min[lane] as f32).mul_add(row.dmin * y, accm[lane]);
        }
    }
}

super::math::functions!();
