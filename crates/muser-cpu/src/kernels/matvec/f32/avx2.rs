//! F32 rows at the avx2 level.

crate::kernels::matvec::float_kernel!(avx2, load_f32_bytes, 4, "avx2,fma,f16c");
