//! Q4_K rows by lanes with AVX2: `vpmaddubsw` and `vpmaddwd` leave the sums of a
//! quad in the lane that the contract adds them in.

use crate::kernels::matvec::q4_k::avx2::codes;
use muser_quant::q4_k::BYTES;

crate::kernels::lanes::with_minima!();
