//! Measures the peak int8 rate with `vpdpbusd`: 64 multiply-adds in an instruction.

use muser_levels::level;
use std::arch::x86_64::*;
use std::hint::black_box;

/// The number of independent chains of multiply-adds. At most two `vpdpbusd` start in a
/// cycle, each with a latency of five cycles; twelve chains hide the latency.
const CHAINS: usize = 12;

/// Runs `rounds` rounds of int8 multiply-adds in registers and returns the number of
/// multiply-adds.
#[level(avx512)]
pub(crate) fn int8_peak(rounds: u32) -> u64 {
    let x = _mm512_set1_epi8(black_box(1));
    let mut chains: [__m512i; CHAINS] =
        std::array::from_fn(|i| _mm512_set1_epi32(black_box(i as i32)));
    for _ in 0..rounds {
        for chain in &mut chains {
            *chain = _mm512_dpbusd_epi32(*chain, *chain, x);
        }
    }
    black_box(chains);
    u64::from(rounds) * (CHAINS * 64) as u64
}
