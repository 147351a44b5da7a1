//! Attention in vectors of 16: four heads by 64 positions or dimensions, 16 accumulators.

super::kernels!(
    avx512,
    "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c"
);
