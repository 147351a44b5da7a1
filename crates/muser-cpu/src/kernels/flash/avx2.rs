//! The pinned lane's attention in vectors of 8: two heads or queries at a time.

super::kernels!(avx2, "avx2,fma,f16c");
