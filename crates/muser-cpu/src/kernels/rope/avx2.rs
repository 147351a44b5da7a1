//! RoPE, four pairs at a time.

super::kernels!(avx2, "avx2,fma,f16c");
