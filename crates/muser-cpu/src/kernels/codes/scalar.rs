//! Unpacks quantised weights in portable code: superblocks of 256 with their scales, and
//! the codes of groups of 32.

use crate::unpacked::Unpacked;
use muser_quant::q4_k::BlockQ4K;
use muser_quant::q5_k::BlockQ5K;
use muser_quant::q6_k::BlockQ6K;
use muser_quant::{GROUP, Group, GroupCodes, SuperCodes, Superblock, f16};

/// Unpacks a superblock: the quantised values (codes) of 256 weights, their scales and
/// minima. The codes' bias (zero point) is not subtracted.
pub(crate) fn unpack<F: Superblock, const B: usize>(bytes: &[u8; B], to: &mut Unpacked) {
    match F::CODES {
        SuperCodes::Nibbles => nibbles(&BlockQ4K::from_bytes(sized(bytes)), to),
        SuperCodes::NibblesAndBits => nibbles_and_bits(&BlockQ5K::from_bytes(sized(bytes)), to),
        SuperCodes::NibblesAndPairs => nibbles_and_pairs(&BlockQ6K::from_bytes(sized(bytes)), to),
    }
}

/// Returns the bytes of a superblock as an array of `N` bytes, the size of a superblock
/// of its weight format.
fn sized<const B: usize, const N: usize>(bytes: &[u8; B]) -> &[u8; N] {
    bytes
        .first_chunk()
        .expect("a packing has blocks of one length only")
}

/// Unpacks a Q4_K superblock: its 256 quantised values (codes, stored as nibbles),
/// scales and minima.
fn nibbles(b: &BlockQ4K, to: &mut Unpacked) {
    let groups = to.codes.as_flattened_mut().as_chunks_mut::<64>().0;
    for (out, packed) in groups.iter_mut().zip(b.codes.as_chunks::<32>().0) {
        for (i, byte) in packed.iter().enumerate() {
            out[i] = byte & 15;
            out[32 + i] = byte >> 4;
        }
    }
    scales_and_minima(b.scales_mins(), to);
    (to.d, to.dmin) = (f16::to_f32(b.d), f16::to_f32(b.dmin));
}

/// Unpacks a Q5_K superblock: its 256 quantised values (codes, stored as nibbles and
/// separate fifth bits), scales and minima.
fn nibbles_and_bits(b: &BlockQ5K, to: &mut Unpacked) {
    let groups = to.codes.as_flattened_mut().as_chunks_mut::<64>().0;
    let packed = b.low.as_chunks::<32>().0;
    for (g, (out, packed)) in groups.iter_mut().zip(packed).enumerate() {
        for (i, byte) in packed.iter().enumerate() {
            out[i] = byte & 15 | (b.high[i] >> (2 * g) & 1) << 4;
            out[32 + i] = byte >> 4 | (b.high[i] >> (2 * g + 1) & 1) << 4;
        }
    }
    scales_and_minima(b.scales_mins(), to);
    (to.d, to.dmin) = (f16::to_f32(b.d), f16::to_f32(b.dmin));
}

/// Unpacks a Q6_K superblock: its 256 quantised values (codes, `0..=63`, stored as
/// nibbles and separate pairs of bits) and its scales.
fn nibbles_and_pairs(b: &BlockQ6K, to: &mut Unpacked) {
    let halves = to.codes.as_flattened_mut().as_chunks_mut::<128>().0;
    for (h, out) in halves.iter_mut().enumerate() {
        let (low, high) = (&b.low[64 * h..][..64], &b.high[32 * h..][..32]);
        for i in 0..32 {
            let pair = |k: usize| (high[i] >> (2 * k) & 3) << 4;
            out[i] = (low[i] & 15) | pair(0);
            out[32 + i] = (low[32 + i] & 15) | pair(1);
            out[64 + i] = (low[i] >> 4) | pair(2);
            out[96 + i] = (low[32 + i] >> 4) | pair(3);
        }
    }
    for (j, s) in b.scales.iter().enumerate() {
        to.scales[j] = i32::from(*s);
        to.pairs[j / 2][j % 2] = i16::from(*s);
    }
    (to.d, to.dmin) = (f16::to_f32(b.d), 0.0);
}

/// Stores the eight scales and eight minima of a Q4_K or Q5_K superblock in the unpacked
/// form.
fn scales_and_minima((scales, mins): ([u8; 8], [u8; 8]), to: &mut Unpacked) {
    for (to, s) in to.scales.iter_mut().zip(scales) {
        *to = i32::from(s);
    }
    for (to, m) in to.pairs.as_flattened_mut().iter_mut().zip(mins) {
        *to = i16::from(m);
    }
}

/// Unpacks the 32 quantised values (codes) of a group of weights and subtracts their
/// bias (zero point).
pub(crate) fn of_group<F: Group>(block: &[u8]) -> [i8; GROUP] {
    let mut codes = [0; GROUP];
    match F::CODES {
        GroupCodes::Bytes { at } => {
            for (to, code) in codes.iter_mut().zip(&block[at..][..GROUP]) {
                *to = code.cast_signed();
            }
        }
        GroupCodes::Nibbles { at, bias } => {
            let (low, high) = codes.split_at_mut(GROUP / 2);
            let out = low.iter_mut().zip(high);
            for ((low, high), byte) in out.zip(&block[at..][..GROUP / 2]) {
                *low = (byte & 15).cast_signed() - bias.cast_signed();
                *high = (byte >> 4).cast_signed() - bias.cast_signed();
            }
        }
    }
    codes
}
