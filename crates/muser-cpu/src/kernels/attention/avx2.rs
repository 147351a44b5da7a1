//! Attention in vectors of 8: two heads by 32 positions or dimensions, 8 accumulators.

super::kernels!(avx2, "avx2,fma,f16c");
