//! Q6_K rows, portable.

use crate::kernels::quantize::Block;
use crate::rows::Tile;
use muser_quant::q6_k::{BYTES, BlockQ6K};
use muser_quant::{QK, f16};

struct Unpacked {
    codes: [i8; QK],
    scales: [i8; 16],
    d: f32,
    /// There are no minima; the chain of zeros is computed and dropped.
    dmin: f32,
}

fn unpack(bytes: &[u8; BYTES]) -> Unpacked {
    let b = BlockQ6K::from_bytes(bytes);
    let mut codes = [0; QK];
    for (h, out) in codes.as_chunks_mut::<128>().0.iter_mut().enumerate() {
        let (low, high) = (&b.low[64 * h..][..64], &b.high[32 * h..][..32]);
        for i in 0..32 {
            let pair = |k: usize| (high[i] >> (2 * k) & 3) << 4;
            out[i] = ((low[i] & 15) | pair(0)).cast_signed() - 32;
            out[32 + i] = ((low[32 + i] & 15) | pair(1)).cast_signed() - 32;
            out[64 + i] = ((low[i] >> 4) | pair(2)).cast_signed() - 32;
            out[96 + i] = ((low[32 + i] >> 4) | pair(3)).cast_signed() - 32;
        }
    }
    Unpacked {
        codes,
        scales: b.scales,
        d: f16::to_f32(b.d),
        dmin: 0.0,
    }
}

impl Unpacked {
    fn dot(&self, x: &Block) -> (i32, i32) {
        let mut sum = 0;
        for j in 0..16 {
            let codes = &self.codes[16 * j..][..16];
            let products = codes.iter().zip(&x.q[16 * j..][..16]);
            let dot: i32 = products.map(|(&c, &q)| i32::from(c) * i32::from(q)).sum();
            sum += i32::from(self.scales[j]) * dot;
        }
        (sum, 0)
    }
}

fn result(acc: f32, _: f32) -> f32 {
    acc
}

crate::kernels::matvec::k_quant_scalar!();

/// Unpacks a superblock for the other portable kernels: codes `0..=63`.
pub(crate) fn unpack_to(w: &[u8; BYTES], to: &mut crate::unpacked::Unpacked) {
    let u = unpack(w);
    for (to, code) in to.codes.as_flattened_mut().iter_mut().zip(u.codes) {
        *to = (code + 32).cast_unsigned();
    }
    for (j, s) in u.scales.iter().enumerate() {
        to.scales[j] = i32::from(*s);
        to.pairs[j / 2][j % 2] = i16::from(*s);
    }
    to.d = u.d;
}
