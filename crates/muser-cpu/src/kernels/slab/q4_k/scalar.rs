//! Q4_K slabs, portable: the lanes are loops that the compiler vectorises as far
//! as the target allows.

use crate::kernels::matvec::q4_k::scalar::unpack_to;

crate::kernels::slab::driver!(scalar; slab = STRICT, slab_tiled = TILED, slab_fours = FOURS);

/// A superblock of each row, unpacked and then turned; the cache is left to the
/// hardware.
fn build(rows: v::Rows<'_, BYTES>, _: Ahead<'_>, to: &mut Slab<{ v::LANES }>) {
    v::turn(rows, unpack_to, to);
}
