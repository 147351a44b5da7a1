//! The matrix-vector family: a tile of rows of one packed matrix with one
//! vector (K-quants), or with any number (float formats).
//!
//! Contract: [`muser_ops::project`]. One folder a weight format, one file a
//! level. K-quants meet quantised activations, and four superblocks at a time,
//! so that one tree makes their horizontal sums:
//!
//! ```text
//! avx512: for the rows of the tile, four at a time:
//!   for superblock b, ascending:
//!     for each of the four rows: unpack 256 codes, integer sum of lanes
//!     fold the lanes of four rows into four integers,
//!     one link of both chains, four rows side by side
//! avx2: for each row of the tile:
//!   for superblocks b .. b + 4, ascending:
//!     for each: unpack 256 codes, integer sum of lanes
//!     fold the lanes of four superblocks into four integers,
//!     four links of both chains, one after the other
//! ```
//!
//! A row at a time is the faster form at avx2 (1.0 to 1.2 times), which has no
//! registers for four. The order within a row is the contract's. The last rows of a tile that is
//! not a multiple of four are computed with their last row repeated, and only
//! what exists is written.
//!
//! Four rows are four streams of a page each, too short for the hardware's
//! prefetchers, so each step asks for the same span of the next four rows: the
//! weights of a tile, and of the tile after it, are one linear stream. One row is
//! one stream, asked for [`AHEAD`] bytes before its use.
//!
//! Traffic: every weight byte once, 144, 176 or 210 bytes a superblock; the
//! quantised input (320 bytes a superblock) stays in L1.

pub(crate) mod bf16;
pub(crate) mod f16;
pub(crate) mod f32;
pub(crate) mod q4_k;
pub(crate) mod q5_k;
pub(crate) mod q6_k;

/// Rows, or superblocks of one row, that a K-quant kernel computes side by side.
pub(crate) const SIDE: usize = 4;

/// How far ahead of a row's stream its bytes are asked for.
#[cfg(target_arch = "x86_64")]
pub(crate) const AHEAD: usize = 4096;

/// The driver of a kernel that computes four rows side by side: needs
/// `quad(rows, x, ahead) -> [f32; 4]` and `BYTES` in scope; `ahead` begins at
/// the first of the four rows.
#[cfg(target_arch = "x86_64")]
macro_rules! by_quads {
    ($features:literal) => {
        /// A tile of rows (`w`) with `columns` vectors of `blocks` blocks.
        #[target_feature(enable = $features)]
        pub(crate) fn matvec(
            w: &[u8],
            x: &[Block],
            blocks: usize,
            columns: usize,
            tile: &mut Tile<'_>,
        ) {
            let row_bytes = blocks * BYTES;
            for (c, x) in x.chunks_exact(blocks).take(columns).enumerate() {
                for r in (0..tile.rows()).step_by(SIDE) {
                    let rows: [&[[u8; BYTES]]; SIDE] = std::array::from_fn(|i| {
                        let row = (r + i).min(tile.rows() - 1);
                        w[row * row_bytes..][..row_bytes].as_chunks().0
                    });
                    let values = quad(rows, x, &w[r * row_bytes..]);
                    tile.set(c, r, &values);
                }
            }
        }
    };
}

/// The driver of a kernel that computes a row at a time: needs `row(w, x) ->
/// f32`, `w` from the row's first byte on, and `BYTES` in scope.
#[cfg(target_arch = "x86_64")]
macro_rules! by_rows {
    ($features:literal) => {
        /// A tile of rows (`w`) with `columns` vectors of `blocks` blocks.
        #[target_feature(enable = $features)]
        pub(crate) fn matvec(
            w: &[u8],
            x: &[Block],
            blocks: usize,
            columns: usize,
            tile: &mut Tile<'_>,
        ) {
            for (c, x) in x.chunks_exact(blocks).take(columns).enumerate() {
                for r in 0..tile.rows() {
                    let value = row(&w[r * blocks * BYTES..], x);
                    tile.set(c, r, &[value]);
                }
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
                        *acc = (sum as f32).mul_add(block.d * x.d, *acc);
                        *accm = (min as f32).mul_add(block.dmin * x.d, *accm);
                    }
                }
                for (c, [acc, accm]) in chains.iter().enumerate() {
                    tile.set(c, r, &[result(*acc, *accm)]);
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
        use crate::kernels::matvec::{SIDE, by_quads};
        use crate::kernels::quantize::Block;
        use crate::rows::Tile;
        use crate::simd::avx2::{chain4, difference, load_sums8, prefetch, zero4};
        use crate::simd::avx512 as v;

        by_quads!($features);

        /// Four rows with a column.
        #[inline]
        #[target_feature(enable = $features)]
        fn quad(rows: [&[[u8; BYTES]]; SIDE], x: &[Block], ahead: &[u8]) -> [f32; SIDE] {
            let blocks = rows[0].len();
            let (mut acc, mut accm) = (zero4(), zero4());
            for (b, x) in x.iter().enumerate().take(blocks) {
                prefetch(ahead, (blocks + b) * SIDE * BYTES, SIDE * BYTES);
                let w: [&[u8; BYTES]; SIDE] = std::array::from_fn(|r| &rows[r][b]);
                let header = v::headers4([w[0], w[1], w[2], w[3]]);
                let factors = v::factors4(header);
                let scales_mins = v::scales_mins4(header);
                let mins = _mm512_unpackhi_epi8(scales_mins, _mm512_setzero_si512());
                let mut sums = [_mm512_setzero_si512(); SIDE];
                for r in 0..SIDE {
                    let scales = v::scales_for_packs(scales_mins, r);
                    sums[r] = v::dot_scaled(codes(w[r]), scales, &x.q);
                }
                let sums32 = _mm512_broadcast_i32x4(load_sums8(&x.sums32));
                let min = v::sum_lanes(_mm512_madd_epi16(mins, sums32));
                acc = chain4(v::sum4(sums), factors.0, x.d, acc);
                accm = chain4(min, factors.1, x.d, accm);
            }
            difference(acc, accm)
        }
    };
    (avx2, $features:literal) => {
        use crate::kernels::matvec::{AHEAD, SIDE, by_rows};
        use crate::kernels::quantize::Block;
        use crate::rows::Tile;
        use crate::simd::avx2::{self as v, factors4, load_sums8, prefetch};

        by_rows!($features);

        /// One row with a column.
        #[inline]
        #[target_feature(enable = $features)]
        fn row(w: &[u8], x: &[Block]) -> f32 {
            let w = &w.as_chunks::<BYTES>().0[..x.len()];
            let mut chains = v::zero4();
            for (w, x) in w.chunks(SIDE).zip(x.chunks(SIDE)) {
                prefetch(w.as_flattened(), AHEAD, SIDE * BYTES);
                let mut sums = [_mm256_setzero_si256(); SIDE];
                let mut mins = [_mm_setzero_si128(); SIDE];
                for (i, (w, x)) in w.iter().zip(x).enumerate() {
                    let (scales, minima) = v::scales_mins(w);
                    sums[i] = v::dot_scaled(&codes(w), scales, &x.q);
                    mins[i] = _mm_madd_epi16(minima, load_sums8(&x.sums32));
                }
                let sums = (v::sum4(sums), v::sum4_narrow(mins));
                let four = v::four(w);
                let factors = (factors4(four, 0), factors4(four, 2));
                chains = v::links(sums, factors, v::scales_of(x), x.len(), chains);
            }
            v::minus_second(chains)
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
            /// S and M.
            fn dot(&self, x: &Block) -> (i32, i32) {
                let (mut sum, mut min) = (0, 0);
                for j in 0..8 {
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

        /// Unpacks a superblock for the other portable kernels.
        pub(crate) fn unpack_to(w: &[u8; BYTES], to: &mut crate::unpacked::Unpacked) {
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

#[cfg(target_arch = "x86_64")]
pub(crate) use {by_quads, by_rows, with_minima};
pub(crate) use {float_kernel, k_quant_scalar, with_minima_scalar};
