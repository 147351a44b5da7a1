//! Q5_K panels, portable: the lanes are loops that the compiler vectorises as
//! far as the target allows.

use crate::kernels::matvec::q5_k::scalar::unpack_to as unpack;

crate::kernels::matmul::driver!(scalar; matmul = STRICT, matmul_tiled = TILED);
