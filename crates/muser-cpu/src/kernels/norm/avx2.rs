//! RMS norms in vectors of 8: 32 accumulators, of which 16 live in registers.

super::kernels!(avx2, "avx2,fma,f16c");
