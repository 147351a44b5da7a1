//! RMS norms in vectors of 16: 16 accumulators in registers.

super::kernels!(
    avx512,
    "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c"
);
