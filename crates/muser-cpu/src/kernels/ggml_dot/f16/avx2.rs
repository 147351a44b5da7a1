//! F16 rows in registers of 8: one a vector of the 8-lane profile, two of the
//! other.

crate::kernels::ggml_dot::kernel!(
    avx2,
    load_f16_bytes,
    2,
    F16,
    by::<1>,
    by::<2>,
    "avx2,fma,f16c"
);
