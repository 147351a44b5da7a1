//! Q5_K rows by lanes with AVX-512: 4 `vpdpbusd` leave the sums of quads, two
//! groups of them share dwords so that 2 `vpmaddwd` scale and add them, and one
//! fold by halves makes the contract's eight lanes.

use crate::kernels::matvec::q5_k::avx512::codes;
use muser_quant::q5_k::BYTES;

crate::kernels::lanes::with_minima_512!();
