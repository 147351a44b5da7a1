//! AVX-512 functions for slabs (superblocks of 16 weight rows, transposed so that each
//! vector element holds one row's weights): the transpositions and the product.

use crate::kernels::quantize::Block;
use crate::kernels::slab::superblocks::{Ahead, Chains, Slab, link};
use crate::simd::avx2::load128;
use crate::simd::avx512::{fma, load, mul, splat, store};
use crate::simd::strided::{Strided, Word};
use muser_levels::level;
use muser_quant::Superblock;
use std::arch::asm;
use std::arch::x86_64::*;
use std::marker::PhantomData;
use std::mem::offset_of;

/// The number of weight rows that are transposed to one slab, one vector element per
/// row, at the avx512 level.
pub(crate) const ROWS: usize = 16;
/// The number of slabs (weight rows transposed, one vector element per row) that are
/// multiplied side by side at the avx512 level. Each broadcast of activations serves
/// both.
pub(crate) const SLABS: usize = 2;
/// The number of activation columns that are multiplied with a slab (weight rows
/// transposed, one vector element per row) together at the avx512 level. This takes 17
/// of the 32 registers: 8 sums of products, 8 scaled sums and a line. With two slabs,
/// the scaled sums go through memory.
pub(crate) const COLUMNS: usize = 8;

/// Prefetches into L2 `N` cache lines of the weight bytes that the next slab (the next
/// weight rows, which will be transposed) will read, from cache line `line` on.
#[inline]
#[level(avx512)]
pub(crate) fn prefetch_lines<const N: usize>(ahead: Ahead<'_>, line: usize) {
    for line in line..line + N {
        let address = ahead.from.as_ptr().wrapping_add(ahead.at + 64 * line);
        _mm_prefetch::<_MM_HINT_T1>(address.cast());
    }
}
/// Prefetches into L1 the next superblock (256 weights) of `N` rows of the slab (weight
/// rows transposed, one vector element per row), from row `first` on.
#[inline]
#[level(avx512)]
pub(crate) fn prefetch_next_block<const B: usize, const N: usize>(
    rows: SlabRows<'_, B>,
    first: usize,
) {
    for r in first..first + N {
        let next = rows.bytes::<B>(r, 0).as_ptr().wrapping_add(B);
        for line in 0..B.div_ceil(64) {
            _mm_prefetch::<_MM_HINT_T0>(next.wrapping_add(64 * line).cast());
        }
    }
}

/// The packed bytes of the weight rows that are transposed to one slab.
pub(crate) type SlabRows<'a, const B: usize> = Strided<'a, ROWS, B>;

/// Stores a line of a slab (weight rows transposed, one vector element per row): one
/// 32-bit word for each of sixteen rows.
#[inline]
#[level(avx512)]
pub(crate) fn store_line<T: Word>(to: &mut [T; ROWS], v: __m512i) {
    // SAFETY: sixteen values of four bytes of a `Word`.
    unsafe { _mm512_storeu_si512(to.as_mut_ptr().cast(), v) };
}
/// Loads a line of a slab (weight rows transposed, one vector element per row): one
/// 32-bit word of each of sixteen rows.
#[inline]
#[level(avx512)]
pub(crate) fn line<T: Word>(line: &[T; ROWS]) -> __m512i {
    // SAFETY: sixteen values of four bytes of a `Word`.
    unsafe { _mm512_loadu_si512(line.as_ptr().cast()) }
}
/// Transposes the 32-bit words of four vectors within each 128-bit quarter: word i of
/// vector j goes to word j of vector i.
#[inline]
#[level(avx512)]
fn transpose_quarters(v: [__m512i; 4]) -> [__m512i; 4] {
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
/// Transposes eight 32-bit words, from byte `at` on, of each of 16 weight rows to eight
/// vectors: vector i has word i of every row.
///
/// Rows r and r + 4 share a vector, so that the elements of a line are in the order of the
/// rows. A line takes three shuffles and an insertion.
#[inline]
#[level(avx512)]
pub(crate) fn transpose8<const B: usize>(rows: SlabRows<'_, B>, at: usize) -> [__m512i; 8] {
    let (low, high) = (transpose_half(rows, 0, at), transpose_half(rows, 8, at));
    let mut lines = [_mm512_setzero_si512(); 8];
    for t in 0..4 {
        lines[t] = _mm512_shuffle_i32x4::<0b10_00_10_00>(low[t], high[t]);
        lines[4 + t] = _mm512_shuffle_i32x4::<0b11_01_11_01>(low[t], high[t]);
    }
    lines
}
/// Transposes eight of the 16 weight rows of a slab, from row `first` on, so that each
/// vector element belongs to one row. Vector t has dwords t and 4 + t of the first four
/// rows, then those of the other four.
#[inline]
#[level(avx512)]
fn transpose_half<const B: usize>(rows: SlabRows<'_, B>, first: usize, at: usize) -> [__m512i; 4] {
    let mut v = [_mm512_setzero_si512(); 4];
    for (r, v) in v.iter_mut().enumerate() {
        let low = _mm512_castsi256_si512(super::load256(rows.bytes::<32>(first + r, at), 0));
        *v = _mm512_inserti64x4::<1>(low, super::load256(rows.bytes::<32>(first + 4 + r, at), 0));
    }
    transpose_quarters(v)
}
/// Transposes four 32-bit words, from byte `at` on, of each of 16 weight rows to four
/// vectors: vector i has word i of every row.
#[inline]
#[level(avx512)]
pub(crate) fn transpose4<const B: usize>(rows: SlabRows<'_, B>, at: usize) -> [__m512i; 4] {
    let mut v = [_mm512_setzero_si512(); 4];
    for (r, v) in v.iter_mut().enumerate() {
        let low = _mm512_castsi128_si512(load128(rows.bytes::<16>(r, at), 0));
        let two = _mm512_inserti32x4::<1>(low, load128(rows.bytes::<16>(4 + r, at), 0));
        let three = _mm512_inserti32x4::<2>(two, load128(rows.bytes::<16>(8 + r, at), 0));
        *v = _mm512_inserti32x4::<3>(three, load128(rows.bytes::<16>(12 + r, at), 0));
    }
    transpose_quarters(v)
}
/// Converts the f16 values in the low halves of a vector's 32-bit words to f32.
#[inline]
#[level(avx512)]
fn low_halves(line: __m512i) -> __m512 {
    _mm512_cvtph_ps(_mm512_cvtepi32_epi16(line))
}
/// Rearranges the bytes of each 32-bit word of a vector. Byte i of the result is byte
/// `bytes[i]` of the word, or 0 for the index 0x80.
#[inline]
#[level(avx512)]
fn pick(line: __m512i, bytes: [u8; 4]) -> __m512i {
    // In each 128-bit part, byte i of dword e has the index 4 e + i.
    let first = u32::from_le_bytes(bytes);
    let step = bytes.map(|b| if b < 4 { 4 } else { 0 });
    let step = u32::from_le_bytes(step);
    let at = |e: u32| (first + e * step).cast_signed();
    let index = _mm512_broadcast_i32x4(_mm_setr_epi32(at(0), at(1), at(2), at(3)));
    _mm512_shuffle_epi8(line, index)
}
/// Unpacks and transposes the factors (from f16 to f32), scales and minima of the Q4_K
/// or Q5_K superblocks of 16 rows.
#[inline]
#[level(avx512)]
pub(crate) fn header_with_minima<const B: usize>(rows: SlabRows<'_, B>, to: &mut Slab<ROWS>) {
    // The 32-bit words of a header: factors, scales 0..3, minima 0..3, low nibbles of
    // 4..7.
    let [factors, s, m, low] = transpose4(rows, 0);
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
/// Unpacks and transposes the factors (from f16 to f32) and scales of the Q6_K
/// superblocks of 16 rows.
#[inline]
#[level(avx512)]
pub(crate) fn signed_header<const B: usize>(rows: SlabRows<'_, B>, to: &mut Slab<ROWS>) {
    // The last dword of the block is two scales and the factor.
    let factors = transpose4(rows, B - 16)[3];
    store(&mut to.d, 0, low_halves(_mm512_srli_epi32::<16>(factors)));
    for (i, scales) in transpose4(rows, B - 18).into_iter().enumerate() {
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

/// The quantised activations of `N` columns for one superblock (256 weights): blocks a
/// constant stride apart.
///
/// One pointer and the stride address all blocks. Eight pointers would not fit in the
/// registers.
pub(crate) struct Columns<'a, T, const N: usize> {
    first: *const u8,
    stride: usize,
    owner: PhantomData<&'a [T]>,
}

impl<T, const N: usize> Clone for Columns<'_, T, N> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T, const N: usize> Copy for Columns<'_, T, N> {}

impl<'a, T, const N: usize> Columns<'a, T, N> {
    /// Makes a view of `N` activation columns whose blocks are `x[n * apart]`, for n < N.
    ///
    /// # Panics
    /// If the last block would be past the end of `x`.
    #[inline]
    pub(crate) fn new(x: &'a [T], apart: usize) -> Self {
        const { assert!(N > 0) };
        let last = (N - 1).checked_mul(apart);
        assert!(last.is_some_and(|last| last < x.len()));
        Self {
            first: x.as_ptr().cast(),
            stride: apart * size_of::<T>(),
            owner: PhantomData,
        }
    }

    /// Returns the block of quantised activations of column `n`.
    #[inline]
    pub(crate) fn block(self, n: usize) -> &'a T {
        assert!(n < N);
        // SAFETY: `new` has checked that the last block lies in the slice that
        // is borrowed for 'a, and this one lies no further.
        unsafe { &*self.first.add(n * self.stride).cast() }
    }

    /// Returns a pointer to byte `at` of the block of activations of column `n`, from
    /// which four bytes may be read.
    #[inline]
    fn word(self, n: usize, at: usize) -> *const u8 {
        assert!(n < N && at <= size_of::<T>() - 4);
        self.first.wrapping_add(n * self.stride + at)
    }
}

/// Defines the function `$name`, which multiplies a line of one slab (weight rows
/// transposed, one vector element per row), or of two, with the four bytes of each
/// activation column from byte `at` on, and adds the products to `sums`, by the
/// instruction `$op`.
///
/// With one slab, the instruction itself broadcasts from memory: N + 1 loads for N products.
/// With two, a broadcast into a register serves both: N + 2 loads for 2 N products.
///
/// It is written in assembly so that the instructions stay in this order. The compiler's
/// scheduler mixes the columns of several lines until it has no registers left for their
/// sums: with one slab, Q4_K and eight columns, 17.1 instead of 15.9 ns for a superblock of
/// a row on a Xeon, no difference on a Zen 5.
macro_rules! dots {
    ($name:ident, $op:literal) => {
        #[inline]
        #[level(avx512)]
        pub(crate) fn $name<T, const S: usize, const N: usize>(
            sums: &mut [[__m512i; N]; S],
            w: [__m512i; S],
            x: Columns<'_, T, N>,
            at: usize,
        ) {
            const { assert!(S == 1 || S == 2) };
            let (stride, three) = (x.stride, 3 * x.stride);
            if let [sums] = &mut sums[..] {
                let (fours, ones) = sums.as_chunks_mut::<4>();
                for (n, [a, b, c, d]) in fours.iter_mut().enumerate() {
                    // SAFETY: the columns from 4 n on are four of N, of each of
                    // which `word` has checked these four bytes; the instructions
                    // write the named registers and neither stack nor flags.
                    unsafe {
                        asm!(
                            concat!($op, " {a}, {w}, dword ptr [{x}]{{1to16}}"),
                            concat!($op, " {b}, {w}, dword ptr [{x} + {stride}]{{1to16}}"),
                            concat!($op, " {c}, {w}, dword ptr [{x} + 2*{stride}]{{1to16}}"),
                            concat!($op, " {d}, {w}, dword ptr [{x} + {three}]{{1to16}}"),
                            a = inout(zmm_reg) *a,
                            b = inout(zmm_reg) *b,
                            c = inout(zmm_reg) *c,
                            d = inout(zmm_reg) *d,
                            w = in(zmm_reg) w[0],
                            x = in(reg) x.word(4 * n, at),
                            stride = in(reg) stride,
                            three = in(reg) three,
                            options(readonly, nostack, preserves_flags),
                        );
                    }
                }
                let first = N - ones.len();
                for (n, sum) in ones.iter_mut().enumerate() {
                    // SAFETY: as above, one column.
                    unsafe {
                        asm!(
                            concat!($op, " {sum}, {w}, dword ptr [{x}]{{1to16}}"),
                            sum = inout(zmm_reg) *sum,
                            w = in(zmm_reg) w[0],
                            x = in(reg) x.word(first + n, at),
                            options(readonly, nostack, preserves_flags),
                        );
                    }
                }
            } else if let ([low, high], [v, w]) = (&mut sums[..], &w[..]) {
                // The broadcast register. It is an output so that it has a type, and
                // with it a vector register.
                let mut _q: __m512i;
                let (fours, ones) = low.as_chunks_mut::<4>();
                let (high_fours, high_ones) = high.as_chunks_mut::<4>();
                for (n, (low, high)) in fours.iter_mut().zip(high_fours).enumerate() {
                    let ([a, b, c, d], [e, f, g, h]) = (low, high);
                    // SAFETY: as above; one register more is written.
                    unsafe {
                        asm!(
                            "vpbroadcastd {q}, dword ptr [{x}]",
                            concat!($op, " {a}, {v}, {q}"),
                            concat!($op, " {e}, {w}, {q}"),
                            "vpbroadcastd {q}, dword ptr [{x} + {stride}]",
                            concat!($op, " {b}, {v}, {q}"),
                            concat!($op, " {f}, {w}, {q}"),
                            "vpbroadcastd {q}, dword ptr [{x} + 2*{stride}]",
                            concat!($op, " {c}, {v}, {q}"),
                            concat!($op, " {g}, {w}, {q}"),
                            "vpbroadcastd {q}, dword ptr [{x} + {three}]",
                            concat!($op, " {d}, {v}, {q}"),
                            concat!($op, " {h}, {w}, {q}"),
                            a = inout(zmm_reg) *a,
                            b = inout(zmm_reg) *b,
                            c = inout(zmm_reg) *c,
                            d = inout(zmm_reg) *d,
                            e = inout(zmm_reg) *e,
                            f = inout(zmm_reg) *f,
                            g = inout(zmm_reg) *g,
                            h = inout(zmm_reg) *h,
                            q = out(zmm_reg) _q,
                            v = in(zmm_reg) *v,
                            w = in(zmm_reg) *w,
                            x = in(reg) x.word(4 * n, at),
                            stride = in(reg) stride,
                            three = in(reg) three,
                            options(readonly, nostack, preserves_flags),
                        );
                    }
                }
                let first = N - ones.len();
                for (n, (low, high)) in ones.iter_mut().zip(high_ones).enumerate() {
                    // SAFETY: as above, one column.
                    unsafe {
                        asm!(
                            "vpbroadcastd {q}, dword ptr [{x}]",
                            concat!($op, " {low}, {v}, {q}"),
                            concat!($op, " {high}, {w}, {q}"),
                            low = inout(zmm_reg) *low,
                            high = inout(zmm_reg) *high,
                            q = out(zmm_reg) _q,
                            v = in(zmm_reg) *v,
                            w = in(zmm_reg) *w,
                            x = in(reg) x.word(first + n, at),
                            options(readonly, nostack, preserves_flags),
                        );
                    }
                }
            }
        }
    };
}
dots!(dot_codes, "vpdpbusd");
dots!(dot_pairs, "vpdpwssd");

/// Multiplies one superblock (256 weights) of `S` slabs (weight rows transposed, one
/// vector element per row) with `N` columns of activations and adds the results to the
/// rows' running f32 sums. The activations of column n are `x[n * apart]`.
#[inline]
#[level(avx512)]
pub(crate) fn step<F: Superblock, const S: usize, const N: usize, const LINK: u8>(
    slabs: &[Slab<ROWS>; S],
    x: &[Block],
    apart: usize,
    chains: &mut [[Chains<ROWS>; S]; N],
) {
    let x = Columns::<Block, N>::new(x, apart);
    // The number of parts of a superblock that are added to the running sum by
    // themselves.
    let parts = if LINK == link::FOURS { 4 } else { 1 };
    for part in 0..parts {
        let sums = scaled_sums::<F, S, N>(slabs, x, part, parts);
        for s in 0..S {
            // One slab at a time, because the registers do not hold the sums of two.
            let mins = minima::<F, N>(&slabs[s], x, part, parts);
            let (d, dmin) = (load(&slabs[s].d, 0), load(&slabs[s].dmin, 0));
            for n in 0..N {
                let ([acc, accm], y) = (&mut chains[n][s], splat(x.block(n).d));
                let (sum, min) = (sums[s][n], mins[n]);
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
/// Computes Σ_j s_j · a_j for each row and column, over one part (number `part` of
/// `parts`) of a superblock. s_j: the scale of sub-block j; a_j: the integer dot
/// product of its codes with the activations.
#[inline]
#[level(avx512)]
fn scaled_sums<F: Superblock, const S: usize, const N: usize>(
    slabs: &[Slab<ROWS>; S],
    x: Columns<'_, Block, N>,
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
            dot_codes(&mut products, w, x, 4 * k);
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
/// Computes, for each row and column, the sum of minima times sums of activations over
/// one part (number `part` of `parts`) of a superblock. For Q6_K, scales take the place
/// of minima.
#[inline]
#[level(avx512)]
fn minima<F: Superblock, const N: usize>(
    slab: &Slab<ROWS>,
    x: Columns<'_, Block, N>,
    part: usize,
    parts: usize,
) -> [__m512i; N] {
    let (pairs, at) = match F::SIGNED {
        true => (8, offset_of!(Block, sums16)),
        false => (4, offset_of!(Block, sums32)),
    };
    let each = pairs / parts;
    let mut mins = [[_mm512_setzero_si512(); N]];
    for t in part * each..(part + 1) * each {
        dot_pairs(&mut mins, [line(&slab.pairs[t])], x, at + 4 * t);
    }
    let [mins] = mins;
    mins
}
