//! F16 rows at the avx2 level.

crate::kernels::matvec::float_kernel!(avx2, load_f16_bytes, 2, "avx2,fma,f16c");
