//! Q8_K quantisation, one value at a time.

use super::Block;
use muser_quant::QK;

/// Quantises one block.
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
