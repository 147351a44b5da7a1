//! F32 rows, one value at a time.

crate::kernels::ggml_dot::kernel!(scalar, load_f32_bytes, 4, F32, by::<8>, by::<16>);
