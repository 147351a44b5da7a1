//! Q5_K rows by lanes, portable.

use crate::kernels::matmul::q5_k::{BYTES, SUB_BLOCKS};
use crate::kernels::matvec::q5_k::scalar::unpack_to as unpack;

crate::kernels::lanes::scalar!();
