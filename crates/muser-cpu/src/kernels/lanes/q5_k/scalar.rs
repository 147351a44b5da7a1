//! Q5_K rows by lanes, portable.

use crate::kernels::matvec::q5_k::scalar::unpack_to as unpack;
use muser_quant::q5_k::BYTES;

/// Sub-blocks with a scale of their own.
const SUB_BLOCKS: usize = 8;

crate::kernels::lanes::scalar!();
