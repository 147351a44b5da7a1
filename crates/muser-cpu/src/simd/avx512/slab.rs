//! Slabs of 16 rows: the transpositions and the product.

use crate::kernels::quantize::Block;
use crate::kernels::slab::{Ahead, Chains, Format, Slab, link};
use crate::simd::avx2::{load128, prefetch};
use crate::simd::avx512::{fma, load, mul, splat, store};
use crate::simd::strided::{Strided, Word};
use std::arch::x86_64::*;

/// Rows of a slab.
pub(crate) const LANES: usize = 16;
/// Slabs side by side in a wide batch: each broadcast of activations serves both.
pub(crate) const SLABS: usize = 2;
/// Columns that meet a slab together, or half as many of two slabs: 8 sums of
/// products, 8 scaled sums, two lines and a broadcast, of 32 registers.
pub(crate) const COLUMNS: usize = 8;

/// Asks for `N` of the cache lines ahead, from `line` on.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
pub(crate) fn ask<const N: usize>(ahead: Ahead<'_>, line: usize) {
    prefetch(ahead.from, ahead.at + 64 * line, 64 * N);
}

/// The rows of a slab.
pub(crate) type Rows<'a, const B: usize> = Strided<'a, LANES, B>;

/// 32 bits of each row, out.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
pub(crate) fn store_line<T: Word>(to: &mut [T; LANES], v: __m512i) {
    // SAFETY: sixteen values of four bytes of a `Word`.
    unsafe { _mm512_storeu_si512(to.as_mut_ptr().cast(), v) };
}
/// 32 bits of each row.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
fn line<T: Word>(line: &[T; LANES]) -> __m512i {
    // SAFETY: sixteen values of four bytes of a `Word`.
    unsafe { _mm512_loadu_si512(line.as_ptr().cast()) }
}
/// Four activations in every lane.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
fn quad(x: &Block, k: usize) -> __m512i {
    let q = x.q[4 * k..][..4].as_ptr();
    // SAFETY: the slice expression has checked four bytes; the read is unaligned.
    _mm512_set1_epi32(unsafe { q.cast::<i32>().read_unaligned() })
}
/// Two sums in every lane.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
fn sum_pair(sums: &[i16], t: usize) -> __m512i {
    let sums = sums[2 * t..][..2].as_ptr();
    // SAFETY: the slice expression has checked two sums; the read is unaligned.
    _mm512_set1_epi32(unsafe { sums.cast::<i32>().read_unaligned() })
}

/// Dword i of vector j to dword j of vector i, in each 128-bit lane.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
fn turn_lanes(v: [__m512i; 4]) -> [__m512i; 4] {
    let a = _mm512_unpacklo_epi32(v[0], v[1]);
    let b = _mm512_unpackhi_epi32(v[0], v[1]);
    let c = _mm512_unpacklo_epi32(v[2], v[3]);
    let d = _mm512_unpackhi_epi32(v[2], v[3]);
    [
        _mm512_unpacklo_epi64(a, c),
        _mm512_unpackhi_epi64(a, c),
        _mm512_unpacklo_epi64(b, d),
        _mm512_unpackhi_epi64(b, d),
    ]
}
/// The eight dwords from byte `at` on of each row, as eight lines.
///
/// Rows r and r + 4 share a vector, so that lines come out in the order of the
/// rows: three shuffles and an insertion a line.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
pub(crate) fn turn8<const B: usize>(rows: Rows<'_, B>, at: usize) -> [__m512i; 8] {
    let (low, high) = (turned_half(rows, 0, at), turned_half(rows, 8, at));
    let mut lines = [_mm512_setzero_si512(); 8];
    for t in 0..4 {
        lines[t] = _mm512_shuffle_i32x4::<0b10_00_10_00>(low[t], high[t]);
        lines[4 + t] = _mm512_shuffle_i32x4::<0b11_01_11_01>(low[t], high[t]);
    }
    lines
}
/// Of the eight rows from `first` on: dwords t and 4 + t of the first four rows,
/// then of the other four.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
fn turned_half<const B: usize>(rows: Rows<'_, B>, first: usize, at: usize) -> [__m512i; 4] {
    let mut v = [_mm512_setzero_si512(); 4];
    for (r, v) in v.iter_mut().enumerate() {
        let low = _mm512_castsi256_si512(super::load256(rows.bytes::<32>(first + r, at), 0));
        *v = _mm512_inserti64x4::<1>(low, super::load256(rows.bytes::<32>(first + 4 + r, at), 0));
    }
    turn_lanes(v)
}
/// The four dwords from byte `at` on of each row, as four lines.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
fn turn4<const B: usize>(rows: Rows<'_, B>, at: usize) -> [__m512i; 4] {
    let mut v = [_mm512_setzero_si512(); 4];
    for (r, v) in v.iter_mut().enumerate() {
        let low = _mm512_castsi128_si512(load128(rows.bytes::<16>(r, at), 0));
        let two = _mm512_inserti32x4::<1>(low, load128(rows.bytes::<16>(4 + r, at), 0));
        let three = _mm512_inserti32x4::<2>(two, load128(rows.bytes::<16>(8 + r, at), 0));
        *v = _mm512_inserti32x4::<3>(three, load128(rows.bytes::<16>(12 + r, at), 0));
    }
    turn_lanes(v)
}
/// The f16 values in the low halves of a line.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
fn low_halves(line: __m512i) -> __m512 {
    _mm512_cvtph_ps(_mm512_cvtepi32_epi16(line))
}
/// Bytes of each dword, by four indices of it; 0x80 is zero.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
fn pick(line: __m512i, bytes: [u8; 4]) -> __m512i {
    // Index i of dword e is 4 e + i, in each 128-bit lane.
    let first = u32::from_le_bytes(bytes);
    let step = bytes.map(|b| if b < 4 { 4 } else { 0 });
    let step = u32::from_le_bytes(step);
    let at = |e: u32| (first + e * step).cast_signed();
    let index = _mm512_broadcast_i32x4(_mm_setr_epi32(at(0), at(1), at(2), at(3)));
    _mm512_shuffle_epi8(line, index)
}
/// Factors, scales and minima of Q4_K or Q5_K blocks.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
pub(crate) fn header_with_minima<const B: usize>(rows: Rows<'_, B>, to: &mut Slab<LANES>) {
    // Dwords of a header: factors, s_0..3, m_0..3, low nibbles of 4..7.
    let [factors, s, m, low] = turn4(rows, 0);
    store(&mut to.d, 0, low_halves(factors));
    store(
        &mut to.dmin,
        0,
        low_halves(_mm512_srli_epi32::<16>(factors)),
    );
    let (six, four) = (_mm512_set1_epi8(0x3f), _mm512_set1_epi8(0x0f));
    let two = _mm512_set1_epi8(0x30);
    let of_pairs = |nibbles, bits| {
        let nibbles = _mm512_and_si512(nibbles, four);
        // nibbles | (bits & 0x30)
        _mm512_ternarylogic_epi32::<0b1111_1000>(nibbles, _mm512_srli_epi32::<2>(bits), two)
    };
    let scales = [_mm512_and_si512(s, six), of_pairs(low, s)];
    let mins = [
        _mm512_and_si512(m, six),
        of_pairs(_mm512_srli_epi32::<4>(low), m),
    ];
    for h in 0..2 {
        for j in 0..4 {
            let scale = pick(scales[h], [j as u8, 0x80, 0x80, 0x80]);
            store_line(&mut to.scales[4 * h + j], scale);
        }
        store_line(&mut to.pairs[2 * h], pick(mins[h], [0, 0x80, 1, 0x80]));
        store_line(&mut to.pairs[2 * h + 1], pick(mins[h], [2, 0x80, 3, 0x80]));
    }
}
/// Factors and scales of Q6_K blocks.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
pub(crate) fn signed_header<const B: usize>(rows: Rows<'_, B>, to: &mut Slab<LANES>) {
    // The last dword of these is two scales and the factor.
    let factors = turn4(rows, B - 16)[3];
    store(&mut to.d, 0, low_halves(_mm512_srli_epi32::<16>(factors)));
    for (i, scales) in turn4(rows, B - 18).into_iter().enumerate() {
        for j in 0..4 {
            let scale = pick(scales, [0x80, 0x80, 0x80, j as u8]);
            store_line(&mut to.scales[4 * i + j], _mm512_srai_epi32::<24>(scale));
        }
        for (t, [a, b]) in [[0, 1], [2, 3]].into_iter().enumerate() {
            let pair = pick(scales, [0x80, a, 0x80, b]);
            store_line(&mut to.pairs[2 * i + t], _mm512_srai_epi16::<8>(pair));
        }
    }
}

/// One superblock of `S` slabs with `N` columns, added to their chains.
///
/// A product of 64 is one `vpdpbusd`. One slab: its activations are broadcast
/// from memory by the instruction itself, N + 1 loads for N products. Two: a
/// broadcast into a register serves both, S + N loads for S · N products.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
pub(crate) fn step<F: Format, const S: usize, const N: usize, const LINK: u8>(
    slabs: &[Slab<LANES>; S],
    x: [&Block; N],
    chains: &mut [[Chains<LANES>; S]; N],
) {
    // Parts of a superblock with a link of their own.
    let parts = if LINK == link::FOURS { 4 } else { 1 };
    for part in 0..parts {
        let sums = scaled_sums::<F, S, N>(slabs, x, part, parts);
        let mins = minima::<F, S, N>(slabs, x, part, parts);
        for s in 0..S {
            let (d, dmin) = (load(&slabs[s].d, 0), load(&slabs[s].dmin, 0));
            for n in 0..N {
                let ([acc, accm], y) = (&mut chains[n][s], splat(x[n].d));
                let (sum, min) = (sums[s][n], mins[s][n]);
                let sum = match F::SIGNED {
                    true => _mm512_sub_epi32(sum, _mm512_slli_epi32::<5>(min)),
                    false => sum,
                };
                let (sum, min) = (_mm512_cvtepi32_ps(sum), _mm512_cvtepi32_ps(min));
                if LINK == link::TILED {
                    let mut value = mul(sum, d);
                    if !F::SIGNED {
                        value = _mm512_fnmadd_ps(dmin, min, value);
                    }
                    let next = fma(value, y, load(acc, 0));
                    store(acc, 0, next);
                    continue;
                }
                let next = fma(sum, mul(d, y), load(acc, 0));
                store(acc, 0, next);
                if !F::SIGNED {
                    let next = fma(min, mul(dmin, y), load(accm, 0));
                    store(accm, 0, next);
                }
            }
        }
    }
}
/// Σ_j s_j · a_j of each column over one of the `parts` of a superblock.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
fn scaled_sums<F: Format, const S: usize, const N: usize>(
    slabs: &[Slab<LANES>; S],
    x: [&Block; N],
    part: usize,
    parts: usize,
) -> [[__m512i; N]; S] {
    let (words, each) = (64 / F::SUB_BLOCKS, F::SUB_BLOCKS / parts);
    let mut sums = [[_mm512_setzero_si512(); N]; S];
    for j in part * each..(part + 1) * each {
        let mut products = [[_mm512_setzero_si512(); N]; S];
        for k in j * words..(j + 1) * words {
            let mut w = [_mm512_setzero_si512(); S];
            for s in 0..S {
                w[s] = line(&slabs[s].codes[k]);
            }
            for n in 0..N {
                let q = quad(x[n], k);
                for s in 0..S {
                    products[s][n] = _mm512_dpbusd_epi32(products[s][n], w[s], q);
                }
            }
        }
        for s in 0..S {
            let scale = line(&slabs[s].scales[j]);
            for n in 0..N {
                let scaled = _mm512_mullo_epi32(products[s][n], scale);
                sums[s][n] = _mm512_add_epi32(sums[s][n], scaled);
            }
        }
    }
    sums
}
/// What the sums of the activations meet, in each column.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
fn minima<F: Format, const S: usize, const N: usize>(
    slabs: &[Slab<LANES>; S],
    x: [&Block; N],
    part: usize,
    parts: usize,
) -> [[__m512i; N]; S] {
    let each = if F::SIGNED { 8 } else { 4 } / parts;
    let mut mins = [[_mm512_setzero_si512(); N]; S];
    for t in part * each..(part + 1) * each {
        for s in 0..S {
            let pair = line(&slabs[s].pairs[t]);
            for n in 0..N {
                let sums = match F::SIGNED {
                    true => sum_pair(&x[n].sums16, t),
                    false => sum_pair(&x[n].sums32, t),
                };
                mins[s][n] = _mm512_dpwssd_epi32(mins[s][n], pair, sums);
            }
        }
    }
    mins
}
