//! The vector functions of the avx2 instruction-set level: vectors of 8 f32, with AVX2,
//! FMA and F16C.
//!
//! | name | instruction | Zen 4 / Zen 5 latency | Skylake latency |
//! |---|---|---|---|
//! | `add`, `mul`, `fma` | vaddps, vmulps, vfmadd | 3, 3, 4 | 4, 4, 4 |
//! | `div` | vdivps ymm | 11, one in 5 cycles | 11, one in 5 |
//! | `load_f16` | vcvtph2ps ymm, m128 | 5 | 7 |
//! | `round` | vroundps | 3 | 8 |

pub(crate) mod slab;

pub(crate) use super::math::avx2::{exp, exp_pinned, sigmoid, silu, tanh, tanh_glibc};

use crate::kernels::quantize::Block;
use muser_levels::level;
use muser_ops::pinned::glibc;
use std::arch::x86_64::*;

/// A vector of the avx2 level: eight f32 values.
pub(crate) type V = __m256;
/// The number of f32 elements in a vector of the avx2 level.
pub(crate) const ELEMENTS: usize = 8;
/// The number of query heads that attention computes at once at the avx2 level. This
/// takes 13 of the 16 registers: 2 × 4 accumulators, 4 vectors of K or V and one
/// broadcast.
pub(crate) const HEAD_BLOCK: usize = 2;

/// Returns a pointer to `$n` values of a slice from `$at` on, after a check that they
/// exist.
macro_rules! checked {
    ($x:expr, $at:expr, $n:expr) => {
        $x[$at..][..$n].as_ptr()
    };
}

#[inline]
#[level(avx2)]
pub(crate) fn load(x: &[f32], at: usize) -> V {
    // SAFETY: the slice expression has checked eight values.
    unsafe { _mm256_loadu_ps(checked!(x, at, 8)) }
}
#[inline]
#[level(avx2)]
pub(crate) fn store(x: &mut [f32], at: usize, v: V) {
    // SAFETY: the slice expression has checked eight values.
    unsafe { _mm256_storeu_ps(x[at..][..8].as_mut_ptr(), v) }
}
#[inline]
#[level(avx2)]
pub(crate) fn load_f32_bytes(x: &[u8], at: usize) -> V {
    // SAFETY: the slice expression has checked 32 bytes; the load is unaligned.
    unsafe { _mm256_loadu_ps(checked!(x, 4 * at, 32).cast()) }
}
#[inline]
#[level(avx2)]
pub(crate) fn load_f16_bytes(x: &[u8], at: usize) -> V {
    _mm256_cvtph_ps(load128(x, 2 * at))
}
#[inline]
#[level(avx2)]
pub(crate) fn load_bf16_bytes(x: &[u8], at: usize) -> V {
    let wide = _mm256_cvtepu16_epi32(load128(x, 2 * at));
    _mm256_castsi256_ps(_mm256_slli_epi32::<16>(wide))
}
#[inline]
#[level(avx2)]
pub(crate) fn load_f16(x: &[u16], at: usize) -> V {
    // SAFETY: the slice expression has checked eight values.
    _mm256_cvtph_ps(unsafe { _mm_loadu_si128(checked!(x, at, 8).cast()) })
}
#[inline]
#[level(avx2)]
pub(crate) fn store_f16(x: &mut [u16], at: usize, v: V) {
    let half = _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(v);
    // SAFETY: the slice expression has checked eight values.
    unsafe { _mm_storeu_si128(x[at..][..8].as_mut_ptr().cast(), half) }
}
/// Rounds each element of a vector to f16 and converts it back to f32.
#[inline]
#[level(avx2)]
pub(crate) fn half(x: V) -> V {
    _mm256_cvtph_ps(_mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(x))
}
#[inline]
#[level(avx2)]
pub(crate) fn splat(x: f32) -> V {
    _mm256_set1_ps(x)
}
#[inline]
#[level(avx2)]
pub(crate) fn add(a: V, b: V) -> V {
    _mm256_add_ps(a, b)
}
#[inline]
#[level(avx2)]
pub(crate) fn sub(a: V, b: V) -> V {
    _mm256_sub_ps(a, b)
}
#[inline]
#[level(avx2)]
pub(crate) fn mul(a: V, b: V) -> V {
    _mm256_mul_ps(a, b)
}
#[inline]
#[level(avx2)]
pub(crate) fn div(a: V, b: V) -> V {
    _mm256_div_ps(a, b)
}
/// Computes a · b + c in each element of three vectors, rounded once.
#[inline]
#[level(avx2)]
pub(crate) fn fma(a: V, b: V, c: V) -> V {
    _mm256_fmadd_ps(a, b, c)
}
/// Computes a > b ? a : b in each element of two vectors: b if either is NaN.
#[inline]
#[level(avx2)]
pub(crate) fn max(a: V, b: V) -> V {
    _mm256_max_ps(a, b)
}
/// Computes a < b ? a : b in each element of two vectors: b if either is NaN.
#[inline]
#[level(avx2)]
pub(crate) fn min(a: V, b: V) -> V {
    _mm256_min_ps(a, b)
}
#[inline]
#[level(avx2)]
pub(crate) fn round(a: V) -> V {
    _mm256_round_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(a)
}
#[inline]
#[level(avx2)]
pub(crate) fn trunc(a: V) -> V {
    _mm256_round_ps::<{ _MM_FROUND_TO_ZERO | _MM_FROUND_NO_EXC }>(a)
}
/// Computes glibc's expf of each element of a vector, as
/// `muser_ops::pinned::glibc::expf` defines it, four f64 at a time.
#[inline]
#[level(avx2)]
pub(crate) fn exp_glibc(x: V) -> V {
    let low = exp_f64(_mm256_cvtps_pd(_mm256_castps256_ps128(x)));
    let high = exp_f64(_mm256_cvtps_pd(_mm256_extractf128_ps::<1>(x)));
    _mm256_set_m128(_mm256_cvtpd_ps(high), _mm256_cvtpd_ps(low))
}
/// Computes glibc's expf of four values in f64, before the results are rounded to f32.
#[inline]
#[level(avx2)]
fn exp_f64(x: __m256d) -> __m256d {
    let [low, high] = glibc::EXP_RANGE;
    // A NaN stays: the instructions return their second operand if either is NaN.
    let x = _mm256_min_pd(_mm256_set1_pd(high), _mm256_max_pd(_mm256_set1_pd(low), x));
    let (scale, shift) = (
        _mm256_set1_pd(glibc::EXP_SCALE),
        _mm256_set1_pd(glibc::EXP_SHIFT),
    );
    let z = _mm256_fmadd_pd(scale, x, shift);
    let k = _mm256_castpd_si256(z);
    let r = _mm256_fmsub_pd(scale, x, _mm256_sub_pd(z, shift));
    let index = _mm256_and_si256(k, _mm256_set1_epi64x(31));
    // SAFETY: the indices are below 32, the entries of the table.
    let base = unsafe { _mm256_i64gather_epi64::<8>(glibc::EXP_TABLE.as_ptr().cast(), index) };
    let power = _mm256_add_epi64(base, _mm256_slli_epi64::<47>(k));
    let [c0, c1, c2] = glibc::EXP_POLY;
    let (c0, c1, c2) = (_mm256_set1_pd(c0), _mm256_set1_pd(c1), _mm256_set1_pd(c2));
    let p = _mm256_fmadd_pd(c0, r, c1);
    let y = _mm256_fmadd_pd(c2, r, _mm256_set1_pd(1.0));
    let y = _mm256_fmadd_pd(p, _mm256_mul_pd(r, r), y);
    _mm256_mul_pd(y, _mm256_castsi256_pd(power))
}
#[inline]
#[level(avx2)]
pub(crate) fn abs(a: V) -> V {
    _mm256_andnot_ps(_mm256_set1_ps(-0.0), a)
}
/// Combines the magnitude of `a` with the sign of `s` in each element of two vectors.
#[inline]
#[level(avx2)]
pub(crate) fn copysign(a: V, s: V) -> V {
    let sign = _mm256_and_ps(_mm256_set1_ps(-0.0), s);
    _mm256_or_ps(abs(a), sign)
}
/// Computes a < b ? x : y in each element of four vectors.
#[inline]
#[level(avx2)]
pub(crate) fn select_lt(a: V, b: V, x: V, y: V) -> V {
    _mm256_blendv_ps(y, x, _mm256_cmp_ps::<_CMP_LT_OQ>(a, b))
}
/// Multiplies each element of p by a power of two in two steps, p · 2^(n >> 1) · 2^(n -
/// (n >> 1)), for integral n, |n| <= 152.
#[inline]
#[level(avx2)]
pub(crate) fn scale_by_power(p: V, n: V) -> V {
    let n = _mm256_cvtps_epi32(n);
    let half = _mm256_srai_epi32::<1>(n);
    let rest = _mm256_sub_epi32(n, half);
    let bias = _mm256_set1_epi32(127);
    let a = _mm256_slli_epi32::<23>(_mm256_add_epi32(half, bias));
    let b = _mm256_slli_epi32::<23>(_mm256_add_epi32(rest, bias));
    mul(mul(p, _mm256_castsi256_ps(a)), _mm256_castsi256_ps(b))
}
/// Applies rotary position encoding to interleaved pairs (x0, y0, x1, y1, …) by the
/// cosine c and sine s of each pair: x·c - y·s and x·s + y·c, products and sum rounded.
/// Rotates whole groups of four pairs and returns the number of pairs it has rotated.
#[inline]
#[level(avx2)]
pub(crate) fn rotate_pairs(x: &mut [f32], cos: &[f32], sin: &[f32]) -> usize {
    let pairs = cos.len() / 4 * 4;
    let twice = _mm256_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3);
    for p in (0..pairs).step_by(4) {
        let v = load(x, 2 * p);
        // SAFETY: the slice expressions have checked four values.
        let (c, s) = unsafe {
            (
                _mm_loadu_ps(checked!(cos, p, 4)),
                _mm_loadu_ps(checked!(sin, p, 4)),
            )
        };
        let c = _mm256_permutevar8x32_ps(_mm256_castps128_ps256(c), twice);
        let s = _mm256_permutevar8x32_ps(_mm256_castps128_ps256(s), twice);
        let swapped = _mm256_permute_ps::<0b10_11_00_01>(v);
        // Even elements subtract, odd elements add; no fma.
        store(x, 2 * p, _mm256_addsub_ps(mul(v, c), mul(swapped, s)));
    }
    pairs
}
/// Adds the eight elements of a vector by halves: the upper half to the lower one until
/// one value is left.
#[inline]
#[level(avx2)]
pub(crate) fn halve(v: V) -> f32 {
    let four = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v));
    let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)))
}

/// Adds the `L` (8 or 16) values of a slice from `at` on, by halves: the upper half to
/// the lower one until one value is left.
#[inline]
#[level(avx2)]
pub(crate) fn fold_group<const L: usize>(x: &[f32], at: usize) -> f32 {
    match L {
        8 => halve(load(x, at)),
        _ => halve(add(load(x, at), load(x, at + 8))),
    }
}

/// Prefetches the cache lines of the `len` bytes that lie `at` bytes after the
/// beginning of `x`, in `x` or past its end.
///
/// A prefetch never faults, so the address may be past the end of `x`.
#[inline]
#[level(avx2)]
pub(crate) fn prefetch(x: &[u8], at: usize, len: usize) {
    for line in (0..len).step_by(64) {
        let address = x.as_ptr().wrapping_add(at + line);
        _mm_prefetch::<_MM_HINT_T0>(address.cast());
    }
}
/// Loads 16 bytes of a slice, from byte `at` on, to a 128-bit register.
#[inline]
#[level(avx2)]
pub(crate) fn load128(x: &[u8], at: usize) -> __m128i {
    // SAFETY: the slice expression has checked 16 bytes; the load is unaligned.
    unsafe { _mm_loadu_si128(checked!(x, at, 16).cast()) }
}
/// Loads 32 bytes of a slice, from byte `at` on, to a 256-bit register.
#[inline]
#[level(avx2)]
pub(crate) fn load256(x: &[u8], at: usize) -> __m256i {
    // SAFETY: the slice expression has checked 32 bytes; the load is unaligned.
    unsafe { _mm256_loadu_si256(checked!(x, at, 32).cast()) }
}
/// Loads 32 of the 256 quantised values (int8 codes) of a block of activations, from
/// value `at` on.
#[inline]
#[level(avx2)]
pub(crate) fn load_codes(x: &[i8; 256], at: usize) -> __m256i {
    // SAFETY: the slice expression has checked 32 codes; the load is unaligned.
    unsafe { _mm256_loadu_si256(checked!(x, at, 32).cast()) }
}
/// Loads the eight 16-bit sums of a block's quantised activations.
#[inline]
#[level(avx2)]
pub(crate) fn load_sums8(x: &[i16; 8]) -> __m128i {
    // SAFETY: the array has 16 bytes.
    unsafe { _mm_loadu_si128(x.as_ptr().cast()) }
}
/// Loads the sixteen 16-bit sums of a block's quantised activations.
#[inline]
#[level(avx2)]
pub(crate) fn load_sums16(x: &[i16; 16]) -> __m256i {
    // SAFETY: the array has 32 bytes.
    unsafe { _mm256_loadu_si256(x.as_ptr().cast()) }
}
/// Returns the four f32 elements of a vector as an array.
#[inline]
#[level(avx2)]
pub(crate) fn to_array4(v: __m128) -> [f32; 4] {
    let mut out = [0.0; 4];
    // SAFETY: the array has 16 bytes.
    unsafe { _mm_storeu_ps(out.as_mut_ptr(), v) };
    out
}
/// Stores 32 quantised activations (int8 codes) to `q[at..]`.
#[inline]
#[level(avx2)]
pub(crate) fn store_codes(q: &mut [i8; 256], at: usize, v: __m256i) {
    // SAFETY: the slice expression has checked 32 codes.
    unsafe { _mm256_storeu_si256(q[at..][..32].as_mut_ptr().cast(), v) }
}
/// Sums the eight i32 of each of four vectors, and returns the four sums as one vector.
#[inline]
#[level(avx2)]
pub(crate) fn sum4(v: [__m256i; 4]) -> __m128i {
    let a = _mm256_hadd_epi32(v[0], v[1]);
    let b = _mm256_hadd_epi32(v[2], v[3]);
    let c = _mm256_hadd_epi32(a, b);
    _mm_add_epi32(_mm256_castsi256_si128(c), _mm256_extracti128_si256::<1>(c))
}
/// Sums the four i32 of each of four 128-bit vectors, and returns the four sums as one
/// vector.
#[inline]
#[level(avx2)]
pub(crate) fn sum4_narrow(v: [__m128i; 4]) -> __m128i {
    _mm_hadd_epi32(_mm_hadd_epi32(v[0], v[1]), _mm_hadd_epi32(v[2], v[3]))
}
/// Loads the f16 scale factors at byte `at` of four weight blocks, as f32.
#[inline]
#[level(avx2)]
pub(crate) fn factors4(blocks: [&[u8]; 4], at: usize) -> __m128 {
    let bits = |b: &[u8]| i64::from(u16::from_le_bytes([b[at], b[at + 1]]));
    let all =
        bits(blocks[0]) | bits(blocks[1]) << 16 | bits(blocks[2]) << 32 | bits(blocks[3]) << 48;
    _mm_cvtph_ps(_mm_cvtsi64_si128(all))
}
/// Adds the integer sums of a superblock to the running f32 sums of four rows:
/// `f32(sum) · (factor · y) + acc`, the final sum rounded once. factor: the
/// superblock's f32 factor; y: the activations' scale.
#[inline]
#[level(avx2)]
pub(crate) fn chain4(sum: __m128i, factor: __m128, y: f32, acc: __m128) -> __m128 {
    let scaled = _mm_mul_ps(factor, _mm_set1_ps(y));
    _mm_fmadd_ps(_mm_cvtepi32_ps(sum), scaled, acc)
}
/// Sums the four i32 of a vector, and returns the sum in every element.
#[inline]
#[level(avx2)]
pub(crate) fn sum_all4(v: __m128i) -> __m128i {
    let two = _mm_hadd_epi32(v, v);
    _mm_hadd_epi32(two, two)
}
/// Adds the four elements of a vector in the order (x0 + x2) + (x1 + x3).
#[inline]
#[level(avx2)]
pub(crate) fn fold4(x: __m128) -> f32 {
    let two = _mm_add_ps(x, _mm_movehl_ps(x, x));
    _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)))
}
/// Loads the f16 scale factor at byte `at` of a weight block, as f32.
#[inline]
#[level(avx2)]
pub(crate) fn factor_at(w: &[u8], at: usize) -> f32 {
    factor(w[at], w[at + 1])
}
/// Subtracts the running sums of minima `b` from those of scaled products `a`, for four
/// rows.
#[inline]
#[level(avx2)]
pub(crate) fn difference(a: __m128, b: __m128) -> [f32; 4] {
    to_array4(_mm_sub_ps(a, b))
}
/// Returns the bytes of four weight blocks, to compute side by side. If fewer are
/// given, the last one is repeated.
#[inline]
#[level(avx2)]
pub(crate) fn four<const B: usize>(w: &[[u8; B]]) -> [&[u8]; 4] {
    let last = w.len() - 1;
    [&w[0], &w[last.min(1)], &w[last.min(2)], &w[last]]
}
/// Loads the scales of four blocks of quantised activations; if there are fewer, the last
/// one is repeated.
#[inline]
#[level(avx2)]
pub(crate) fn scales_of(x: &[Block]) -> __m128 {
    let last = x.len() - 1;
    _mm_setr_ps(x[0].d, x[last.min(1)].d, x[last.min(2)].d, x[last].d)
}
/// Adds the integer sums of up to four superblocks of one row to its running f32 sums,
/// one after the other: `f32(sum) · (factor · y) + acc`. The two running sums, of
/// scaled products and of minima, are the first two elements of `chains`. factor: the
/// superblock's f32 factor; y: the activations' scale.
#[inline]
#[level(avx2)]
pub(crate) fn links(
    (sum, min): (__m128i, __m128i),
    (d, dmin): (__m128, __m128),
    y: __m128,
    count: usize,
    chains: __m128,
) -> __m128 {
    let (sum, min) = (_mm_cvtepi32_ps(sum), _mm_cvtepi32_ps(min));
    let (d, dmin) = (_mm_mul_ps(d, y), _mm_mul_ps(dmin, y));
    let (sums, factors) = (_mm_unpacklo_ps(sum, min), _mm_unpacklo_ps(d, dmin));
    let chains = _mm_fmadd_ps(sums, factors, chains);
    if count == 1 {
        return chains;
    }
    let (sums, factors) = (_mm_movehl_ps(sums, sums), _mm_movehl_ps(factors, factors));
    let chains = _mm_fmadd_ps(sums, factors, chains);
    if count == 2 {
        return chains;
    }
    let (sums, factors) = (_mm_unpackhi_ps(sum, min), _mm_unpackhi_ps(d, dmin));
    let chains = _mm_fmadd_ps(sums, factors, chains);
    if count == 3 {
        return chains;
    }
    let (sums, factors) = (_mm_movehl_ps(sums, sums), _mm_movehl_ps(factors, factors));
    _mm_fmadd_ps(sums, factors, chains)
}
/// Returns the first of the two running sums of [`links`]: that of a row's scaled
/// products.
#[inline]
#[level(avx2)]
pub(crate) fn first(chains: __m128) -> f32 {
    _mm_cvtss_f32(chains)
}
/// Returns a row's dot product from the two running sums of [`links`]: the first, of
/// scaled products, minus the second, of minima.
#[inline]
#[level(avx2)]
pub(crate) fn minus_second(chains: __m128) -> f32 {
    _mm_cvtss_f32(_mm_sub_ss(chains, _mm_movehdup_ps(chains)))
}
/// Returns four running f32 sums before any superblock is added: zeros.
#[inline]
#[level(avx2)]
pub(crate) fn zero4() -> __m128 {
    _mm_setzero_ps()
}

/// Unpacks the scales of a Q4_K or Q5_K superblock, as i16 in both 128-bit halves, and
/// its minima, as i16.
#[inline]
#[level(avx2)]
pub(crate) fn scales_mins(w: &[u8]) -> (__m256i, __m128i) {
    let wide = _mm256_cvtepu8_epi16(scales_mins_bytes(w));
    (
        _mm256_permute2x128_si256::<0x00>(wide, wide),
        _mm256_extracti128_si256::<1>(wide),
    )
}
/// Unpacks the scales of a Q4_K or Q5_K superblock to the lower eight bytes of a
/// register, its minima to the upper eight bytes.
#[inline]
#[level(avx2)]
pub(crate) fn scales_mins_bytes(w: &[u8]) -> __m128i {
    let header = load128(w, 0);
    // The 32-bit words of a header: factors, scales 0..3, minima 0..3, low nibbles of
    // 4..7.
    let low = _mm_shuffle_epi32::<0b11_10_11_01>(header);
    let high = _mm_srli_epi32::<2>(_mm_shuffle_epi32::<0b10_10_01_01>(header));
    let low = _mm_srlv_epi32(low, _mm_setr_epi32(0, 0, 0, 4));
    let low_mask = _mm_setr_epi32(0x3f3f_3f3f, 0x0f0f_0f0f, 0x3f3f_3f3f, 0x0f0f_0f0f);
    let high_mask = _mm_setr_epi32(0, 0x3030_3030, 0, 0x3030_3030);
    _mm_or_si128(_mm_and_si128(low, low_mask), _mm_and_si128(high, high_mask))
}
/// Computes Σ scale · code · activation of a Q4_K or Q5_K superblock (256 weights), in 8
/// partial sums. Vector j of `codes` is sub-block j.
#[inline]
#[level(avx2)]
pub(crate) fn dot_scaled(codes: &[__m256i; 8], scales: __m256i, q: &[i8; 256]) -> __m256i {
    let mut sum = _mm256_setzero_si256();
    for (j, &codes) in codes.iter().enumerate() {
        let pick = _mm256_set1_epi16(i16::from_le_bytes([2 * j as u8, 2 * j as u8 + 1]));
        let scale = _mm256_shuffle_epi8(scales, pick);
        let pairs = _mm256_maddubs_epi16(codes, load_codes(q, 32 * j));
        sum = _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, scale));
    }
    sum
}

/// Converts the f16 value in two bytes, the low one first, to f32.
#[inline]
#[level(avx2)]
fn factor(lo: u8, hi: u8) -> f32 {
    let bits = i32::from(u16::from_le_bytes([lo, hi]));
    _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(bits)))
}

/// Sums the eight i32 of each of eight vectors, and returns the eight sums as one vector.
#[inline]
#[level(avx2)]
pub(crate) fn sum8(v: [__m256i; 8]) -> __m256i {
    let a = _mm256_hadd_epi32(_mm256_hadd_epi32(v[0], v[1]), _mm256_hadd_epi32(v[2], v[3]));
    let b = _mm256_hadd_epi32(_mm256_hadd_epi32(v[4], v[5]), _mm256_hadd_epi32(v[6], v[7]));
    // The lower half of each has the sums of the vectors' lower halves, the upper half
    // those of their upper halves.
    let low = _mm256_permute2x128_si256::<0x20>(a, b);
    let high = _mm256_permute2x128_si256::<0x31>(a, b);
    _mm256_add_epi32(low, high)
}
