//! Q4_K panels at the avx2 level; what the instructions cost is written at
//! `panel_step` of the level.

use crate::kernels::matvec::q4_k::avx2::unpack_to as unpack;

crate::kernels::matmul::driver!(avx2, "avx2,fma,f16c"; matmul = STRICT, matmul_tiled = TILED, matmul_fours = FOURS);
