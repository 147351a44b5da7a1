//! F16 rows, one value at a time.

crate::kernels::ggml_dot::kernel!(scalar, load_f16_bytes, 2, F16, by::<8>, by::<16>);
