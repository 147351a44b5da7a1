//! Transposes superblocks (256 quantised weights) of several rows to slabs in portable
//! code: loops over the rows, which the compiler vectorises as far as the target allows.

use super::{Ahead, Slab};
use crate::kernels::codes::scalar::unpack;
use crate::simd::scalar::slab as v;
use muser_quant::Superblock;

/// Unpacks one superblock (256 quantised weights) of each row and transposes it to a
/// slab, in which each vector element holds one row's weights. Prefetches nothing.
pub(crate) fn transpose<F: Superblock, const B: usize>(
    rows: v::SlabRows<'_, B>,
    _: Ahead<'_>,
    to: &mut Slab<{ v::ROWS }>,
) {
    v::transpose(rows, unpack::<F, B>, to);
}
