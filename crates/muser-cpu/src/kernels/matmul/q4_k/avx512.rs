//! Q4_K panels at the avx512 level; what the instructions cost is written at
//! `panel_step` of the level.

use crate::kernels::matvec::q4_k::avx512::unpack_to as unpack;

crate::kernels::matmul::driver!(
    avx512,
    "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c"; matmul = STRICT, matmul_tiled = TILED, matmul_fours = FOURS
);
