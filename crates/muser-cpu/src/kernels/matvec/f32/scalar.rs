//! F32 rows at the scalar level.

crate::kernels::matvec::float_kernel!(scalar, load_f32_bytes, 4);
