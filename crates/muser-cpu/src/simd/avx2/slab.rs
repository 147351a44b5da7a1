//! AVX2 functions for slabs (superblocks of eight weight rows, transposed so that each
//! vector element holds one row's weights): the transpositions and the product.

use crate::kernels::quantize::Block;
use crate::kernels::slab::superblocks::{Ahead, Chains, Slab, link, together};
use crate::simd::avx2::{fma, load, load128, mul, prefetch, splat, store};
use crate::simd::strided::{Strided, Word};
use muser_levels::level;
use muser_quant::Superblock;
use std::arch::x86_64::*;
use std::array::from_fn;

/// The number of weight rows that are transposed to one slab, one vector element per
/// row, at the avx2 level.
pub(crate) const ROWS: usize = 8;
/// The number of slabs (weight rows transposed, one vector element per row) that are
/// multiplied side by side in a wide batch at the avx2 level.
pub(crate) const SLABS: usize = 1;
/// The number of activation columns that are multiplied with a slab (weight rows
/// transposed, one vector element per row) together at the avx2 level. This takes 10 of
/// the 16 registers: 4 sums of pairs, 4 scaled sums, a line and a product.
pub(crate) const COLUMNS: usize = 4;

/// Prefetches `N` cache lines of the weight bytes that the next slab (the next weight
/// rows, which will be transposed) will read, from cache line `line` on.
#[inline]
#[level(avx2)]
pub(crate) fn prefetch_lines<const N: usize>(ahead: Ahead<'_>, line: usize) {
    prefetch(ahead.from, ahead.at + 64 * line, 64 * N);
}

/// The packed bytes of the weight rows that are transposed to one slab.
pub(crate) type SlabRows<'a, const B: usize> = Strided<'a, ROWS, B>;

/// Stores a line of a slab (weight rows transposed, one vector element per row): one
/// 32-bit word for each of eight rows.
#[inline]
#[level(avx2)]
pub(crate) fn store_line<T: Word>(to: &mut [T; ROWS], v: __m256i) {
    // SAFETY: eight values of four bytes of a `Word`.
    unsafe { _mm256_storeu_si256(to.as_mut_ptr().cast(), v) };
}
/// Loads a line of a slab (weight rows transposed, one vector element per row): one
/// 32-bit word of each of eight rows.
#[inline]
#[level(avx2)]
pub(crate) fn line<T: Word>(line: &[T; ROWS]) -> __m256i {
    // SAFETY: eight values of four bytes of a `Word`.
    unsafe { _mm256_loadu_si256(line.as_ptr().cast()) }
}
/// Broadcasts four quantised activations (int8 codes), those of index `4 k .. 4 k + 4`,
/// to every element of a vector.
#[inline]
#[level(avx2)]
pub(crate) fn quad(q: &[i8; 256], k: usize) -> __m256i {
    let q = q[4 * k..][..4].as_ptr();
    // SAFETY: the slice expression has checked four bytes; the read is unaligned.
    _mm256_set1_epi32(unsafe { q.cast::<i32>().read_unaligned() })
}
/// Broadcasts two sums of quantised activations, those of index `2 t` and `2 t + 1`, to
/// every element of a vector.
#[inline]
#[level(avx2)]
fn sum_pair(sums: &[i16], t: usize) -> __m256i {
    let sums = sums[2 * t..][..2].as_ptr();
    // SAFETY: the slice expression has checked two sums; the read is unaligned.
    _mm256_set1_epi32(unsafe { sums.cast::<i32>().read_unaligned() })
}

/// Transposes four 32-bit words, from byte `at` on, of each of eight weight rows to
/// four vectors: vector i has word i of every row.
///
/// Rows r and r + 4 share a vector, so that the elements of a line are in the order of the
/// rows. A line takes two shuffles and an insertion.
#[inline]
#[level(avx2)]
pub(crate) fn transpose4<const B: usize>(rows: SlabRows<'_, B>, at: usize) -> [__m256i; 4] {
    let mut v = [_mm256_setzero_si256(); 4];
    for (r, v) in v.iter_mut().enumerate() {
        let low = _mm256_castsi128_si256(load128(rows.bytes::<16>(r, at), 0));
        *v = _mm256_inserti128_si256::<1>(low, load128(rows.bytes::<16>(4 + r, at), 0));
    }
    let a = _mm256_unpacklo_epi32(v[0], v[1]);
    let b = _mm256_unpackhi_epi32(v[0], v[1]);
    let c = _mm256_unpacklo_epi32(v[2], v[3]);
    let d = _mm256_unpackhi_epi32(v[2], v[3]);
    [
        _mm256_unpacklo_epi64(a, c),
        _mm256_unpackhi_epi64(a, c),
        _mm256_unpacklo_epi64(b, d),
        _mm256_unpackhi_epi64(b, d),
    ]
}
/// Converts the f16 values in the low halves of a vector's 32-bit words to f32.
#[inline]
#[level(avx2)]
fn low_halves(line: __m256i) -> __m256 {
    let halves = pick(line, [0, 1, 0x80, 0x80]);
    let words = _mm256_packus_epi32(halves, halves);
    let words = _mm256_permute4x64_epi64::<0b00_00_10_00>(words);
    _mm256_cvtph_ps(_mm256_castsi256_si128(words))
}
/// Rearranges the bytes of each 32-bit word of a vector. Byte i of the result is byte
/// `bytes[i]` of the word, or 0 for the index 0x80.
#[inline]
#[level(avx2)]
fn pick(line: __m256i, bytes: [u8; 4]) -> __m256i {
    // In each 128-bit part, byte i of dword e has the index 4 e + i.
    let first = u32::from_le_bytes(bytes);
    let step = bytes.map(|b| if b < 4 { 4 } else { 0 });
    let step = u32::from_le_bytes(step);
    let at = |e: u32| (first + e * step).cast_signed();
    let index = _mm256_broadcastsi128_si256(_mm_setr_epi32(at(0), at(1), at(2), at(3)));
    _mm256_shuffle_epi8(line, index)
}
/// Unpacks and transposes the factors (from f16 to f32), scales (each twice in a 32-bit
/// word) and minima of the Q4_K or Q5_K superblocks of eight rows.
#[inline]
#[level(avx2)]
pub(crate) fn header_with_minima<const B: usize>(rows: SlabRows<'_, B>, to: &mut Slab<ROWS>) {
    // The 32-bit words of a header: factors, scales 0..3, minima 0..3, low nibbles of
    // 4..7.
    let [factors, s, m, low] = transpose4(rows, 0);
    store(&mut to.d, 0, low_halves(factors));
    store(
        &mut to.dmin,
        0,
        low_halves(_mm256_srli_epi32::<16>(factors)),
    );
    let (six, four) = (_mm256_set1_epi8(0x3f), _mm256_set1_epi8(0x0f));
    let two = _mm256_set1_epi8(0x30);
    let of_pairs = |nibbles, bits| {
        let high = _mm256_and_si256(_mm256_srli_epi32::<2>(bits), two);
        _mm256_or_si256(_mm256_and_si256(nibbles, four), high)
    };
    let scales = [_mm256_and_si256(s, six), of_pairs(low, s)];
    let mins = [
        _mm256_and_si256(m, six),
        of_pairs(_mm256_srli_epi32::<4>(low), m),
    ];
    for h in 0..2 {
        for j in 0..4 {
            let scale = pick(scales[h], [j as u8, 0x80, j as u8, 0x80]);
            store_line(&mut to.scales[4 * h + j], scale);
        }
        store_line(&mut to.pairs[2 * h], pick(mins[h], [0, 0x80, 1, 0x80]));
        store_line(&mut to.pairs[2 * h + 1], pick(mins[h], [2, 0x80, 3, 0x80]));
    }
}
/// Unpacks and transposes the factors (from f16 to f32) and scales (each twice in a
/// 32-bit word) of the Q6_K superblocks of eight rows.
#[inline]
#[level(avx2)]
pub(crate) fn signed_header<const B: usize>(rows: SlabRows<'_, B>, to: &mut Slab<ROWS>) {
    // The last dword of the block is two scales and the factor.
    let factors = transpose4(rows, B - 16)[3];
    store(&mut to.d, 0, low_halves(_mm256_srli_epi32::<16>(factors)));
    for (i, scales) in transpose4(rows, B - 18).into_iter().enumerate() {
        for j in 0..4 {
            let scale = pick(scales, [0x80, j as u8, 0x80, j as u8]);
            store_line(&mut to.scales[4 * i + j], _mm256_srai_epi16::<8>(scale));
        }
        for (t, [a, b]) in [[0, 1], [2, 3]].into_iter().enumerate() {
            let pair = pick(scales, [0x80, a, 0x80, b]);
            store_line(&mut to.pairs[2 * i + t], _mm256_srai_epi16::<8>(pair));
        }
    }
}

/// Multiplies one superblock (256 weights) of `S` slabs (weight rows transposed, one
/// vector element per row) with `N` columns of activations and adds the results to the
/// rows' running f32 sums. The activations of column n are `x[n * apart]`.
///
/// Without VNNI, `vpmaddubsw` multiplies four codes to two sums of pairs in i16. Pairs
/// are added in i16 as long as their sum fits; the `vpmaddwd` that then widens them also
/// multiplies by the scale.
#[inline]
#[level(avx2)]
pub(crate) fn step<F: Superblock, const S: usize, const N: usize, const LINK: u8>(
    slabs: &[Slab<ROWS>; S],
    x: &[Block],
    apart: usize,
    chains: &mut [[Chains<ROWS>; S]; N],
) {
    let x: [&Block; N] = from_fn(|n| &x[n * apart]);
    // The number of parts of a superblock that are added to the running sum by
    // themselves.
    let parts = if LINK == link::FOURS { 4 } else { 1 };
    for part in 0..parts {
        let sums = scaled_sums::<F, S, N>(slabs, x, part, parts);
        for s in 0..S {
            let mins = minima::<F, N>(&slabs[s], x, part, parts);
            let (d, dmin) = (load(&slabs[s].d, 0), load(&slabs[s].dmin, 0));
            for n in 0..N {
                let ([acc, accm], y) = (&mut chains[n][s], splat(x[n].d));
                let sum = match F::SIGNED {
                    true => _mm256_sub_epi32(sums[s][n], _mm256_slli_epi32::<5>(mins[n])),
                    false => sums[s][n],
                };
                let (sum, min) = (_mm256_cvtepi32_ps(sum), _mm256_cvtepi32_ps(mins[n]));
                if LINK == link::TILED {
                    let mut value = mul(sum, d);
                    if !F::SIGNED {
                        value = _mm256_fnmadd_ps(dmin, min, value);
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
/// Computes Σ_j s_j · a_j for each row and column, over one part (number `part` of
/// `parts`) of a superblock. s_j: the scale of sub-block j; a_j: the integer dot
/// product of its codes with the activations.
#[inline]
#[level(avx2)]
fn scaled_sums<F: Superblock, const S: usize, const N: usize>(
    slabs: &[Slab<ROWS>; S],
    x: [&Block; N],
    part: usize,
    parts: usize,
) -> [[__m256i; N]; S] {
    let mut sums = [[_mm256_setzero_si256(); N]; S];
    for first in (part * 64 / parts..(part + 1) * 64 / parts).step_by(together::<F>()) {
        let mut pairs = [[_mm256_setzero_si256(); N]; S];
        for k in first..first + together::<F>() {
            let mut w = [_mm256_setzero_si256(); S];
            for s in 0..S {
                w[s] = line(&slabs[s].codes[k]);
            }
            for n in 0..N {
                let q = quad(&x[n].q, k);
                for s in 0..S {
                    let products = _mm256_maddubs_epi16(w[s], q);
                    pairs[s][n] = _mm256_add_epi16(pairs[s][n], products);
                }
            }
        }
        for s in 0..S {
            let scale = line(&slabs[s].scales[first * F::SUB_BLOCKS / 64]);
            for n in 0..N {
                let scaled = _mm256_madd_epi16(pairs[s][n], scale);
                sums[s][n] = _mm256_add_epi32(sums[s][n], scaled);
            }
        }
    }
    sums
}
/// Computes, for each row and column, the sum of minima times sums of activations over
/// one part (number `part` of `parts`) of a superblock. For Q6_K, scales take the place
/// of minima.
#[inline]
#[level(avx2)]
fn minima<F: Superblock, const N: usize>(
    slab: &Slab<ROWS>,
    x: [&Block; N],
    part: usize,
    parts: usize,
) -> [__m256i; N] {
    let each = if F::SIGNED { 8 } else { 4 } / parts;
    let mut mins = [_mm256_setzero_si256(); N];
    for t in part * each..(part + 1) * each {
        let pair = line(&slab.pairs[t]);
        for n in 0..N {
            let sums = match F::SIGNED {
                true => sum_pair(&x[n].sums16, t),
                false => sum_pair(&x[n].sums32, t),
            };
            mins[n] = _mm256_add_epi32(mins[n], _mm256_madd_epi16(pair, sums));
        }
    }
    mins
}
