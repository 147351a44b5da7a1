//! Q4_K rows by lanes, portable.

use crate::kernels::matmul::q4_k::{BYTES, SUB_BLOCKS};
use crate::kernels::matvec::q4_k::scalar::unpack_to as unpack;

crate::kernels::lanes::scalar!();
