//! BF16 rows, one value at a time.

crate::kernels::ggml_dot::kernel!(scalar, load_bf16_bytes, 2, BF16, by::<8>, by::<16>);
