//! The pinned lane's attention in vectors of 16: four heads or queries at a time.

super::kernels!(
    avx512,
    "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c"
);
