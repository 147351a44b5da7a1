//! F16 rows in registers of 16, a vector of the 16-lane profile; the 8-lane
//! profile is the avx2 kernel.

crate::kernels::ggml_dot::kernel!(
    avx512,
    load_f16_bytes,
    2,
    F16,
    super::avx2::ggml_dot,
    by::<1>,
    "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c"
);
