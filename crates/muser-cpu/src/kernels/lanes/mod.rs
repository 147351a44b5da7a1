//! The pinned lane's narrow rung: K-quant rows with one to seven vectors, eight
//! float lanes an output.
//!
//! Contract: [`muser_ops::pinned::project`], [`Route::Lanes`]. Float lane l takes
//! every eighth quad of codes, which is what a 256-bit register of integer sums
//! holds, so that a superblock costs a conversion and one fma, and lanes are
//! added to each other once a row:
//!
//! ```text
//! for the columns in blocks of N = 4, 2, 1:
//!   for each row of the tile:
//!     acc[N] = 0                                    eight lanes each
//!     for superblock b, ascending:
//!       unpack 256 codes once; for each column:
//!         sum = integer sums of quads, by lane      (Q6_K: less 32 times the sums)
//!         acc = fma(f32(sum), d · y, acc);  the minima likewise
//!     fold the lanes
//! ```
//!
//! Traffic: as the matvec family's. One row is one stream of 144, 176 or 210
//! bytes a superblock, asked for [`AHEAD`] bytes before its use.
//!
//! [`Route::Lanes`]: muser_ops::pinned::project::Route::Lanes

pub(crate) mod q4_k;
pub(crate) mod q5_k;
pub(crate) mod q6_k;

/// How far ahead of the stream its bytes are asked for.
#[cfg(target_arch = "x86_64")]
pub(crate) const AHEAD: usize = 4096;

/// What stands beside the codes.
pub(crate) mod minima {
    /// Q4_K: four more float lanes, of two sub-blocks each.
    pub(crate) const LANES: u8 = 0;
    /// Q5_K: one more chain.
    pub(crate) const CHAIN: u8 = 1;
    /// Q6_K: nothing; the bias of the codes is an integer matter.
    pub(crate) const NONE: u8 = 2;
}

/// The driver of a level's file: needs `row::<N>(w, x) -> [f32; N]`, `w` from
/// the row's first byte on, and `BYTES`.
macro_rules! driver {
    ($($features:literal)?) => {
        /// A tile of rows (`w`) with `columns` vectors of `blocks` blocks.
        $(#[target_feature(enable = $features)])?
        pub(crate) fn lanes(
            w: &[u8],
            x: &[Block],
            blocks: usize,
            columns: usize,
            tile: &mut Tile<'_>,
        ) {
            let mut c = 0;
            while c < columns {
                let x = &x[c * blocks..];
                c += match columns - c {
                    1 => block_of::<1>(w, x, blocks, c, tile),
                    2 | 3 => block_of::<2>(w, x, blocks, c, tile),
                    _ => block_of::<4>(w, x, blocks, c, tile),
                };
            }
        }

        /// The columns `c .. c + N`; gives N.
        $(#[target_feature(enable = $features)])?
        fn block_of<const N: usize>(
            w: &[u8],
            x: &[Block],
            blocks: usize,
            c: usize,
            tile: &mut Tile<'_>,
        ) -> usize {
            let x: [&[Block]; N] = std::array::from_fn(|i| &x[i * blocks..][..blocks]);
            for r in 0..tile.rows() {
                let values = row::<N>(&w[r * blocks * BYTES..], x);
                for (i, value) in values.into_iter().enumerate() {
                    tile.set(c + i, r, &[value]);
                }
            }
            N
        }
    };
}

/// The portable level: needs `unpack_to`, `BYTES`, `SUB_BLOCKS` and `MINIMA`.
macro_rules! scalar {
    () => {
        use super::MINIMA;
        use crate::kernels::lanes::minima;
        use crate::kernels::quantize::Block;
        use crate::rows::Tile;
        use crate::unpacked::Unpacked;

        $crate::kernels::lanes::driver!();

        /// One row with N columns.
        fn row<const N: usize>(w: &[u8], x: [&[Block]; N]) -> [f32; N] {
            let mut acc = [[0.0f32; 8]; N];
            let mut low = [[0.0f32; 4]; N];
            let mut u = Unpacked::ZERO;
            let blocks = x[0].len();
            for (b, bytes) in w.as_chunks::<BYTES>().0.iter().take(blocks).enumerate() {
                unpack(bytes, &mut u);
                for n in 0..N {
                    let x = &x[n][b];
                    let d = x.d * u.d;
                    for (acc, sum) in acc[n].iter_mut().zip(sums(&u, x)) {
                        *acc = d.mul_add(sum as f32, *acc);
                    }
                    let dmin = -x.d * u.dmin;
                    match MINIMA {
                        minima::LANES => {
                            for (low, min) in low[n].iter_mut().zip(mins(&u, x)) {
                                *low = dmin.mul_add(min as f32, *low);
                            }
                        }
                        minima::CHAIN => {
                            let min: i32 = mins(&u, x).iter().sum();
                            low[n][0] = dmin.mul_add(min as f32, low[n][0]);
                        }
                        _ => {}
                    }
                }
            }
            std::array::from_fn(|n| {
                let a: [f32; 4] = std::array::from_fn(|l| acc[n][l + 4] + acc[n][l]);
                let (sum, m) = ((a[0] + a[2]) + (a[1] + a[3]), low[n]);
                match MINIMA {
                    minima::LANES => sum + ((m[0] + m[2]) + (m[1] + m[3])),
                    minima::CHAIN => sum + m[0],
                    _ => sum,
                }
            })
        }

        /// The sums of the eight lanes.
        fn sums(u: &Unpacked, x: &Block) -> [i32; 8] {
            let mut sums = [0; 8];
            for (k, (codes, q)) in u.codes.iter().zip(x.q.as_chunks::<4>().0).enumerate() {
                let products = codes.iter().zip(q);
                let quad: i32 = products.map(|(&c, &q)| i32::from(c) * i32::from(q)).sum();
                sums[k % 8] += u.scales[k * SUB_BLOCKS / 64] * quad;
            }
            if MINIMA == minima::NONE {
                for (l, sum) in sums.iter_mut().enumerate() {
                    let [a, b] = u.pairs[l].map(i32::from);
                    let s = &x.sums16[2 * l..];
                    *sum -= (a * i32::from(s[0]) + b * i32::from(s[1])) << 5;
                }
            }
            sums
        }

        /// The minima times the sums, by pairs of sub-blocks.
        fn mins(u: &Unpacked, x: &Block) -> [i32; 4] {
            std::array::from_fn(|t| {
                let [a, b] = u.pairs[t].map(i32::from);
                a * i32::from(x.sums32[2 * t]) + b * i32::from(x.sums32[2 * t + 1])
            })
        }
    };
}

/// AVX2, formats with minima: needs `codes(&[u8; BYTES])`, `BYTES` and
/// `MINIMA`.
#[cfg(target_arch = "x86_64")]
macro_rules! with_minima {
    () => {
        use super::MINIMA;
        use crate::kernels::lanes::{AHEAD, minima};
        use crate::kernels::quantize::Block;
        use crate::rows::Tile;
        use crate::simd::avx2 as v;
        use std::arch::x86_64::*;

        $crate::kernels::lanes::driver!("avx2,fma,f16c");

        /// One row with N columns.
        #[inline]
        #[target_feature(enable = "avx2,fma,f16c")]
        fn row<const N: usize>(w: &[u8], x: [&[Block]; N]) -> [f32; N] {
            let mut acc = [v::splat(0.0); N];
            let mut low = [v::zero4(); N];
            let blocks = x[0].len();
            for (b, bytes) in w.as_chunks::<BYTES>().0.iter().take(blocks).enumerate() {
                v::prefetch(w, b * BYTES + AHEAD, BYTES);
                let codes = codes(bytes);
                let (scales, mins) = v::scales_mins(bytes);
                let (d, dmin) = (v::factor_at(bytes, 0), v::factor_at(bytes, 2));
                for n in 0..N {
                    let x = &x[n][b];
                    let sum = v::dot_scaled(&codes, scales, &x.q);
                    let factor = v::splat(x.d * d);
                    acc[n] = v::fma(factor, _mm256_cvtepi32_ps(sum), acc[n]);
                    let min = _mm_madd_epi16(mins, v::load_sums8(&x.sums32));
                    let min = match MINIMA {
                        minima::LANES => min,
                        _ => v::sum_all4(min),
                    };
                    let factor = _mm_set1_ps(-x.d * dmin);
                    low[n] = _mm_fmadd_ps(factor, _mm_cvtepi32_ps(min), low[n]);
                }
            }
            let mut sums = [0.0; N];
            for n in 0..N {
                let low = match MINIMA {
                    minima::LANES => v::fold4(low[n]),
                    _ => _mm_cvtss_f32(low[n]),
                };
                sums[n] = v::halve_lanes(acc[n]) + low;
            }
            sums
        }
    };
}

/// [`with_minima`] at the avx512 level.
#[cfg(target_arch = "x86_64")]
macro_rules! with_minima_512 {
    () => {
        use super::MINIMA;
        use crate::kernels::lanes::{AHEAD, minima};
        use crate::kernels::quantize::Block;
        use crate::rows::Tile;
        use crate::simd::avx2 as v;
        use crate::simd::avx512::{dot_lanes, scales_for_lanes};
        use std::arch::x86_64::*;

        $crate::kernels::lanes::driver!(
            "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c"
        );

        /// One row with N columns.
        #[inline]
        #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
        fn row<const N: usize>(w: &[u8], x: [&[Block]; N]) -> [f32; N] {
            let mut acc = [v::splat(0.0); N];
            let mut low = [v::zero4(); N];
            let blocks = x[0].len();
            for (b, bytes) in w.as_chunks::<BYTES>().0.iter().take(blocks).enumerate() {
                v::prefetch(w, b * BYTES + AHEAD, BYTES);
                let codes = codes(bytes);
                let header = v::scales_mins_bytes(bytes);
                let scales = scales_for_lanes(header);
                let mins = _mm_cvtepu8_epi16(_mm_srli_si128::<8>(header));
                let (d, dmin) = (v::factor_at(bytes, 0), v::factor_at(bytes, 2));
                for n in 0..N {
                    let x = &x[n][b];
                    let sum = dot_lanes(codes, scales, &x.q);
                    let factor = v::splat(x.d * d);
                    acc[n] = v::fma(factor, _mm256_cvtepi32_ps(sum), acc[n]);
                    let min = _mm_madd_epi16(mins, v::load_sums8(&x.sums32));
                    let min = match MINIMA {
                        minima::LANES => min,
                        _ => v::sum_all4(min),
                    };
                    let factor = _mm_set1_ps(-x.d * dmin);
                    low[n] = _mm_fmadd_ps(factor, _mm_cvtepi32_ps(min), low[n]);
                }
            }
            let mut sums = [0.0; N];
            for n in 0..N {
                let low = match MINIMA {
                    minima::LANES => v::fold4(low[n]),
                    _ => _mm_cvtss_f32(low[n]),
                };
                sums[n] = v::halve_lanes(acc[n]) + low;
            }
            sums
        }
    };
}

pub(crate) use {driver, scalar};
#[cfg(target_arch = "x86_64")]
pub(crate) use {with_minima, with_minima_512};
