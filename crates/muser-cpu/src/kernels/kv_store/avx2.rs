//! The KV store, 8 conversions at a time (F16C).

super::kernels!(avx2, "avx2,fma,f16c");
