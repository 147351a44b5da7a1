//! Elementwise operations in vectors of 8.

super::kernels!(avx2, "avx2,fma,f16c");
