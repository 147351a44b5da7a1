//! Q6_K rows by lanes with AVX2: `vpmaddubsw` and `vpmaddwd` leave the sums of a
//! quad in the lane that the contract adds them in, and the `vpmaddwd` of scales
//! and sums leaves the bias of the codes 32 l .. in lane l, as the contract has
//! it.

use crate::kernels::lanes::AHEAD;
use crate::kernels::matvec::q6_k::avx2::{codes, dot_scaled};
use crate::kernels::quantize::Block;
use crate::rows::Tile;
use crate::simd::avx2 as v;
use muser_quant::q6_k::BYTES;
use std::arch::x86_64::*;

crate::kernels::lanes::driver!("avx2,fma,f16c");

/// One row with N columns.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn row<const N: usize>(w: &[u8], x: [&[Block]; N]) -> [f32; N] {
    let mut acc = [v::splat(0.0); N];
    let blocks = x[0].len();
    for (b, bytes) in w.as_chunks::<BYTES>().0.iter().take(blocks).enumerate() {
        v::prefetch(w, b * BYTES + AHEAD, BYTES);
        let codes = codes(bytes);
        let scales = _mm256_cvtepi8_epi16(v::load128(bytes, 192));
        let d = v::factor_at(bytes, 208);
        for n in 0..N {
            let x = &x[n][b];
            let bias = _mm256_madd_epi16(scales, v::load_sums16(&x.sums16));
            let dot = dot_scaled(&codes, scales, &x.q);
            let sum = _mm256_sub_epi32(dot, _mm256_slli_epi32::<5>(bias));
            acc[n] = v::fma(v::splat(x.d * d), _mm256_cvtepi32_ps(sum), acc[n]);
        }
    }
    let mut sums = [0.0; N];
    for (sum, acc) in sums.iter_mut().zip(acc) {
        *sum = v::halve_lanes(acc);
    }
    sums
}
