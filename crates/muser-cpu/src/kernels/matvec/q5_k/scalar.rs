//! Q5_K rows, portable.

use muser_quant::q5_k::{BYTES, BlockQ5K};
use muser_quant::{QK, f16};

crate::kernels::matvec::with_minima_scalar!();

fn unpack(bytes: &[u8; BYTES]) -> Unpacked {
    let b = BlockQ5K::from_bytes(bytes);
    let (scales, mins) = b.scales_mins();
    let mut codes = [0; QK];
    for (g, (out, packed)) in codes
        .as_chunks_mut::<64>()
        .0
        .iter_mut()
        .zip(b.low.as_chunks::<32>().0)
        .enumerate()
    {
        for (i, byte) in packed.iter().enumerate() {
            out[i] = byte & 15 | (b.high[i] >> (2 * g) & 1) << 4;
            out[32 + i] = byte >> 4 | (b.high[i] >> (2 * g + 1) & 1) << 4;
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
