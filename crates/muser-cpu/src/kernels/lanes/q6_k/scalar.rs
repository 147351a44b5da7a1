//! Q6_K rows by lanes, portable.

use crate::kernels::matmul::q6_k::{BYTES, SUB_BLOCKS};
use crate::kernels::matvec::q6_k::scalar::unpack_to as unpack;

crate::kernels::lanes::scalar!();
