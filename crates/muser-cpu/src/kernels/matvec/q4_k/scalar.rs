//! Q4_K rows, portable.

use muser_quant::q4_k::{BYTES, BlockQ4K};
use muser_quant::{QK, f16};

crate::kernels::matvec::with_minima_scalar!();

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
