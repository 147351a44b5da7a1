//! Quantises f32 activations to int8 codes in portable code, one value at a time.

use super::{Block, Groups};
use muser_quant::{GROUP, QK};

/// Quantises 256 f32 activations to one Q8_K block: int8 codes with one scale.
pub(crate) fn quantize(x: &[f32; QK]) -> Block {
    let bits = |v: &f32| v.to_bits() & 0x7fff_ffff;
    let max_bits = x.iter().map(bits).fold(0, u32::max);
    if let Some(block) = Block::special(max_bits) {
        return block;
    }
    let max = x
        .iter()
        .copied()
        .find(|v| bits(v) == max_bits)
        .unwrap_or(0.0);
    let iscale = -127.0 / max;
    let mut block = Block::zeros(1.0 / iscale);
    for (q, &v) in block.q.iter_mut().zip(x) {
        *q = (iscale * v).round_ties_even().min(127.0) as i8;
    }
    for (s, q) in block.sums16.iter_mut().zip(block.q.as_chunks::<16>().0) {
        *s = q.iter().map(|&q| i16::from(q)).sum();
    }
    block.pair_sums();
    block
}

/// Quantises 256 f32 activations to eight Q8 groups: 32 int8 codes and a scale each.
pub(crate) fn quantize_groups(x: &[f32; QK]) -> Groups {
    let mut out = Groups::ZERO;
    for (g, x) in x.as_chunks::<GROUP>().0.iter().enumerate() {
        let bits = |v: &f32| v.to_bits() & 0x7fff_ffff;
        let max_bits = x.iter().map(bits).fold(0, u32::max);
        let Some(iscale) = out.scale(g, max_bits) else {
            continue;
        };
        let q = &mut out.q[GROUP * g..][..GROUP];
        for (q, &v) in q.iter_mut().zip(x) {
            *q = (iscale * v).round_ties_even() as i8;
        }
        out.sums[g] = q.iter().map(|&q| i16::from(q)).sum();
    }
    out
}
