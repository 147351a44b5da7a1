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

/// The same by the pinned lane's interleaved route of four columns: a link every
/// 64 codes.
pub(crate) fn matvec_fours(
    w: &[u8],
    x: &[Block],
    blocks: usize,
    columns: usize,
    tile: &mut Tile<'_>,
) {
    let row_bytes = blocks * BYTES;
    for r in 0..tile.rows() {
        let row = w[r * row_bytes..][..row_bytes].as_chunks::<BYTES>().0;
        let row: Vec<Unpacked> = row.iter().map(unpack).collect();
        for c in 0..columns {
            let (mut acc, mut accm) = (0.0f32, 0.0f32);
            for (block, x) in row.iter().zip(&x[c * blocks..]) {
                for g in 0..4 {
                    let (sum, min) = block.dot_of(x, 2 * g..2 * g + 2);
                    acc = (sum as f32).mul_add(block.d * x.d, acc);
                    accm = (min as f32).mul_add(block.dmin * x.d, accm);
                }
            }
            tile.set(c, r, &[acc - accm]);
        }
    }
}
