//! `vpdpbusd`: 64 multiply-adds an instruction.

use muser_levels::level;
use std::arch::x86_64::*;
use std::hint::black_box;

/// Two a cycle at most, five cycles from one step of a chain to the next:
/// twelve chains hide it.
const CHAINS: usize = 12;

/// Runs that many rounds; gives the multiply-adds done.
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
