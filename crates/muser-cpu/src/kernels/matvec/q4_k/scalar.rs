//! Q4_K rows, portable.

use crate::kernels::quantize::Block;
use crate::rows::Tile;
use muser_quant::q4_k::{BYTES, BlockQ4K};
use muser_quant::{QK, f16};

struct Unpacked {
    codes: [u8; QK],
    scales: [u8; 8],
    mins: [u8; 8],
    d: f32,
    dmin: f32,
}

fn unpack(bytes: &[u8; BYTES]) -> Unpacked {
    let b = BlockQ4K::from_bytes(bytes);
    let (scales, mins) = b.scales_mins();
    let mut codes = [0; QK];
    let groups = codes.as_chunks_mut::<64>().0;
    for (out, packed) in groups.iter_mut().zip(b.codes.as_chunks::<32>().0) {
        for (i, byte) in packed.iter().enumerate() {
            out[i] = byte & 15;
            out[32 + i] = byte >> 4;
        }
    }
    Unpacked {
        codes,
        scales,
        mins,
        d: f16::to_f32(b.d),
        dmin: f16::to_f32(b.dmin),
    }
}

impl Unpacked {
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

crate::kernels::matvec::k_quant_scalar!();

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
