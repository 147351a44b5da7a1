//! BF16 rows at the avx512 level.

crate::kernels::matvec::float_kernel!(
    avx512,
    load_bf16_bytes,
    2,
    "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c"
);
