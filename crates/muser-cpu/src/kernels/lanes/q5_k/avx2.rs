//! Q5_K rows by lanes with AVX2: `vpmaddubsw` and `vpmaddwd` leave the sums of a
//! quad in the lane that the contract adds them in.

use crate::kernels::matvec::q5_k::avx2::codes;
use muser_quant::q5_k::BYTES;

crate::kernels::lanes::with_minima!();
