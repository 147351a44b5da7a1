//! Slabs, portable: the lanes are loops that the compiler vectorises as far as the
//! target allows.

use super::{Ahead, Slab};
use crate::kernels::codes::scalar::unpack;
use crate::simd::scalar::slab as v;
use muser_quant::Superblock;

/// A superblock of each row, unpacked and then turned; the cache is left to the
/// hardware.
pub(crate) fn transpose<F: Superblock, const B: usize>(
    rows: v::SlabRows<'_, B>,
    _: Ahead<'_>,
    to: &mut Slab<{ v::ROWS }>,
) {
    v::transpose(rows, unpack::<F, B>, to);
}
