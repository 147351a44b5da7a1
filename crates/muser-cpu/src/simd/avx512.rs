//! The vector functions of the avx512 instruction-set level: vectors of 16 f32, with
//! AVX-512 F, BW, DQ, VL and VNNI.
//!
//! Zen 4 executes a 512-bit instruction as two halves, Zen 5 and Intel's CPUs as a whole.
//! Either way, one instruction does the work of two, and the same bytes take half as many
//! loads. VNNI's `vpdpbusd` (4 products and their sum) replaces the two instructions
//! `vpmaddubsw` and `vpmaddwd` of the avx2 level and cannot saturate.

pub(crate) mod slab;

pub(crate) use super::math::avx512::{exp, exp_pinned, sigmoid, silu, tanh, tanh_glibc};

use muser_levels::level;
use muser_ops::pinned::glibc;
use std::arch::x86_64::*;

/// A vector of the avx512 level: sixteen f32 values.
pub(crate) type V = __m512;
/// The number of f32 elements in a vector of the avx512 level.
pub(crate) const ELEMENTS: usize = 16;
/// The number of query heads that attention computes at once at the avx512 level. This
/// takes 21 of the 32 registers: 4 × 4 accumulators, 4 vectors of K or V and one
/// broadcast.
pub(crate) const HEAD_BLOCK: usize = 4;

/// Returns a pointer to `$n` values of a slice from `$at` on, after a check that they
/// exist.
macro_rules! checked {
    ($x:expr, $at:expr, $n:expr) => {
        $x[$at..][..$n].as_ptr()
    };
}

#[inline]
#[level(avx512)]
pub(crate) fn load(x: &[f32], at: usize) -> V {
    // SAFETY: the slice expression has checked 16 values.
    unsafe { _mm512_loadu_ps(checked!(x, at, 16)) }
}
#[inline]
#[level(avx512)]
pub(crate) fn store(x: &mut [f32], at: usize, v: V) {
    // SAFETY: the slice expression has checked 16 values.
    unsafe { _mm512_storeu_ps(x[at..][..16].as_mut_ptr(), v) }
}
#[inline]
#[level(avx512)]
pub(crate) fn load_f32_bytes(x: &[u8], at: usize) -> V {
    // SAFETY: the slice expression has checked 64 bytes; the load is unaligned.
    unsafe { _mm512_loadu_ps(checked!(x, 4 * at, 64).cast()) }
}
#[inline]
#[level(avx512)]
pub(crate) fn load_f16_bytes(x: &[u8], at: usize) -> V {
    _mm512_cvtph_ps(load256(x, 2 * at))
}
#[inline]
#[level(avx512)]
pub(crate) fn load_bf16_bytes(x: &[u8], at: usize) -> V {
    let wide = _mm512_cvtepu16_epi32(load256(x, 2 * at));
    _mm512_castsi512_ps(_mm512_slli_epi32::<16>(wide))
}
#[inline]
#[level(avx512)]
pub(crate) fn load_f16(x: &[u16], at: usize) -> V {
    // SAFETY: the slice expression has checked 16 values.
    _mm512_cvtph_ps(unsafe { _mm256_loadu_si256(checked!(x, at, 16).cast()) })
}
#[inline]
#[level(avx512)]
pub(crate) fn store_f16(x: &mut [u16], at: usize, v: V) {
    let half = _mm512_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(v);
    // SAFETY: the slice expression has checked 16 values.
    unsafe { _mm256_storeu_si256(x[at..][..16].as_mut_ptr().cast(), half) }
}
/// Rounds each element of a vector to f16 and converts it back to f32.
#[inline]
#[level(avx512)]
pub(crate) fn half(x: V) -> V {
    _mm512_cvtph_ps(_mm512_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(x))
}
#[inline]
#[level(avx512)]
pub(crate) fn splat(x: f32) -> V {
    _mm512_set1_ps(x)
}
#[inline]
#[level(avx512)]
pub(crate) fn add(a: V, b: V) -> V {
    _mm512_add_ps(a, b)
}
#[inline]
#[level(avx512)]
pub(crate) fn sub(a: V, b: V) -> V {
    _mm512_sub_ps(a, b)
}
#[inline]
#[level(avx512)]
pub(crate) fn mul(a: V, b: V) -> V {
    _mm512_mul_ps(a, b)
}
#[inline]
#[level(avx512)]
pub(crate) fn div(a: V, b: V) -> V {
    _mm512_div_ps(a, b)
}
/// Computes a · b + c in each element of three vectors, rounded once.
#[inline]
#[level(avx512)]
pub(crate) fn fma(a: V, b: V, c: V) -> V {
    _mm512_fmadd_ps(a, b, c)
}
/// Computes a > b ? a : b in each element of two vectors: b if either is NaN.
#[inline]
#[level(avx512)]
pub(crate) fn max(a: V, b: V) -> V {
    _mm512_max_ps(a, b)
}
/// Computes a < b ? a : b in each element of two vectors: b if either is NaN.
#[inline]
#[level(avx512)]
pub(crate) fn min(a: V, b: V) -> V {
    _mm512_min_ps(a, b)
}
#[inline]
#[level(avx512)]
pub(crate) fn round(a: V) -> V {
    _mm512_roundscale_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(a)
}
#[inline]
#[level(avx512)]
pub(crate) fn trunc(a: V) -> V {
    _mm512_roundscale_ps::<{ _MM_FROUND_TO_ZERO | _MM_FROUND_NO_EXC }>(a)
}
/// Computes glibc's expf of each element of a vector, as
/// `muser_ops::pinned::glibc::expf` defines it, eight f64 at a time.
#[inline]
#[level(avx512)]
pub(crate) fn exp_glibc(x: V) -> V {
    let low = exp_f64(_mm512_cvtps_pd(_mm512_castps512_ps256(x)));
    let high = exp_f64(_mm512_cvtps_pd(_mm512_extractf32x8_ps::<1>(x)));
    let low = _mm512_castps256_ps512(_mm512_cvtpd_ps(low));
    _mm512_insertf32x8::<1>(low, _mm512_cvtpd_ps(high))
}
/// Computes glibc's expf of eight values in f64, before the results are rounded to f32.
#[inline]
#[level(avx512)]
fn exp_f64(x: __m512d) -> __m512d {
    let [low, high] = glibc::EXP_RANGE;
    // A NaN stays: the instructions return their second operand if either is NaN.
    let x = _mm512_min_pd(_mm512_set1_pd(high), _mm512_max_pd(_mm512_set1_pd(low), x));
    let (scale, shift) = (
        _mm512_set1_pd(glibc::EXP_SCALE),
        _mm512_set1_pd(glibc::EXP_SHIFT),
    );
    let z = _mm512_fmadd_pd(scale, x, shift);
    let k = _mm512_castpd_si512(z);
    let r = _mm512_fmsub_pd(scale, x, _mm512_sub_pd(z, shift));
    // The table is in four registers; a permutation of two uses the low four bits of the
    // index.
    let part = |i: usize| {
        const { assert!(glibc::EXP_TABLE.len() == 32) };
        // SAFETY: eight entries from 8 i, i < 4.
        unsafe { _mm512_loadu_si512(glibc::EXP_TABLE[8 * i..][..8].as_ptr().cast()) }
    };
    let first = _mm512_permutex2var_epi64(part(0), k, part(1));
    let second = _mm512_permutex2var_epi64(part(2), k, part(3));
    let upper = _mm512_test_epi64_mask(k, _mm512_set1_epi64(16));
    let base = _mm512_mask_blend_epi64(upper, first, second);
    let power = _mm512_add_epi64(base, _mm512_slli_epi64::<47>(k));
    let [c0, c1, c2] = glibc::EXP_POLY;
    let (c0, c1, c2) = (_mm512_set1_pd(c0), _mm512_set1_pd(c1), _mm512_set1_pd(c2));
    let p = _mm512_fmadd_pd(c0, r, c1);
    let y = _mm512_fmadd_pd(c2, r, _mm512_set1_pd(1.0));
    let y = _mm512_fmadd_pd(p, _mm512_mul_pd(r, r), y);
    _mm512_mul_pd(y, _mm512_castsi512_pd(power))
}
#[inline]
#[level(avx512)]
pub(crate) fn abs(a: V) -> V {
    _mm512_abs_ps(a)
}
/// Combines the magnitude of `a` with the sign of `s` in each element of two vectors.
#[inline]
#[level(avx512)]
pub(crate) fn copysign(a: V, s: V) -> V {
    let sign = _mm512_and_ps(_mm512_set1_ps(-0.0), s);
    _mm512_or_ps(abs(a), sign)
}
/// Computes a < b ? x : y in each element of four vectors.
#[inline]
#[level(avx512)]
pub(crate) fn select_lt(a: V, b: V, x: V, y: V) -> V {
    _mm512_mask_blend_ps(_mm512_cmp_ps_mask::<_CMP_LT_OQ>(a, b), y, x)
}
/// Multiplies each element of p by a power of two in two steps, p · 2^(n >> 1) · 2^(n -
/// (n >> 1)), for integral n, |n| <= 152.
#[inline]
#[level(avx512)]
pub(crate) fn scale_by_power(p: V, n: V) -> V {
    let n = _mm512_cvtps_epi32(n);
    let half = _mm512_srai_epi32::<1>(n);
    let rest = _mm512_sub_epi32(n, half);
    let bias = _mm512_set1_epi32(127);
    let a = _mm512_slli_epi32::<23>(_mm512_add_epi32(half, bias));
    let b = _mm512_slli_epi32::<23>(_mm512_add_epi32(rest, bias));
    mul(mul(p, _mm512_castsi512_ps(a)), _mm512_castsi512_ps(b))
}
/// Applies rotary position encoding to interleaved pairs (x0, y0, x1, y1, …) by the
/// cosine c and sine s of each pair: x·c - y·s and x·s + y·c, products and sum rounded.
/// Rotates whole groups of eight pairs and returns the number of pairs it has rotated.
#[inline]
#[level(avx512)]
pub(crate) fn rotate_pairs(x: &mut [f32], cos: &[f32], sin: &[f32]) -> usize {
    let pairs = cos.len() / 8 * 8;
    let twice = _mm512_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7);
    // Adding y·s with its sign flipped equals subtracting it, to the bit.
    let even = _mm512_castsi512_ps(_mm512_set1_epi64(0x8000_0000));
    for p in (0..pairs).step_by(8) {
        let v = load(x, 2 * p);
        // SAFETY: the slice expressions have checked eight values.
        let (c, s) = unsafe {
            (
                _mm256_loadu_ps(checked!(cos, p, 8)),
                _mm256_loadu_ps(checked!(sin, p, 8)),
            )
        };
        let c = _mm512_permutexvar_ps(twice, _mm512_castps256_ps512(c));
        let s = _mm512_permutexvar_ps(twice, _mm512_castps256_ps512(s));
        let swapped = _mm512_permute_ps::<0b10_11_00_01>(v);
        let turned = _mm512_xor_ps(mul(swapped, s), even);
        store(x, 2 * p, add(mul(v, c), turned));
    }
    pairs
}
/// Adds the sixteen elements of a vector by halves: the upper half to the lower one until
/// one value is left.
#[inline]
#[level(avx512)]
pub(crate) fn halve(v: V) -> f32 {
    let eight = _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps::<1>(v));
    super::avx2::halve(eight)
}
/// Adds the `L` (8 or 16) values of a slice from `at` on, by halves: the upper half to
/// the lower one until one value is left.
#[inline]
#[level(avx512)]
pub(crate) fn fold_group<const L: usize>(x: &[f32], at: usize) -> f32 {
    match L {
        8 => super::avx2::fold_group::<8>(x, at),
        _ => halve(load(x, at)),
    }
}
/// Loads 32 bytes of a slice, from byte `at` on, to a 256-bit register.
#[inline]
#[level(avx512)]
pub(crate) fn load256(x: &[u8], at: usize) -> __m256i {
    // SAFETY: the slice expression has checked 32 bytes; the load is unaligned.
    unsafe { _mm256_loadu_si256(checked!(x, at, 32).cast()) }
}
/// Loads 64 bytes of a slice, from byte `at` on, to a 512-bit register.
#[inline]
#[level(avx512)]
pub(crate) fn load512(x: &[u8], at: usize) -> __m512i {
    // SAFETY: the slice expression has checked 64 bytes; the load is unaligned.
    unsafe { _mm512_loadu_si512(checked!(x, at, 64).cast()) }
}
/// Loads 64 of the 256 quantised values (int8 codes) of a block of activations, from
/// value `at` on.
#[inline]
#[level(avx512)]
pub(crate) fn load_codes(x: &[i8; 256], at: usize) -> __m512i {
    // SAFETY: the slice expression has checked 64 codes; the load is unaligned.
    unsafe { _mm512_loadu_si512(checked!(x, at, 64).cast()) }
}
/// Stores sixteen quantised activations (int8 codes) to `q[at..]`.
#[inline]
#[level(avx512)]
pub(crate) fn store_codes16(q: &mut [i8; 256], at: usize, v: __m128i) {
    // SAFETY: the slice expression has checked 16 codes.
    unsafe { _mm_storeu_si128(q[at..][..16].as_mut_ptr().cast(), v) }
}
/// Loads the first 16 bytes of four weight blocks, one block in each 128-bit quarter of a
/// register.
#[inline]
#[level(avx512)]
pub(crate) fn headers4(b: [&[u8]; 4]) -> __m512i {
    let low = _mm512_castsi128_si512(super::avx2::load128(b[0], 0));
    let v = _mm512_inserti32x4::<1>(low, super::avx2::load128(b[1], 0));
    let v = _mm512_inserti32x4::<2>(v, super::avx2::load128(b[2], 0));
    _mm512_inserti32x4::<3>(v, super::avx2::load128(b[3], 0))
}
/// Sums the sixteen i32 of each of four vectors, and returns the four sums as one vector.
#[inline]
#[level(avx512)]
pub(crate) fn sum4(v: [__m512i; 4]) -> __m128i {
    let a = _mm512_add_epi32(
        _mm512_unpacklo_epi32(v[0], v[1]),
        _mm512_unpackhi_epi32(v[0], v[1]),
    );
    let b = _mm512_add_epi32(
        _mm512_unpacklo_epi32(v[2], v[3]),
        _mm512_unpackhi_epi32(v[2], v[3]),
    );
    let c = _mm512_add_epi32(_mm512_unpacklo_epi64(a, b), _mm512_unpackhi_epi64(a, b));
    let d = _mm256_add_epi32(_mm512_castsi512_si256(c), _mm512_extracti64x4_epi64::<1>(c));
    _mm_add_epi32(_mm256_castsi256_si128(d), _mm256_extracti128_si256::<1>(d))
}
/// Sums the four i32 in each 128-bit quarter of a vector, and returns the four sums as
/// one vector.
#[inline]
#[level(avx512)]
pub(crate) fn sum_quarters(v: __m512i) -> __m128i {
    let v = _mm512_add_epi32(v, _mm512_shuffle_epi32::<0b01_00_11_10>(v));
    let v = _mm512_add_epi32(v, _mm512_shuffle_epi32::<0b10_11_00_01>(v));
    let first = _mm512_setr_epi32(0, 4, 8, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0);
    _mm512_castsi512_si128(_mm512_permutexvar_epi32(first, v))
}
/// Converts the f16 factors d (of scales) and dmin (of minima) in the headers of four
/// Q4_K or Q5_K superblocks to f32.
#[inline]
#[level(avx512)]
pub(crate) fn factors4(headers: __m512i) -> (__m128, __m128) {
    let first = _mm512_setr_epi32(0, 4, 8, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0);
    let pairs = _mm512_castsi512_si128(_mm512_permutexvar_epi32(first, headers));
    let apart = _mm_setr_epi8(0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15);
    let both = _mm256_cvtph_ps(_mm_shuffle_epi8(pairs, apart));
    (
        _mm256_castps256_ps128(both),
        _mm256_extractf128_ps::<1>(both),
    )
}
/// Unpacks the scales (to bytes 0..8 of each 128-bit quarter) and minima (to bytes 8..16)
/// from the headers of four Q4_K or Q5_K superblocks.
#[inline]
#[level(avx512)]
pub(crate) fn scales_mins4(headers: __m512i) -> __m512i {
    // The 32-bit words of a header: factors, scales 0..3, minima 0..3, low nibbles of
    // 4..7.
    let low = _mm512_shuffle_epi32::<0b11_10_11_01>(headers);
    let high = _mm512_srli_epi32::<2>(_mm512_shuffle_epi32::<0b10_10_01_01>(headers));
    let low = _mm512_srlv_epi32(low, in_each_quarter(0, 0, 0, 4));
    let low = _mm512_and_si512(
        low,
        in_each_quarter(0x3f3f_3f3f, 0x0f0f_0f0f, 0x3f3f_3f3f, 0x0f0f_0f0f),
    );
    // low | (high & mask)
    let mask = in_each_quarter(0, 0x3030_3030, 0, 0x3030_3030);
    _mm512_ternarylogic_epi32::<0b1111_1000>(low, high, mask)
}
/// Returns a vector with the same four 32-bit words in each 128-bit quarter.
#[inline]
#[level(avx512)]
fn in_each_quarter(a: i32, b: i32, c: i32, d: i32) -> __m512i {
    _mm512_broadcast_i32x4(_mm_setr_epi32(a, b, c, d))
}
/// Arranges the scales of row `r` of four Q4_K or Q5_K rows, as i16, as [`dot_scaled`]
/// needs them. Each 128-bit quarter of the first vector has the scales of sub-blocks 0
/// and 2 (lower two quarters) or 1 and 3 (upper two); of the second, 4 and 6, or 5 and 7.
#[inline]
#[level(avx512)]
pub(crate) fn scales_for_packs(scales_mins: __m512i, r: usize) -> [__m512i; 2] {
    let row = match r {
        0 => _mm512_shuffle_i32x4::<0b00_00_00_00>(scales_mins, scales_mins),
        1 => _mm512_shuffle_i32x4::<0b01_01_01_01>(scales_mins, scales_mins),
        2 => _mm512_shuffle_i32x4::<0b10_10_10_10>(scales_mins, scales_mins),
        _ => _mm512_shuffle_i32x4::<0b11_11_11_11>(scales_mins, scales_mins),
    };
    // Each i16 is byte k and a zero byte; the index 0x80 makes zero.
    let pick = |even: i64, odd: i64| {
        let word = 0x8000_8000_8000_8000u64.cast_signed();
        let each = 0x0001_0001_0001_0001i64;
        let (a, b) = (word | (even * each), word | ((even + 2) * each));
        let (c, d) = (word | (odd * each), word | ((odd + 2) * each));
        _mm512_setr_epi64(a, b, a, b, c, d, c, d)
    };
    [
        _mm512_shuffle_epi8(row, pick(0, 1)),
        _mm512_shuffle_epi8(row, pick(4, 5)),
    ]
}
/// Computes Σ scale · code · activation of a superblock (256 weights), in 16 partial
/// sums: sums of four products are packed to i16 and multiplied by the scales.
#[inline]
#[level(avx512)]
pub(crate) fn dot_scaled(codes: [__m512i; 4], scales: [__m512i; 2], q: &[i8; 256]) -> __m512i {
    let zero = _mm512_setzero_si512();
    let quads = |g: usize| _mm512_dpbusd_epi32(zero, codes[g], load_codes(q, 64 * g));
    let first = _mm512_packs_epi32(quads(0), quads(1));
    let second = _mm512_packs_epi32(quads(2), quads(3));
    _mm512_dpwssd_epi32(_mm512_madd_epi16(first, scales[0]), second, scales[1])
}

/// Computes Σ scale · code · activation of a superblock (256 weights), in the eight
/// partial sums of the narrow batches of the pinned lane (llama.cpp's arithmetic): the
/// products are taken in quads of four, and sum l has every eighth quad. The quads of two
/// vectors are combined in the 16-bit words of one, and each word of `scales` is the
/// scale of its quad.
#[inline]
#[level(avx512)]
pub(crate) fn dot_partials(codes: [__m512i; 4], scales: [__m512i; 2], q: &[i8; 256]) -> __m256i {
    let zero = _mm512_setzero_si512();
    let quads = |g: usize| _mm512_dpbusd_epi32(zero, codes[g], load_codes(q, 64 * g));
    // The quads of `a` in the lower words, those of `b` in the upper words.
    let both = |a, b| _mm512_mask_blend_epi16(0xaaaa_aaaa, a, _mm512_slli_epi32::<16>(b));
    let first = _mm512_madd_epi16(both(quads(0), quads(1)), scales[0]);
    let sum = _mm512_dpwssd_epi32(first, both(quads(2), quads(3)), scales[1]);
    let high = _mm512_extracti64x4_epi64::<1>(sum);
    _mm256_add_epi32(_mm512_castsi512_si256(sum), high)
}
/// Arranges the scales of a Q4_K or Q5_K superblock, which are bytes, as [`dot_partials`]
/// needs them.
#[inline]
#[level(avx512)]
pub(crate) fn scales_for_partials(scales: __m128i) -> [__m512i; 2] {
    let scales = _mm512_broadcast_i32x4(scales);
    let pick = |g: i64| {
        let word = |k: i64| {
            let pair = 0x8000_8000_8000_8000u64.cast_signed();
            pair | (k * 0x0000_0001_0000_0001) | ((k + 2) * 0x0001_0000_0001_0000)
        };
        let (low, high) = (word(4 * g), word(4 * g + 1));
        _mm512_setr_epi64(low, low, low, low, high, high, high, high)
    };
    [
        _mm512_shuffle_epi8(scales, pick(0)),
        _mm512_shuffle_epi8(scales, pick(1)),
    ]
}

/// Sums the eight i32 in each half of four vectors, and returns eight sums in the order
/// lower half of the first vector, upper half of the first, lower half of the second, …
#[inline]
#[level(avx512)]
pub(crate) fn sum_halves(v: [__m512i; 4]) -> __m256i {
    let a = _mm512_add_epi32(
        _mm512_unpacklo_epi32(v[0], v[1]),
        _mm512_unpackhi_epi32(v[0], v[1]),
    );
    let b = _mm512_add_epi32(
        _mm512_unpacklo_epi32(v[2], v[3]),
        _mm512_unpackhi_epi32(v[2], v[3]),
    );
    // Each 128-bit quarter has the sums of that quarter in the four vectors.
    let c = _mm512_add_epi32(_mm512_unpacklo_epi64(a, b), _mm512_unpackhi_epi64(a, b));
    let (low, high) = (_mm512_castsi512_si256(c), _mm512_extracti64x4_epi64::<1>(c));
    let low = _mm_add_epi32(
        _mm256_castsi256_si128(low),
        _mm256_extracti128_si256::<1>(low),
    );
    let high = _mm_add_epi32(
        _mm256_castsi256_si128(high),
        _mm256_extracti128_si256::<1>(high),
    );
    _mm256_set_m128i(_mm_unpackhi_epi32(low, high), _mm_unpacklo_epi32(low, high))
}
