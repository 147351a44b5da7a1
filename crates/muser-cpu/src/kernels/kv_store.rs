//! Stores K and V of one position in the KV cache as f16.
//!
//! Values are rounded to nearest, ties to even. Within a chunk of 64 positions, K is
//! transposed, `[dimension][position]`, so that attention computes the scores of many
//! positions in one vector, without horizontal sums. V is `[position][dimension]`. The
//! price of the transposition: the values of one K go to as many cache lines as the head
//! has dimensions, 128 writes for each head and token.

use muser_levels::levels;

/// The kernel that stores K and V in the cache, compiled for each instruction-set level.
#[levels]
pub(crate) mod kernels {
    use crate::simd::level as v;
    use muser_ops::attention::CHUNK;

    /// Stores one head's K and V in the KV cache, at place `slot` of a chunk (64
    /// positions): K transposed, as entry `slot` of every dimension of `k_chunk`, and V
    /// in `v_row`.
    pub(crate) fn kv_store(
        k: &[f32],
        value: &[f32],
        slot: usize,
        k_chunk: &mut [u16],
        v_row: &mut [u16],
    ) {
        for at in (0..k.len()).step_by(v::ELEMENTS) {
            let n = v::ELEMENTS.min(k.len() - at);
            let (mut kf, mut vf) = ([0.0; v::ELEMENTS], [0.0; v::ELEMENTS]);
            kf[..n].copy_from_slice(&k[at..at + n]);
            vf[..n].copy_from_slice(&value[at..at + n]);
            let (mut kh, mut vh) = ([0; v::ELEMENTS], [0; v::ELEMENTS]);
            v::store_f16(&mut kh, 0, v::load(&kf, 0));
            v::store_f16(&mut vh, 0, v::load(&vf, 0));
            for (i, bits) in kh[..n].iter().enumerate() {
                k_chunk[(at + i) * CHUNK + slot] = *bits;
            }
            v_row[at..at + n].copy_from_slice(&vh[..n]);
        }
    }
}
