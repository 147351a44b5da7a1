//! Q6_K rows by lanes, portable.

use crate::kernels::matvec::q6_k::scalar::unpack_to as unpack;
use muser_quant::q6_k::BYTES;

/// Sub-blocks with a scale of their own.
const SUB_BLOCKS: usize = 16;

crate::kernels::lanes::scalar!();
