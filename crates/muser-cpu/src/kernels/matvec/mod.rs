//! The matrix-vector family: a tile of rows of one packed matrix with one or
//! many vectors.
//!
//! Contract: [`muser_ops::project`]. One folder a weight format, one file a
//! level. K-quants meet quantised activations and share a driver:
//!
//! ```text
//! for the columns (vectors) in blocks of N = 8, 4, 2, 1:
//!   for the rows of the tile, four at a time:
//!     acc[N][4] = accm[N][4] = 0
//!     for superblock b, ascending:
//!       for each of the four rows:
//!         unpack 256 codes once; for each column: integer sum of lanes
//!       for each column: fold the lanes of four rows into four integers,
//!         one link of both chains, four rows side by side
//! ```
//!
//! Four rows side by side make the horizontal sums cheap (one tree for four)
//! and the float chains vertical; the order within a row is the contract's.
//! The last rows of a tile that is not a multiple of four are computed with
//! their last row repeated, and only what exists is written.
//!
//! Four rows are four streams of a page each, too short for the hardware's
//! prefetchers, so each step asks for the same span of the next four rows: the
//! weights of a tile, and of the tile after it, are one linear stream.
//!
//! Traffic, one column: every weight byte once, 144, 176 or 210 bytes a
//! superblock; the quantised input (320 bytes a superblock) stays in L1. More
//! columns read the weights again from L2 for every 8.

pub(crate) mod bf16;
pub(crate) mod f16;
pub(crate) mod f32;
pub(crate) mod q4_k;
pub(crate) mod q5_k;
pub(crate) mod q6_k;

/// Rows that a K-quant kernel computes side by side.
pub(crate) const ROWS: usize = 4;

/// The driver of a K-quant kernel: needs `quad::<N, LINK>(rows, x, ahead) ->
/// [[f32; 4]; N]` and `BYTES` in scope; `ahead` begins at the first of the four
/// rows.
#[cfg(target_arch = "x86_64")]
macro_rules! k_quant_driver {
    ($features:literal) => {
        use crate::kernels::matmul::link;

        /// A tile of rows (`w`) with `columns` vectors of `blocks` blocks.
        #[target_feature(enable = $features)]
        pub(crate) fn matvec(
            w: &[u8],
            x: &[Block],
            blocks: usize,
            columns: usize,
            tile: &mut Tile<'_>,
        ) {
            by::<{ link::STRICT }>(w, x, blocks, columns, tile);
        }

        /// The same by the tiled route of the pinned lane.
        #[target_feature(enable = $features)]
        pub(crate) fn matvec_tiled(
            w: &[u8],
            x: &[Block],
            blocks: usize,
            columns: usize,
            tile: &mut Tile<'_>,
        ) {
            by::<{ link::TILED }>(w, x, blocks, columns, tile);
        }

        #[inline]
        #[target_feature(enable = $features)]
        fn by<const LINK: u8>(
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
                    1 => block_of::<1, LINK>(w, x, blocks, c, tile),
                    2 | 3 => block_of::<2, LINK>(w, x, blocks, c, tile),
                    4..8 => block_of::<4, LINK>(w, x, blocks, c, tile),
                    _ => block_of::<8, LINK>(w, x, blocks, c, tile),
                };
            }
        }

        /// The columns `c .. c + N`; gives N.
        #[target_feature(enable = $features)]
        fn block_of<const N: usize, const LINK: u8>(
            w: &[u8],
            x: &[Block],
            blocks: usize,
            c: usize,
            tile: &mut Tile<'_>,
        ) -> usize {
            let x: [&[Block]; N] = std::array::from_fn(|i| &x[i * blocks..][..blocks]);
            let row_bytes = blocks * BYTES;
            for r in (0..tile.rows()).step_by(ROWS) {
                let rows: [&[[u8; BYTES]]; ROWS] = std::array::from_fn(|i| {
                    let row = (r + i).min(tile.rows() - 1);
                    w[row * row_bytes..][..row_bytes].as_chunks().0
                });
                let ahead = &w[r * row_bytes..];
                for (i, values) in quad::<N, LINK>(rows, x, ahead).iter().enumerate() {
                    tile.set(c + i, r, values);
                }
            }
            N
        }
    };
}

/// The kernel of the pinned lane's interleaved route of four columns, beside
/// [`k_quant_driver`]'s.
#[cfg(target_arch = "x86_64")]
macro_rules! k_quant_fours {
    ($features:literal) => {
        /// The same with a link every 64 codes.
        #[target_feature(enable = $features)]
        pub(crate) fn matvec_fours(
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
                    ..8 => block_of::<4, { link::FOURS }>(w, x, blocks, c, tile),
                    _ => block_of::<8, { link::FOURS }>(w, x, blocks, c, tile),
                };
            }
        }
    };
}

/// The scalar kernel of a K-quant: needs `BYTES`, and
/// `unpack(&[u8; BYTES]) -> Unpacked` with `dot(&Block) -> (i32, i32)`, `d`
/// and `dmin`.
macro_rules! k_quant_scalar {
    () => {
        /// A tile of rows (`w`) with `columns` vectors of `blocks` blocks.
        pub(crate) fn matvec(
            w: &[u8],
            x: &[Block],
            blocks: usize,
            columns: usize,
            tile: &mut Tile<'_>,
        ) {
            by::<false>(w, x, blocks, columns, tile);
        }

        /// The same by the tiled route of the pinned lane.
        pub(crate) fn matvec_tiled(
            w: &[u8],
            x: &[Block],
            blocks: usize,
            columns: usize,
            tile: &mut Tile<'_>,
        ) {
            by::<true>(w, x, blocks, columns, tile);
        }

        fn by<const TILED: bool>(
            w: &[u8],
            x: &[Block],
            blocks: usize,
            columns: usize,
            tile: &mut Tile<'_>,
        ) {
            let row_bytes = blocks * BYTES;
            let mut chains = vec![[0.0f32; 2]; columns];
            for r in 0..tile.rows() {
                chains.fill([0.0; 2]);
                let row = w[r * row_bytes..][..row_bytes].as_chunks::<BYTES>().0;
                for (b, bytes) in row.iter().enumerate() {
                    let block = unpack(bytes);
                    for (c, [acc, accm]) in chains.iter_mut().enumerate() {
                        let x = &x[c * blocks + b];
                        let (sum, min) = block.dot(x);
                        if TILED {
                            let value = sum as f32 * block.d;
                            let value = (-block.dmin).mul_add(min as f32, value);
                            *acc = value.mul_add(x.d, *acc);
                            continue;
                        }
                        *acc = (sum as f32).mul_add(block.d * x.d, *acc);
                        *accm = (min as f32).mul_add(block.dmin * x.d, *accm);
                    }
                }
                for (c, [acc, accm]) in chains.iter().enumerate() {
                    let value = if TILED { *acc } else { result(*acc, *accm) };
                    tile.set(c, r, &[value]);
                }
            }
        }
    };
}

/// The whole kernel of a format with minima (Q4_K and Q5_K differ in their codes
/// alone): needs `BYTES` and `codes(&[u8; BYTES])` in scope.
#[cfg(target_arch = "x86_64")]
macro_rules! with_minima {
    (avx512, $features:literal) => {
        use crate::kernels::matmul::Unpacked;
        use crate::kernels::matvec::{ROWS, k_quant_driver};
        use crate::kernels::quantize::Block;
        use crate::rows::Tile;
        use crate::simd::avx2::{
            chain4, differences, load_sums8, pairs_apart, prefetch, tiled_min4, to_arrays, twice,
            unpack_header, zero4,
        };
        use crate::simd::avx512 as v;

        k_quant_driver!($features);

        /// Four rows with N columns.
        #[inline]
        #[target_feature(enable = $features)]
        fn quad<const N: usize, const LINK: u8>(
            rows: [&[[u8; BYTES]]; ROWS],
            x: [&[Block]; N],
            ahead: &[u8],
        ) -> [[f32; ROWS]; N] {
            let blocks = rows[0].len();
            let mut acc = [zero4(); N];
            let mut accm = [zero4(); N];
            // With four links a superblock, the chains of two columns in one.
            let mut two = [_mm256_setzero_ps(); N];
            let mut two_m = [_mm256_setzero_ps(); N];
            for b in 0..blocks {
                prefetch(ahead, (blocks + b) * ROWS * BYTES, ROWS * BYTES);
                let w: [&[u8; BYTES]; ROWS] = std::array::from_fn(|r| &rows[r][b]);
                let header = v::headers4([w[0], w[1], w[2], w[3]]);
                let factors = v::factors4(header);
                let scales_mins = v::scales_mins4(header);
                let mins = _mm512_unpackhi_epi8(scales_mins, _mm512_setzero_si512());
                if N == 1 {
                    // One column: a row's codes are used as they come.
                    let mut sums = [_mm512_setzero_si512(); ROWS];
                    for r in 0..ROWS {
                        let scales = v::scales_for_packs(scales_mins, r);
                        sums[r] = v::dot_scaled(codes(w[r]), scales, &x[0][b].q);
                    }
                    let x = &x[0][b];
                    let sum = v::sum4(sums);
                    let sums32 = _mm512_broadcast_i32x4(load_sums8(&x.sums32));
                    let min = v::sum_lanes(_mm512_madd_epi16(mins, sums32));
                    if LINK == link::TILED {
                        acc[0] = tiled_min4((sum, min), factors, x.d, acc[0]);
                    } else {
                        acc[0] = chain4(sum, factors.0, x.d, acc[0]);
                        accm[0] = chain4(min, factors.1, x.d, accm[0]);
                    }
                    continue;
                }
                // 16 registers of codes and 8 of scales serve all columns.
                let codes = [codes(w[0]), codes(w[1]), codes(w[2]), codes(w[3])];
                let mut scales = [[_mm512_setzero_si512(); 2]; ROWS];
                for r in 0..ROWS {
                    scales[r] = v::scales_for_packs(scales_mins, r);
                }
                if LINK == link::FOURS {
                    for n in (0..N).step_by(2) {
                        let x = [&x[n][b], &x[(n + 1).min(N - 1)][b]];
                        let sums = (
                            v::group_sums(&codes, &scales, &x[0].q),
                            v::group_sums(&codes, &scales, &x[1].q),
                        );
                        let y = twice(_mm_set1_ps(x[0].d), _mm_set1_ps(x[1].d));
                        let d = _mm256_mul_ps(twice(factors.0, factors.0), y);
                        two[n] = v::four_links(sums, &v::SUM_AT, d, two[n]);
                        let sums32 = [
                            _mm512_broadcast_i32x4(load_sums8(&x[0].sums32)),
                            _mm512_broadcast_i32x4(load_sums8(&x[1].sums32)),
                        ];
                        let min = (
                            _mm512_madd_epi16(mins, sums32[0]),
                            _mm512_madd_epi16(mins, sums32[1]),
                        );
                        let dmin = _mm256_mul_ps(twice(factors.1, factors.1), y);
                        two_m[n] = v::four_links(min, &v::MIN_AT, dmin, two_m[n]);
                    }
                    continue;
                }
                for n in 0..N {
                    let x = &x[n][b];
                    let mut sums = [_mm512_setzero_si512(); ROWS];
                    for r in 0..ROWS {
                        sums[r] = v::dot_scaled(codes[r], scales[r], &x.q);
                    }
                    let sum = v::sum4(sums);
                    let sums32 = _mm512_broadcast_i32x4(load_sums8(&x.sums32));
                    let min = v::sum_lanes(_mm512_madd_epi16(mins, sums32));
                    if LINK == link::TILED {
                        acc[n] = tiled_min4((sum, min), factors, x.d, acc[n]);
                        continue;
                    }
                    acc[n] = chain4(sum, factors.0, x.d, acc[n]);
                    accm[n] = chain4(min, factors.1, x.d, accm[n]);
                }
            }
            match LINK {
                link::TILED => to_arrays(acc),
                link::FOURS => pairs_apart(two, two_m),
                _ => differences(acc, accm),
            }
        }

        /// Unpacks a superblock for the matrix-matrix rung.
        #[inline]
        #[target_feature(enable = $features)]
        pub(crate) fn unpack_to(w: &[u8; BYTES], to: &mut Unpacked) {
            v::store_unpacked(codes(w), to);
            unpack_header(w, to);
        }
    };
    (avx2, $features:literal) => {
        use crate::kernels::matmul::Unpacked;
        use crate::kernels::matvec::{ROWS, k_quant_driver};
        use crate::kernels::quantize::Block;
        use crate::rows::Tile;
        use crate::simd::avx2::{
            self as v, chain4, differences, factors4, load_sums8, prefetch, tiled_min4, to_arrays,
            unpack_header, zero4,
        };

        k_quant_driver!($features);

        /// Four rows with N columns.
        #[inline]
        #[target_feature(enable = $features)]
        fn quad<const N: usize, const LINK: u8>(
            rows: [&[[u8; BYTES]]; ROWS],
            x: [&[Block]; N],
            ahead: &[u8],
        ) -> [[f32; ROWS]; N] {
            let blocks = rows[0].len();
            let mut acc = [zero4(); N];
            let mut accm = [zero4(); N];
            for b in 0..blocks {
                prefetch(ahead, (blocks + b) * ROWS * BYTES, ROWS * BYTES);
                let w: [&[u8; BYTES]; ROWS] = std::array::from_fn(|r| &rows[r][b]);
                if LINK == link::FOURS {
                    let codes = [codes(w[0]), codes(w[1]), codes(w[2]), codes(w[3])];
                    let mut header = [v::scales_mins(w[0]); ROWS];
                    for r in 1..ROWS {
                        header[r] = v::scales_mins(w[r]);
                    }
                    let four = [&w[0][..], &w[1][..], &w[2][..], &w[3][..]];
                    let (d, dmin) = (factors4(four, 0), factors4(four, 2));
                    for n in 0..N {
                        let x = &x[n][b];
                        let sums32 = load_sums8(&x.sums32);
                        let mut min = [_mm_setzero_si128(); ROWS];
                        for r in 0..ROWS {
                            min[r] = _mm_madd_epi16(header[r].1, sums32);
                        }
                        let min = v::turn4(min);
                        for g in 0..4 {
                            let mut sums = [_mm256_setzero_si256(); ROWS];
                            for r in 0..ROWS {
                                sums[r] = v::group_sum(&codes[r], header[r].0, g, &x.q);
                            }
                            acc[n] = chain4(v::sum4(sums), d, x.d, acc[n]);
                            accm[n] = chain4(min[g], dmin, x.d, accm[n]);
                        }
                    }
                    continue;
                }
                let mut sums = [[_mm256_setzero_si256(); ROWS]; N];
                let mut mins = [[_mm_setzero_si128(); ROWS]; N];
                for r in 0..ROWS {
                    let codes = codes(w[r]);
                    let (scales, minima) = v::scales_mins(w[r]);
                    for n in 0..N {
                        let x = &x[n][b];
                        sums[n][r] = v::dot_scaled(&codes, scales, &x.q);
                        mins[n][r] = _mm_madd_epi16(minima, load_sums8(&x.sums32));
                    }
                }
                let four = [&w[0][..], &w[1][..], &w[2][..], &w[3][..]];
                let (d, dmin) = (factors4(four, 0), factors4(four, 2));
                for n in 0..N {
                    let y = x[n][b].d;
                    let (sum, min) = (v::sum4(sums[n]), v::sum4_narrow(mins[n]));
                    if LINK == link::TILED {
                        acc[n] = tiled_min4((sum, min), (d, dmin), y, acc[n]);
                        continue;
                    }
                    acc[n] = chain4(sum, d, y, acc[n]);
                    accm[n] = chain4(min, dmin, y, accm[n]);
                }
            }
            if LINK == link::TILED {
                return to_arrays(acc);
            }
            differences(acc, accm)
        }

        /// Unpacks a superblock for the matrix-matrix rung.
        #[inline]
        #[target_feature(enable = $features)]
        pub(crate) fn unpack_to(w: &[u8; BYTES], to: &mut Unpacked) {
            v::store_unpacked(codes(w), to);
            unpack_header(w, to);
        }
    };
}

/// [`with_minima`], portable: needs `BYTES` and `unpack(&[u8; BYTES]) ->
/// Unpacked`, whose type it defines.
macro_rules! with_minima_scalar {
    () => {
        use crate::kernels::matvec::k_quant_scalar;
        use crate::kernels::quantize::Block;
        use crate::rows::Tile;

        k_quant_scalar!();

        struct Unpacked {
            codes: [u8; QK],
            scales: [u8; 8],
            mins: [u8; 8],
            d: f32,
            dmin: f32,
        }

        impl Unpacked {
            fn dot(&self, x: &Block) -> (i32, i32) {
                self.dot_of(x, 0..8)
            }

            /// S and M over some sub-blocks.
            fn dot_of(&self, x: &Block, of: std::ops::Range<usize>) -> (i32, i32) {
                let (mut sum, mut min) = (0, 0);
                for j in of {
                    let codes = &self.codes[32 * j..][..32];
                    let products = codes.iter().zip(&x.q[32 * j..][..32]);
                    let dot: i32 = products.map(|(&c, &q)| i32::from(c) * i32::from(q)).sum();
                    sum += i32::from(self.scales[j]) * dot;
                    min += i32::from(self.mins[j]) * i32::from(x.sums32[j]);
                }
                (sum, min)
            }
        }

        fn result(acc: f32, accm: f32) -> f32 {
            acc - accm
        }

        /// Unpacks a superblock for the matrix-matrix rung.
        pub(crate) fn unpack_to(w: &[u8; BYTES], to: &mut crate::kernels::matmul::Unpacked) {
            let u = unpack(w);
            to.codes.as_flattened_mut().copy_from_slice(&u.codes);
            for (to, s) in to.scales.iter_mut().zip(u.scales) {
                *to = i32::from(s);
            }
            for (to, m) in to.pairs.as_flattened_mut().iter_mut().zip(u.mins) {
                *to = i16::from(m);
            }
            (to.d, to.dmin) = (u.d, u.dmin);
        }
    };
}

/// The kernel of a float format, whose values `$load` reads.
macro_rules! float_kernel {
    ($level:ident, $load:ident, $bytes:literal $(, $features:literal)?) => {
        use crate::rows::Tile;
        use crate::simd::$level as v;
        use muser_ops::reduce::LANES;

        const VECTORS: usize = LANES / v::LANES;

        /// A tile of rows (`w`) with `columns` vectors of `cols` values.
        $(#[target_feature(enable = $features)])?
        pub(crate) fn matvec(
            w: &[u8],
            x: &[f32],
            cols: usize,
            columns: usize,
            tile: &mut Tile<'_>,
        ) {
            for r in 0..tile.rows() {
                let row = &w[r * cols * $bytes..][..cols * $bytes];
                for c in 0..columns {
                    let sum = dot(row, &x[c * cols..][..cols]);
                    tile.set(c, r, &[sum]);
                }
            }
        }

        /// Σ w · x in the order of `muser_ops::reduce`.
        #[inline]
        $(#[target_feature(enable = $features)])?
        fn dot(w: &[u8], x: &[f32]) -> f32 {
            let mut acc = [v::splat(0.0); VECTORS];
            let (blocks, rest) = x.as_chunks::<LANES>();
            for (x, w) in blocks.iter().zip(w.as_chunks::<{ LANES * $bytes }>().0) {
                for (i, a) in acc.iter_mut().enumerate() {
                    let at = i * v::LANES;
                    *a = v::fma(v::$load(w, at), v::load(x, at), *a);
                }
            }
            let w = &w[blocks.len() * LANES * $bytes..];
            let whole = rest.len() / v::LANES;
            for (i, a) in acc.iter_mut().enumerate().take(whole) {
                let at = i * v::LANES;
                *a = v::fma(v::$load(w, at), v::load(rest, at), *a);
            }
            let n = rest.len() - whole * v::LANES;
            if n > 0 {
                // A padded vector would add +0 to lanes that have no value, and
                // -0 + +0 is +0: only the lanes that exist are replaced.
                let at = whole * v::LANES;
                let (mut xs, mut ws) = ([0.0; v::LANES], [0; v::LANES * $bytes]);
                xs[..n].copy_from_slice(&rest[at..]);
                ws[..n * $bytes].copy_from_slice(&w[at * $bytes..][..n * $bytes]);
                let (mut sum, mut kept) = ([0.0; v::LANES], [0.0; v::LANES]);
                v::store(&mut kept, 0, acc[whole]);
                v::store(&mut sum, 0, v::fma(v::$load(&ws, 0), v::load(&xs, 0), acc[whole]));
                kept[..n].copy_from_slice(&sum[..n]);
                acc[whole] = v::load(&kept, 0);
            }
            let mut width = VECTORS / 2;
            while width > 0 {
                for i in 0..width {
                    acc[i] = v::add(acc[i], acc[i + width]);
                }
                width /= 2;
            }
            v::halve_lanes(acc[0])
        }
    };
}

pub(crate) use {float_kernel, k_quant_scalar, with_minima_scalar};
#[cfg(target_arch = "x86_64")]
pub(crate) use {k_quant_driver, k_quant_fours, with_minima};
